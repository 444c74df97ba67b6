"""What a tick does when the last run goes on or failed, when it was missed, or is to be put off."""

from __future__ import annotations

from datetime import timedelta

import anyio
import pytest

from mega import App, ScheduleContext
from mega.events import (
    ScheduleDone,
    ScheduleFailed,
    ScheduleMisfired,
    ScheduleRun,
    ScheduleSkipped,
)
from mega.testing import EPOCH
from tests.fundamentals.schedules import HOUR, happened


async def test_a_tick_that_comes_while_the_last_run_goes_on_is_skipped() -> None:
    app, runs = App("shop"), []

    @app.schedule(every=60)
    async def slow() -> None:
        runs.append(t.clock.monotonic())
        await t.clock.sleep(90)

    async with app.test() as t:
        await t.advance(180)
        skips = [event for event in t.events if isinstance(event, ScheduleSkipped)]

    assert [60, 180] == runs
    assert ["running"] == [skip.reason for skip in skips]
    assert [EPOCH + timedelta(seconds=120)] == [skip.due_at for skip in skips]


async def test_a_lock_keeps_runs_apart_that_are_started_by_hand() -> None:
    app, runs = App("shop"), []

    @app.schedule("0 3 * * *", timezone="UTC", lock=True)
    async def nightly() -> None:
        runs.append("begins")
        await t.clock.sleep(300)
        runs.append("ends")

    async with app.test() as t, anyio.create_task_group() as tasks:
        tasks.start_soon(nightly.run_now)
        await t.advance(200)  # longer than the lock's ttl: it is renewed
        await nightly.run_now()
        assert ["begins"] == runs
        await t.advance(100)
        assert [ScheduleRun, ScheduleSkipped, ScheduleDone] == happened(t)
        await t.advance(0)

    assert ["begins", "ends"] == runs


async def test_a_lock_is_given_up_after_a_failed_run() -> None:
    app, runs = App("shop"), []

    @app.schedule(every=60, lock=True)
    async def minutely() -> None:
        runs.append(t.clock.monotonic())
        raise ConnectionError

    async with app.test() as t:
        await t.advance(60)
        with pytest.raises(ConnectionError):
            await minutely.run_now()

    assert [60, 60] == runs


async def test_a_tick_that_was_missed_runs_once_and_late() -> None:
    app, told = App("shop"), []

    @app.schedule("*/5 * * * *", timezone="UTC")
    async def often(ctx: ScheduleContext) -> None:
        told.append((ctx.due_at, ctx.lateness))

    async with app.test() as t:
        await t.advance(60)
        t.clock.step(HOUR)  # as when the machine was suspended
        await t.advance(30)
        (misfire,) = [event for event in t.events if isinstance(event, ScheduleMisfired)]

    latest = EPOCH + timedelta(hours=1)
    assert [(latest, 90)] == told
    assert (latest, EPOCH + timedelta(minutes=5)) == (misfire.due_at, misfire.missed_since)


async def test_a_queued_tick_runs_right_after_the_run_that_it_met() -> None:
    app, runs = App("shop"), []

    @app.schedule(every=60, overlap="queue")
    async def slow() -> None:
        runs.append(t.clock.monotonic())
        await t.clock.sleep(90)

    async with app.test() as t:
        await t.advance(200)

    assert [60, 150] == runs


async def test_runs_may_overlap_where_that_is_wanted() -> None:
    app, runs = App("shop"), []

    @app.schedule(every=60, overlap="allow")
    async def slow() -> None:
        runs.append(t.clock.monotonic())
        await t.clock.sleep(90)

    async with app.test() as t:
        await t.advance(200)

    assert [60, 120, 180] == runs


async def test_missed_ticks_can_all_be_caught_up() -> None:
    app, told = App("shop"), []

    @app.schedule("*/15 * * * *", timezone="UTC", catch_up="all")
    async def often(ctx: ScheduleContext) -> None:
        told.append(ctx.due_at)

    async with app.test() as t:
        await t.advance(60)
        t.clock.step(HOUR)
        await t.advance(30)

    assert [EPOCH + timedelta(minutes=minutes) for minutes in (15, 30, 45, 60)] == told


async def test_missed_ticks_can_be_left_out() -> None:
    app, runs = App("shop"), []

    @app.schedule("0 * * * *", timezone="UTC", catch_up="skip", grace=10)
    async def hourly() -> None:
        runs.append(1)

    async with app.test() as t:
        await t.advance(60)
        t.clock.step(HOUR)
        await t.advance(30)
        assert [ScheduleMisfired] == happened(t)

    assert [] == runs


async def test_jitter_puts_the_start_off_and_leaves_the_tick() -> None:
    app, told = App("shop"), []

    @app.schedule(every=60, jitter=20)
    async def minutely(ctx: ScheduleContext) -> None:
        told.append((ctx.due_at, ctx.lateness))

    async with app.test() as t:
        await t.advance(150)

    (first, delay), (second, same) = told
    assert (EPOCH + timedelta(seconds=60), EPOCH + timedelta(seconds=120)) == (first, second)
    assert 0 < delay < 20
    assert delay == pytest.approx(same)


async def test_a_failed_run_can_be_tried_again_in_place() -> None:
    app, told = App("shop"), []

    @app.schedule(every=60, retries=3)
    async def minutely(ctx: ScheduleContext) -> None:
        told.append(ctx.due_at)
        if len(told) < 3:
            raise ConnectionError("the archive is away")

    async with app.test() as t:
        await t.advance(70)
        assert [ScheduleRun, ScheduleFailed, ScheduleFailed, ScheduleDone] == happened(t)

    assert [EPOCH + timedelta(seconds=60)] * 3 == told
