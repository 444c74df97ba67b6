"""The virtual clock, and what waits for the end of all that runs in real time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from mega import App
from mega.events import ScheduleDone
from mega.ports import Clock
from mega.testing import VirtualClock

SPRING = datetime(2026, 3, 29, tzinfo=UTC)


def test_it_is_a_clock_that_starts_where_it_is_told() -> None:
    clock: Clock = VirtualClock(SPRING)
    assert clock.now() == SPRING
    assert 0 == clock.monotonic()


def test_its_instants_are_in_utc() -> None:
    seoul = timezone(timedelta(hours=9))
    now = VirtualClock(datetime(2026, 3, 29, 9, tzinfo=seoul)).now()
    assert (now, now.tzinfo) == (SPRING, UTC)


def test_a_start_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        VirtualClock(datetime(2026, 3, 29))


async def test_it_stands_still_by_itself() -> None:
    clock = VirtualClock(SPRING)
    with anyio.move_on_after(0.02) as real_time:
        await clock.sleep(0.001)
    assert real_time.cancelled_caught
    assert clock.now() == SPRING


async def test_advance_moves_both_times() -> None:
    clock = VirtualClock(SPRING)
    await clock.advance(90)
    await clock.advance(0.5)
    assert SPRING + timedelta(seconds=90.5) == clock.now()
    assert 90.5 == clock.monotonic()


async def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="does not go back"):
        await VirtualClock().advance(-1)


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    clock, woken = VirtualClock(), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((seconds, clock.monotonic()))

    async with anyio.create_task_group() as tasks:
        for seconds in (3, 1, 4, 1.5, 9):
            tasks.start_soon(sleeper, seconds)
        await clock.advance(4)
        assert [(1, 1), (1.5, 1.5), (3, 3), (4, 4)] == woken
        await clock.advance(5)
    assert (9, 9) == woken[-1]


async def test_a_sleeper_that_sleeps_on_is_woken_in_the_same_advance() -> None:
    clock = VirtualClock()
    ticks: list[float] = []

    async def tick() -> None:
        while len(ticks) < 3:
            await clock.sleep(60)
            ticks.append(clock.monotonic())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        await clock.advance(3600)
    assert [60, 120, 180] == ticks


@pytest.mark.parametrize("links", [1, 5, 100])
async def test_what_a_sleeper_sets_off_ends_before_time_goes_on(links: int) -> None:
    clock, ended_at = VirtualClock(), []

    async def pass_on(mine: anyio.Event, following: anyio.Event) -> None:
        await mine.wait()
        await checkpoint()
        following.set()

    async def note_the_end(last: anyio.Event) -> None:
        await last.wait()
        ended_at.append(clock.monotonic())

    async with anyio.create_task_group() as tasks:
        chain = [anyio.Event() for _ in range(links + 1)]
        for mine, following in pairwise(chain):
            tasks.start_soon(pass_on, mine, following)
        tasks.start_soon(note_the_end, chain[-1])
        tasks.start_soon(clock.sleep, 2)
        await clock.advance(1)
        chain[0].set()
        await clock.advance(3)
    assert [1] == ended_at


async def test_a_task_that_was_just_started_is_asleep_before_time_moves() -> None:
    clock = VirtualClock()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clock.sleep, 1)
        await clock.advance(1)


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock, woken = VirtualClock(), []

    async def sleeper() -> None:
        await clock.sleep(1)
        woken.append(1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleeper)
        await clock.advance(0.5)
        tasks.cancel_scope.cancel()
    await clock.advance(10)
    assert [] == woken
    assert [] == clock._sleepers


@pytest.mark.parametrize("seconds", [0, -1])
async def test_sleeping_for_no_time_returns(seconds: float) -> None:
    await VirtualClock().sleep(seconds)


async def test_a_step_moves_the_wall_clock_alone() -> None:
    clock = VirtualClock(SPRING)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clock.sleep, 60)
        await clock.advance(1)
        clock.step(-3600)
        assert SPRING + timedelta(seconds=1 - 3600) == clock.now()
        assert 1 == clock.monotonic()
        await clock.advance(59)


async def test_a_year_is_a_loop_of_advances() -> None:
    clock, ticks = VirtualClock(SPRING), 0

    async def every_six_hours() -> None:
        nonlocal ticks
        while True:
            await clock.sleep(6 * 3600)
            ticks += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(every_six_hours)
        for _ in range(365):
            await clock.advance(24 * 3600)
        tasks.cancel_scope.cancel()
    assert ticks == 365 * 4
    assert SPRING + timedelta(days=365) == clock.now()


def in_a_thread() -> None:
    time.sleep(0.2)


async def in_real_time() -> None:
    await anyio.sleep(0.2)


@pytest.mark.parametrize("options", [{}, {"lock": True}, {"retries": 1, "timeout": 60}])
@pytest.mark.parametrize("wait", [in_a_thread, in_real_time])
async def test_drain_waits_for_schedules_that_go_on_in_real_time(
    wait: Any, options: dict[str, Any]
) -> None:
    app = App("shop")
    app.schedule(every=60, **options)(wait)
    async with app.test() as t:
        await t.advance(60)
        await t.drain()
        await t.advance(0)
        assert [wait.__name__] == [e.name for e in t.events if isinstance(e, ScheduleDone)]


async def test_drain_waits_for_the_jobs_that_such_a_schedule_enqueues() -> None:
    app, sent = App("shop"), []

    @app.job("email.send")
    def send(to: str) -> None:
        sent.append(to)

    @app.schedule(every=60)
    def remind() -> None:
        time.sleep(0.02)
        send.enqueue_sync("ada")

    async with app.test() as t:
        await t.advance(60)
        await t.drain()
    assert ["ada"] == sent


@pytest.mark.parametrize("lock", [None, True])
async def test_drain_does_not_wait_for_schedules_that_wait_for_virtual_time(lock: Any) -> None:
    app, starts = App("shop"), []

    @app.schedule(every=60, retries=1, lock=lock)
    async def shaky() -> None:
        starts.append(t.clock.monotonic())
        raise ConnectionError

    @app.schedule(every=60, lock=lock)
    async def slow() -> None:
        await t.clock.sleep(30)

    async with app.test() as t:
        await t.advance(60)
        with anyio.fail_after(10):
            await t.drain()
        assert [60] == starts
        await t.advance(5)
        assert 2 == len(starts)
