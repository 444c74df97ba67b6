"""How often a job runs, with which waits, and what ends that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from itertools import pairwise
from typing import Any

import anyio
import pytest

from mega import App, JobContext
from mega.errors import BadOption
from mega.events import JobDeadLettered, JobDone, JobFailed, JobRetried, JobStarted
from tests.cases.onlooker import Onlooker
from tests.cases.served import serving
from tests.waiting import until


async def test_attempts_are_numbered_to_the_last(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """retry-01: handler, events and dead letter see 1 to retries + 1; `job.fail` is the last."""
    app, seen = App("cases", broker=broker), []

    @app.job(subject, retries=3, backoff=0)
    async def work(ctx: JobContext) -> None:
        seen.append((ctx.attempt, ctx.is_last_attempt))
        raise ConnectionError

    async with serving(app) as served:
        await work.enqueue()
        await served.wait_for(JobDeadLettered)
        (letter,) = await onlooker.wait_for_dead_letters(subject)

    assert [(1, False), (2, False), (3, False), (4, True)] == seen
    assert [1, 2, 3, 4] == [event.attempt for event in served.those(JobStarted)]
    assert [1, 2, 3] == [event.attempt for event in served.those(JobRetried)]
    assert [(4, "retries")] == [(event.attempt, event.phase) for event in served.those(JobFailed)]
    assert 4 == letter["attempts"]


@pytest.mark.parametrize(
    ("declared", "options", "runs"),
    [
        ({"retries": 5}, {"retries": 0}, 1),
        ({"retries": 5}, {"attempts": 1}, 1),
        ({"retries": 0}, {}, 1),
        ({"retries": 0}, {"retries": 2}, 3),
        ({"retries": 3}, {}, 4),
        ({"retries": 0}, {"attempts": 3}, 3),
        ({"retries": 3, "retry_on": lambda error: True}, {}, 4),
    ],
)
async def test_how_often_a_job_runs(
    broker: str,
    subject: str,
    onlooker: Onlooker,
    declared: dict[str, Any],
    options: dict[str, Any],
    runs: int,
) -> None:
    """retry-02, retry-04, retry-09: zero is zero, the enqueue wins, and the limit always holds."""
    app, seen = App("cases", broker=broker), []

    @app.job(subject, backoff=0, **declared)
    async def work(ctx: JobContext) -> None:
        seen.append((ctx.attempt, ctx.attempts_made))
        raise ConnectionError

    async with serving(app):
        await work.enqueue(**options)
        (letter,) = await onlooker.wait_for_dead_letters(subject)

    assert [(number + 1, number) for number in range(runs)] == seen
    assert runs == letter["attempts"]


@pytest.mark.parametrize(
    "options", [{"attempts": 0}, {"attempts": -1}, {"retries": -1}, {"retries": 1, "attempts": 2}]
)
async def test_a_number_of_runs_that_cannot_be(
    broker: str, subject: str, options: dict[str, Any]
) -> None:
    """retry-02, retry-09: no runs at all, or both words at once, are refused."""
    app = App("cases", broker=broker)

    @app.job(subject)
    async def work() -> None: ...

    async with app:
        with pytest.raises(BadOption):
            await work.enqueue(**options)


async def test_a_time_out_is_retried(broker: str, subject: str) -> None:
    """retry-06: an attempt that takes too long is a failed one like any other."""
    app = App("cases", broker=broker)

    @app.job(subject, timeout=0.2, retries=2, backoff=0)
    async def work(ctx: JobContext) -> int:
        if ctx.attempt < 3:
            await anyio.sleep(60)
        return ctx.attempt

    async with serving(app):
        job = await work.enqueue()
        assert 3 == await job.result(timeout=10)
        assert ("done", 3) == ((await job.state()).state, (await job.state()).attempt)


async def test_a_time_out_of_the_last_attempt(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """retry-13: the last attempt's time-out ends in the dead letters, with the event."""
    app = App("cases", broker=broker)

    @app.job(subject, timeout=0.2, retries=1, backoff=0)
    async def work() -> None:
        await anyio.sleep(60)

    async with serving(app) as served:
        job = await work.enqueue()
        await served.wait_for(JobDeadLettered)
        (letter,) = await onlooker.wait_for_dead_letters(subject)
        assert "failed" == (await job.wait(timeout=5)).state

    assert ("retries", 2, "builtins.TimeoutError") == (
        letter["reason"],
        letter["attempts"],
        letter["error_type"],
    )


def test_the_longest_time_to_the_dead_letters_can_be_told() -> None:
    """retry-12: the defaults are small, and a handle tells the waits."""
    app = App("cases", broker="memory:")

    @app.job("work")
    async def work() -> None: ...

    assert (1, 2, 4) == work.retry_delays
    assert 3 == len(work.retry_delays) == work.spec.options.retries


async def test_an_outage_of_two_seconds(broker: str, subject: str) -> None:
    """nak-02: with the default policy a short outage does not use up the retries."""
    app, attempts = App("cases", broker=broker), []

    @app.job(subject)
    async def work(ctx: JobContext) -> int:
        attempts.append(time.monotonic())
        if attempts[-1] - attempts[0] < 1.4:
            raise ConnectionError
        return ctx.attempt

    async with serving(app):
        job = await work.enqueue()
        assert await job.result(timeout=20) <= 4

    assert all(later - earlier > 0.4 for earlier, later in pairwise(attempts))


class Panic(BaseException):
    """What extensions written in Rust raise."""


def raising(error: BaseException) -> Callable[[], Coroutine[Any, Any, None]]:
    async def broken() -> None:
        raise error

    return broken


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


async def leave_a_scope_open() -> None:
    anyio.CancelScope().__enter__()
    raise ValueError("no")


async def lines() -> AsyncGenerator[int, None]:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        yield 1


async def leave_a_generator_open() -> None:
    async for _ in lines():
        raise ValueError("no")


async def fail_beside_a_generator() -> None:
    async for _ in lines():
        async with anyio.create_task_group() as group:
            group.cancel_scope.cancel()
            await anyio.sleep_forever()
        raise ValueError("no")


BROKEN = [
    pytest.param(raising(asyncio.CancelledError()), id="CancelledError"),
    pytest.param(raising(SystemExit(3)), id="SystemExit"),
    pytest.param(raising(KeyboardInterrupt()), id="KeyboardInterrupt"),
    pytest.param(raising(Panic()), id="BaseException"),
    pytest.param(raising(GeneratorExit()), id="GeneratorExit"),
    pytest.param(raising(ExceptionGroup("two", [ValueError(), OSError()])), id="ExceptionGroup"),
    pytest.param(raising(BaseExceptionGroup("one", [SystemExit(3)])), id="BaseExceptionGroup"),
    pytest.param(cancel_itself, id="it cancels its own task"),
    pytest.param(leave_a_scope_open, id="it leaves a cancel scope open"),
    pytest.param(leave_a_generator_open, id="it leaves a generator open"),
    pytest.param(fail_beside_a_generator, id="it cancels a group beside an open generator"),
]


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_job_that_does_its_worst(
    broker: str,
    subject: str,
    onlooker: Onlooker,
    broken: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """cancel-03, aio-02: whatever a handler lets out ends its own run alone, as a failed one."""
    app, ended = App("cases", broker=broker), []
    go_on = anyio.Event()

    @app.job(subject, retries=0, concurrency=10)
    async def work(number: int) -> None:
        if number == 0:
            await broken()
        await go_on.wait()
        ended.append(number)

    async with serving(app) as served:
        for number in range(10):
            await work.enqueue(number)
        (letter,) = await onlooker.wait_for_dead_letters(subject)
        go_on.set()
        await until(lambda: len(ended) == 9, what=f"the other nine, ended {ended}")
        for number in range(10, 30):
            await work.enqueue(number)
        await until(lambda: len(ended) == 29, what=f"the next jobs, ended {ended}")
        await onlooker.wait_until_empty(subject)

    assert list(range(1, 30)) == sorted(ended)
    assert ("retries", 0) == (letter["reason"], letter["payload"])
    assert 29 == len(served.those(JobDone))


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.parametrize("track", [True, False])
@pytest.mark.parametrize("raises", [False, True])
async def test_a_shutdown_is_not_retried(
    broker: str, subject: str, raises: bool, track: bool, retries: int
) -> None:
    """retry-08: a cancellation ends the run and costs no attempt, whatever retry_on says."""
    app, attempts = App("cases", broker=broker), []

    @app.job(subject, retry_on=lambda error: True, backoff=0, track=track, retries=retries)
    async def work(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            try:
                await anyio.sleep(60)
            finally:
                if raises:
                    raise RuntimeError("the cleanup failed")

    async with serving(app, drain_timeout=0) as served:
        job = await work.enqueue()
        await until(lambda: attempts, what="the run")
    assert [1] == attempts
    assert [] == served.those(JobRetried)

    async with serving(app):
        await until(lambda: len(attempts) == 2, what="the next worker's run")
    assert [1, 1] == attempts
    assert job.id


async def test_a_run_that_ends_well_at_a_shutdown_is_done(broker: str, subject: str) -> None:
    """retry-08: a handler that cleans up and returns is not run again, and its key is free."""
    app, begun = App("cases", broker=broker), anyio.Event()

    @app.job(subject, track=False)
    async def work() -> None:
        begun.set()
        with suppress(anyio.get_cancelled_exc_class()):
            await anyio.sleep(60)

    async with serving(app, drain_timeout=0) as served:
        await work.enqueue(unique="key")
        await begun.wait()
    assert 1 == len(served.those(JobDone))

    async with app:
        assert not (await work.enqueue(unique="key")).duplicate
