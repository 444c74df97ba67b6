"""A job is a function that runs later: declared by a decorator, stored by `enqueue`."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from mega import App, JobContext, NotConnected
from mega.errors import BadHandler, BadSubject, PayloadInvalid, PayloadTooLarge


@dataclass
class Email:
    to: str
    sent_at: datetime


async def test_a_job_runs_after_its_enqueue_and_not_inside_it() -> None:
    app, order = App("shop"), []

    @app.job("email.send")
    async def send_email() -> None:
        order.append("handler")

    async with app.test() as t:
        await send_email.enqueue()
        order.append("enqueued")
        await t.drain()

    assert ["enqueued", "handler"] == order


async def test_the_payload_arrives_as_its_declared_type() -> None:
    app, received = App("shop"), []

    @app.job("email.send")
    async def send_email(email: Email) -> None:
        received.append(email)

    email = Email("ada@example.org", datetime(2030, 1, 1, 9, tzinfo=UTC))
    async with app.test() as t:
        await send_email.enqueue(email)
        await t.drain()

    assert [email] == received


async def test_a_wrong_payload_is_refused_at_the_enqueue() -> None:
    app = App("shop")

    @app.job("email.send")
    async def send_email(email: Email) -> None: ...

    async with app.test() as t:
        with pytest.raises(PayloadInvalid, match="Email"):
            await app.enqueue("email.send", {"to": 5})
        assert [] == t.jobs


async def test_the_context_tells_which_run_this_is() -> None:
    app, told = App("shop"), []

    @app.job("email.send", retries=1, backoff=10)
    async def send_email(to: str, ctx: JobContext) -> None:
        told.append((ctx.id, ctx.subject, ctx.attempt, ctx.attempts_made, ctx.is_last_attempt))
        raise ConnectionError("the mail server is away")

    async with app.test() as t:
        job = await send_email.enqueue("ada@example.org")
        await t.advance(10)

    assert [
        (job.id, "email.send", 1, 0, False),
        (job.id, "email.send", 2, 1, True),
    ] == told


async def test_the_context_carries_headers_and_the_time_of_the_enqueue() -> None:
    app, told = App("shop"), []

    @app.job("email.send", retries=1, backoff=60)
    async def send_email(ctx: JobContext) -> None:
        told.append((dict(ctx.headers), ctx.enqueued_at))
        raise ConnectionError("the mail server is away")

    async with app.test() as t:
        enqueued_at = t.clock.now()
        await send_email.enqueue(headers={"Tenant": "acme"})
        await t.advance(60)

    # A retry is another copy, and still the same job.
    assert [({"Tenant": "acme"}, enqueued_at)] * 2 == told


async def test_a_plain_function_runs_in_a_thread() -> None:
    app, threads = App("shop"), []

    @app.job("report.print")
    def print_report() -> None:
        threads.append(threading.current_thread())

    async with app.test() as t:
        await print_report.enqueue()
        await t.drain()

    assert [False] == [thread is threading.main_thread() for thread in threads]


async def test_several_jobs_run_one_after_the_other_unless_told_otherwise() -> None:
    app = App("shop")
    running = peak = 0

    @app.job("email.send")
    async def send_email(number: int, ctx: JobContext) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await clock.sleep(1)
        running -= 1

    async with app.test() as t:
        clock = t.clock
        for number in range(3):
            await send_email.enqueue(number)
        await t.advance(3)
        assert 1 == peak
        assert ["done"] * 3 == [record.state for record in t.jobs]


async def test_concurrency_is_how_many_run_at_once() -> None:
    app = App("shop")
    running = peak = 0

    @app.job("email.send", concurrency=2)
    async def send_email(number: int) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await clock.sleep(1)
        running -= 1

    async with app.test() as t:
        clock = t.clock
        for number in range(6):
            await send_email.enqueue(number)
        await t.advance(3)
        assert 2 == peak
        assert ["done"] * 6 == [record.state for record in t.jobs]


async def test_a_handler_can_be_called_in_place() -> None:
    app = App("shop")

    @app.job("numbers.add")
    async def add(numbers: list[int]) -> int:
        return sum(numbers)

    @app.job("numbers.double")
    def double(number: int) -> int:
        return number * 2

    assert 6 == await add([1, 2, 3])
    assert 8 == double(4)


async def test_a_job_can_be_enqueued_by_its_subject() -> None:
    app, received = App("shop"), []

    @app.job("email.send")
    async def send_email(to: str) -> None:
        received.append(to)

    async with app.test() as t:
        await app.enqueue("email.send", "ada@example.org")
        await app.enqueue(send_email, "bob@example.org")
        await t.drain()

    assert ["ada@example.org", "bob@example.org"] == received


async def test_a_job_can_enqueue_the_next_one() -> None:
    app, order = App("shop"), []

    @app.job("order.pay")
    async def pay(order_id: int) -> None:
        order.append(f"paid {order_id}")
        await ship.enqueue(order_id)

    @app.job("order.ship")
    async def ship(order_id: int) -> None:
        order.append(f"shipped {order_id}")

    async with app.test() as t:
        await pay.enqueue(7)
        await t.drain()

    assert ["paid 7", "shipped 7"] == order


async def test_a_function_that_is_not_a_job_can_not_be_enqueued() -> None:
    app = App("shop")

    async def send_email(to: str) -> None: ...

    async with app.test():
        not_a_job: Any = send_email
        with pytest.raises(BadHandler, match="'send_email' is not a job"):
            await app.enqueue(not_a_job, "ada@example.org")


async def test_enqueue_outside_a_running_app_is_refused() -> None:
    app = App("shop")

    @app.job("email.send")
    async def send_email() -> None: ...

    with pytest.raises(NotConnected, match="'shop' has none") as refused:
        await send_email.enqueue()
    assert "async with app:" in refused.value.hint


@pytest.mark.parametrize("subject", ["$JS.API.STREAM.DELETE.JOBS", "mega.sched.a.b", "a b", "a.*"])
async def test_enqueue_takes_no_text_that_is_no_subject(subject: str) -> None:
    async with App("shop").test(), App("desk", broker="memory:") as desk:
        with pytest.raises(BadSubject):
            await desk.enqueue(subject, 1)


async def test_a_payload_leaves_room_for_what_a_dead_letter_adds() -> None:
    app = App("shop")

    @app.job("email.send", retries=0)
    async def send_email(text: str) -> None:
        raise ValueError("no")

    async with app.test() as t:
        with pytest.raises(PayloadTooLarge):
            await send_email.enqueue("x" * 1_030_000)
        await send_email.enqueue("x" * 1_000_000)
        await t.drain()
        assert 1 == len(t.dead_letters("email.send"))
