"""When a job runs: at once, after a delay, at an instant, and only once for an id."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from mega import App, JobContext
from mega.errors import BadOption


async def test_a_delay_puts_the_first_run_off() -> None:
    app, started_at = App("shop"), []

    @app.job("email.send")
    async def send_email() -> None:
        started_at.append(t.clock.monotonic())

    async with app.test() as t:
        await send_email.enqueue(delay=60)
        await t.advance(59)
        assert [] == started_at
        await t.advance(1)

    assert [60] == started_at


async def test_a_delay_can_be_a_timedelta() -> None:
    app, started_at = App("shop"), []

    @app.job("email.send")
    async def send_email() -> None:
        started_at.append(t.clock.monotonic())

    async with app.test() as t:
        await send_email.enqueue(delay=timedelta(days=2))
        await t.advance(3 * 24 * 3600)

    assert [2 * 24 * 3600] == started_at


async def test_at_is_an_instant_in_any_zone() -> None:
    app, started_at = App("shop"), []

    @app.job("email.send")
    async def send_email() -> None:
        started_at.append(t.clock.now())

    async with app.test() as t:
        seoul = timezone(timedelta(hours=9))
        at = (t.clock.now() + timedelta(hours=1)).astimezone(seoul)
        await send_email.enqueue(at=at)
        await t.advance(2 * 3600)

    assert [at] == started_at


async def test_an_instant_that_has_passed_is_now() -> None:
    app, runs = App("shop"), []

    @app.job("email.send")
    async def send_email() -> None:
        runs.append(1)

    async with app.test() as t:
        await send_email.enqueue(at=t.clock.now() - timedelta(days=1))
        await t.drain()

    assert [1] == runs


async def test_an_instant_without_a_zone_is_refused() -> None:
    app = App("shop")

    @app.job("email.send")
    async def send_email() -> None: ...

    async with app.test():
        with pytest.raises(BadOption, match="is not an aware datetime"):
            await send_email.enqueue(at=datetime(2030, 1, 2))


async def test_a_delay_and_an_instant_together_are_refused() -> None:
    app = App("shop")

    @app.job("email.send")
    async def send_email() -> None: ...

    async with app.test() as t:
        with pytest.raises(BadOption, match="both delay= and at="):
            await send_email.enqueue(delay=1, at=t.clock.now())


async def test_the_same_id_twice_runs_once() -> None:
    app, runs = App("shop"), []

    @app.job("order.pay")
    async def pay(order_id: int) -> None:
        runs.append(order_id)

    async with app.test() as t:
        first = await pay.enqueue(7, id="order-7")
        second = await pay.enqueue(7, id="order-7")
        await t.drain()
        third = await pay.enqueue(7, id="order-7")
        await t.drain()

    assert [7] == runs
    assert ["order-7"] * 3 == [first.id, second.id, third.id]
    assert [False, True, True] == [first.duplicate, second.duplicate, third.duplicate]


async def test_jobs_without_an_id_are_all_different() -> None:
    app, runs = App("shop"), []

    @app.job("order.pay")
    async def pay(order_id: int) -> None:
        runs.append(order_id)

    async with app.test() as t:
        jobs = [await pay.enqueue(7) for _ in range(3)]
        await t.drain()

    assert [7, 7, 7] == runs
    assert 3 == len({job.id for job in jobs})


async def test_an_unknown_option_is_refused_with_what_was_meant() -> None:
    app = App("shop")

    @app.job("email.send")
    async def send_email() -> None: ...

    async with app.test():
        with pytest.raises(BadOption, match="no option 'dely'") as refused:
            await send_email.enqueue(dely=5)  # type: ignore[call-overload]
        assert 'Did you mean "delay"?' == refused.value.hint


async def test_a_delayed_job_knows_when_it_was_enqueued() -> None:
    app, seen = App("shop"), []

    @app.job("report.build")
    async def build(ctx: JobContext) -> None:
        seen.append(ctx.enqueued_at)

    async with app.test() as t:
        enqueued_at = t.clock.now()
        await build.enqueue(delay=60)
        await t.advance(60)

    assert [enqueued_at] == seen
