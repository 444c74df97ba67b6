"""What a program does with a schedule: run it now, pause it, ask how it ran and when it will."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from mega import App, NotConnected, ScheduleContext
from mega.events import (
    ScheduleDone,
    ScheduleRun,
    ScheduleSkipped,
)
from mega.testing import EPOCH
from tests.fundamentals.schedules import HOUR, happened


async def test_run_now_runs_once_whatever_the_time() -> None:
    app, told = App("shop"), []

    @app.schedule("0 3 * * *", timezone="UTC")
    async def nightly(ctx: ScheduleContext) -> None:
        told.append(ctx.due_at)

    async with app.test() as t:
        await nightly.run_now()
        await t.advance(0)
        assert [None] == told
        assert [ScheduleRun, ScheduleDone] == happened(t)


async def test_run_now_says_whether_it_ran() -> None:
    app = App("shop")

    @app.schedule("0 3 * * *", timezone="UTC", lock=True)
    async def nightly() -> None:
        assert not await nightly.run_now()  # this run holds the lock

    async with app.test():
        assert await nightly.run_now()


async def test_run_now_raises_what_the_function_raised() -> None:
    app = App("shop")

    @app.schedule("0 3 * * *", timezone="UTC")
    async def nightly() -> None:
        raise ConnectionError("the archive is away")

    async with app.test():
        with pytest.raises(ConnectionError, match="the archive is away"):
            await nightly.run_now()


async def test_run_now_needs_a_running_app() -> None:
    app = App("shop")

    @app.schedule("0 3 * * *", timezone="UTC")
    async def nightly() -> None: ...

    with pytest.raises(NotConnected):
        await nightly.run_now()


async def test_a_schedule_can_be_called_in_place() -> None:
    app = App("shop")

    @app.schedule("0 3 * * *", timezone="UTC")
    async def nightly() -> str:
        return "cleaned"

    assert "cleaned" == await nightly()


def test_next_runs_lists_the_ticks_to_come() -> None:
    app = App("shop")

    @app.schedule("0 3 * * *", timezone="UTC")
    async def nightly() -> None: ...

    before = datetime.now(UTC)
    ticks = nightly.next_runs(3)
    assert before < ticks[0] <= before + timedelta(days=1, minutes=1)
    assert [timedelta(days=1)] * 2 == [later - earlier for earlier, later in pairwise(ticks)]
    assert {(3, 0)} == {(tick.hour, tick.minute) for tick in ticks}


async def test_in_a_test_they_are_those_of_its_clock() -> None:
    app = App("shop")

    @app.schedule("0 3 * * *", timezone="UTC")
    async def nightly() -> None: ...

    async with app.test() as t:
        assert [EPOCH + timedelta(hours=3)] == nightly.next_runs()
        await t.advance(24 * HOUR)
        assert [EPOCH + timedelta(hours=27)] == nightly.next_runs()

    assert nightly.next_runs()[0] < EPOCH


async def test_run_now_of_a_schedule_over_a_job_enqueues_it() -> None:
    app, runs = App("shop"), []

    @app.schedule("0 3 * * *", timezone="UTC", name="nightly")
    @app.job("report.send")
    async def send_report() -> None:
        runs.append(1)

    async with app.test() as t:
        await send_report.run_now()
        await send_report.run_now()
        await t.drain()

    assert [1, 1] == runs


async def test_a_paused_schedule_skips_its_ticks_until_it_is_resumed() -> None:
    app, runs = App("shop"), []

    @app.schedule(every=60)
    async def minutely() -> None:
        runs.append(t.clock.monotonic())

    async with app.test() as t:
        await minutely.pause()
        assert await minutely.is_paused()
        await t.advance(120)
        skips = [event.reason for event in t.events if isinstance(event, ScheduleSkipped)]
        await minutely.resume()
        assert not await minutely.is_paused()
        await t.advance(60)

    assert ["paused", "paused"] == skips
    assert [180] == runs


async def test_a_handle_knows_how_the_last_run_ended() -> None:
    app = App("shop")

    @app.schedule(every=60)
    async def minutely() -> None:
        raise ConnectionError("the archive is away")

    async with app.test() as t:
        assert await minutely.last_run() is None
        await t.advance(60)
        last = await minutely.last_run()

    tick = EPOCH + timedelta(seconds=60)
    assert last is not None
    assert (tick, "ConnectionError: the archive is away") == (last.tick, last.error)
    assert tick + timedelta(seconds=60) == last.next_at
