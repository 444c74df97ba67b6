"""A run that raises is followed by another one, after a while, up to a limit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mega import App, Backoff, JobContext, Reject, Retry, Snooze
from mega.errors import BadOption
from mega.events import JobDone, JobRetried, JobSnoozed


class MailServerAway(Exception):
    pass


async def test_a_run_that_raises_is_followed_by_another_one() -> None:
    app, attempts = App("shop"), []

    @app.job("email.send", backoff=5)
    async def send_email(ctx: JobContext) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise MailServerAway
        return "sent"

    async with app.test() as t:
        job = await send_email.enqueue()
        await t.advance(10)
        assert [1, 2, 3] == attempts
        assert "sent" == await job.result()


async def test_retries_are_the_runs_after_the_first() -> None:
    app, attempts = App("shop"), []

    @app.job("email.send", retries=2, backoff=1)
    async def send_email(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        raise MailServerAway

    async with app.test() as t:
        await send_email.enqueue()
        await t.advance(3600)

    assert [1, 2, 3] == attempts


async def test_without_a_word_there_are_three_retries() -> None:
    app, attempts = App("shop"), []

    @app.job("email.send")
    async def send_email(ctx: JobContext) -> None:
        attempts.append((ctx.attempt, ctx.max_attempts))
        raise MailServerAway

    async with app.test() as t:
        await send_email.enqueue()
        await t.advance(3600)

    assert [(1, 4), (2, 4), (3, 4), (4, 4)] == attempts


async def test_no_retries_means_one_run() -> None:
    app, runs = App("shop"), []

    @app.job("email.send", retries=0)
    async def send_email() -> None:
        runs.append(1)
        raise MailServerAway

    async with app.test() as t:
        await send_email.enqueue()
        await t.advance(3600)

    assert [1] == runs


async def test_a_plain_function_is_retried_too() -> None:
    app, attempts = App("shop"), []

    @app.job("email.send", backoff=0)
    def send_email(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise MailServerAway

    async with app.test() as t:
        await send_email.enqueue()
        await t.drain()

    assert [1, 2, 3] == attempts


async def test_the_wait_before_a_retry_grows_up_to_a_maximum() -> None:
    app, started_at = App("shop"), []

    @app.job("email.send", retries=4, backoff=Backoff(initial=10, max=60, jitter=False))
    async def send_email(ctx: JobContext) -> None:
        started_at.append(t.clock.monotonic())
        raise MailServerAway

    async with app.test() as t:
        await send_email.enqueue()
        await t.advance(3600)

    assert [0, 10, 10 + 20, 10 + 20 + 40, 10 + 20 + 40 + 60] == started_at


async def test_a_number_is_a_constant_wait() -> None:
    app, started_at = App("shop"), []

    @app.job("email.send", retries=2, backoff=timedelta(minutes=1))
    async def send_email() -> None:
        started_at.append(t.clock.monotonic())
        raise MailServerAway

    async with app.test() as t:
        await send_email.enqueue()
        await t.advance(3600)

    assert [0, 60, 120] == started_at


async def test_jitter_keeps_retries_between_half_and_the_whole_wait() -> None:
    app = App("shop")

    @app.job("email.send", retries=1, backoff=Backoff(initial=10), concurrency=20)
    async def send_email(number: int) -> None:
        raise MailServerAway

    async with app.test() as t:
        for number in range(20):
            await send_email.enqueue(number)
        await t.advance(0)
        delays = [event.delay for event in t.events if isinstance(event, JobRetried)]

    assert 20 == len(delays)
    assert all(5 <= delay <= 10 for delay in delays)
    assert 1 < len(set(delays))


async def test_a_job_that_waits_for_its_retry_keeps_nobody_waiting() -> None:
    app, order = App("shop"), []

    @app.job("email.send", concurrency=1, backoff=3600)
    async def send_email(to: str) -> None:
        order.append(to)
        if to == "broken":
            raise MailServerAway

    async with app.test() as t:
        await send_email.enqueue("broken")
        await send_email.enqueue("ada@example.org")
        await t.drain()

    assert ["broken", "ada@example.org"] == order


@pytest.mark.parametrize(
    ("options", "runs"),
    [({}, 4), ({"retries": 0}, 1), ({"retries": 5}, 6), ({"attempts": 1}, 1), ({"attempts": 2}, 2)],
)
async def test_an_enqueue_overrides_how_often_the_job_runs(
    options: dict[str, Any], runs: int
) -> None:
    app, attempts = App("shop"), []

    @app.job("email.send", backoff=1)
    async def send_email(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        raise MailServerAway

    async with app.test() as t:
        await send_email.enqueue(**options)
        await t.advance(3600)

    assert list(range(1, runs + 1)) == attempts


async def test_an_enqueue_overrides_the_backoff() -> None:
    app, started_at = App("shop"), []

    @app.job("email.send", retries=2, backoff=1)
    async def send_email() -> None:
        started_at.append(t.clock.monotonic())
        raise MailServerAway

    async with app.test() as t:
        await send_email.enqueue(backoff=Backoff(initial=100, max=1000, factor=3, jitter=False))
        await t.advance(3600)

    assert [0, 100, 400] == started_at


async def test_retries_and_attempts_together_are_refused() -> None:
    app = App("shop")

    @app.job("email.send")
    async def send_email() -> None: ...

    async with app.test():
        with pytest.raises(BadOption, match="both retries= and attempts="):
            await send_email.enqueue(retries=1, attempts=2)


async def test_an_error_that_the_handler_catches_is_no_failure() -> None:
    app, sent = App("shop"), []

    @app.job("email.send")
    async def send_email() -> None:
        try:
            raise MailServerAway
        except MailServerAway:
            sent.append("failed")

    async with app.test() as t:
        await send_email.enqueue()
        await t.advance(3600)
        assert [JobDone] == [type(event) for event in t.events if isinstance(event, JobDone)]

    assert ["failed"] == sent


async def test_a_run_that_takes_too_long_is_a_failed_run() -> None:
    app, attempts = App("shop"), []

    @app.job("email.send", timeout=0.01, retries=1, backoff=1)
    async def send_email(ctx: JobContext) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            await t.clock.sleep(1e6)
        return "sent"

    async with app.test() as t:
        job = await send_email.enqueue()
        await t.drain()
        await t.advance(1)
        assert "sent" == await job.result()

    assert [1, 2] == attempts


async def test_a_handler_says_when_to_try_again() -> None:
    app, started_at = App("shop"), []

    @app.job("email.send", retries=2, backoff=1)
    async def send_email() -> None:
        started_at.append(t.clock.monotonic())
        raise Retry("the mail server is busy", after=timedelta(minutes=5))

    async with app.test() as t:
        await send_email.enqueue()
        await t.advance(3600)
        (letter,) = t.dead_letters("email.send")

    assert [0, 300, 600] == started_at
    assert ("retries", "the mail server is busy") == (letter["reason"], letter["error"])


async def test_a_handler_says_that_a_job_can_not_succeed() -> None:
    app, attempts = App("shop"), []

    @app.job("email.send", retries=3)
    async def send_email(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        raise Reject("no such address")

    async with app.test() as t:
        job = await send_email.enqueue()
        await t.drain()
        assert "failed" == (await job.state()).state
        (letter,) = t.dead_letters("email.send")

    assert [1] == attempts
    assert ("rejected", "no such address") == (letter["reason"], letter["error"])


async def test_a_snooze_puts_a_job_off_and_costs_no_attempt() -> None:
    app, runs = App("shop"), []

    @app.job("email.send", retries=0)
    async def send_email(ctx: JobContext) -> str:
        runs.append((t.clock.monotonic(), ctx.attempt))
        if len(runs) < 3:
            raise Snooze(60, "the shop is closed")
        return "sent"

    async with app.test() as t:
        job = await send_email.enqueue()
        await t.drain()
        assert "waiting" == (await job.state()).state
        await t.advance(120)
        assert "sent" == await job.result()
        snoozed = [event for event in t.events if isinstance(event, JobSnoozed)]

    assert [(0, 1), (60, 1), (120, 1)] == runs
    assert [(60, "the shop is closed")] * 2 == [(event.delay, event.reason) for event in snoozed]


@pytest.mark.parametrize(
    "retry_on",
    [
        MailServerAway,
        (MailServerAway, TimeoutError),
        lambda error: isinstance(error, MailServerAway),
    ],
)
@pytest.mark.parametrize(("error", "runs"), [(MailServerAway, 4), (ValueError, 1)])
async def test_a_declaration_says_which_errors_are_worth_another_run(
    retry_on: Any, error: type[Exception], runs: int
) -> None:
    app, attempts = App("shop"), []

    @app.job("email.send", retry_on=retry_on, backoff=1)
    async def send_email(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        raise error

    async with app.test() as t:
        await send_email.enqueue()
        await t.advance(3600)
        assert 1 == len(t.dead_letters("email.send"))

    assert list(range(1, runs + 1)) == attempts


async def never(error: Exception) -> bool:
    return False


@pytest.mark.parametrize("retry_on", [never, "OSError", (OSError, "ValueError"), ()])
def test_what_does_not_say_which_errors_is_refused(retry_on: Any) -> None:
    """A coroutine as a bool is always true."""
    app = App("shop")
    with pytest.raises(BadOption, match="which errors are retried"):
        app.job("email.send", retry_on=retry_on)


async def test_a_handle_tells_the_longest_waits() -> None:
    app = App("shop")

    @app.job("email.send", retries=4, backoff=Backoff(initial=10, max=60))
    async def send_email() -> None: ...

    assert (10, 20, 40, 60) == send_email.retry_delays
