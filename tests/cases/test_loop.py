"""What other schedulers did with clocks, stalls, restarts and overlaps; on a virtual clock."""

from __future__ import annotations

from datetime import datetime, timedelta

import anyio
import pytest

from mega.adapters.memory import MemoryBroker
from mega.context import ScheduleContext
from mega.events import ScheduleMisfired, ScheduleRun, ScheduleSkipped
from mega.group import Group
from mega.options import CatchUp
from mega.testing import EPOCH, VirtualClock
from tests.unit.runtime.schedulers import Process, after, processes


class Ticking:
    """A group with one schedule, the clock it runs by, and what it did."""

    def __init__(
        self, cron: str, *, lasts: float = 0.0, start: datetime = EPOCH, **options: object
    ):
        self.group, self.clock = Group(), VirtualClock(start)
        self.ticks: list[datetime | None] = []
        self.starts: list[datetime] = []
        self.lateness: list[float] = []

        @self.group.schedule(cron, timezone="UTC", name="case", **options)  # type: ignore[call-overload]
        async def case(ctx: ScheduleContext) -> None:
            self.ticks.append(ctx.due_at)
            self.starts.append(self.clock.now())
            self.lateness.append(ctx.lateness)
            if lasts:
                await self.clock.sleep(lasts)

    async def run(self, seconds: float, *, broker: MemoryBroker | None = None) -> Process:
        """Run one scheduler for so long, and return it."""
        async with processes(self.group, self.clock, "one", broker=broker) as (one,):
            await self.clock.advance(seconds)
        return one


async def test_a_clock_set_back_two_minutes() -> None:
    """cron-094: it is quiet until the clock has passed its last tick again, and then on time."""
    case = Ticking("*/10 * * * * *")
    async with processes(case.group, case.clock, "one"):
        await case.clock.advance(31)
        case.clock.step(-120)
        await case.clock.advance(119)
        assert [after(10), after(20), after(30)] == case.ticks
        await case.clock.advance(20)
    assert [after(40), after(50)] == case.ticks[3:]
    assert case.ticks == case.starts


async def test_a_clock_set_back_an_hour_for_a_minute() -> None:
    """cron-096: no sleep is longer than half a minute, so the clock's return is seen in time."""
    case = Ticking("*/5 * * * *")
    async with processes(case.group, case.clock, "one"):
        await case.clock.advance(310)
        case.clock.step(-3600)
        await case.clock.advance(60)
        case.clock.step(3600)
        await case.clock.advance(300)
    assert [after(300), after(600)] == case.ticks == case.starts


@pytest.mark.parametrize("catch_up", ["one", "skip", "all"])
@pytest.mark.parametrize("late", [1.209, 1.776])
async def test_a_tick_that_is_late_by_a_moment(catch_up: CatchUp, late: float) -> None:
    """cron-100, cron-101: it runs whatever catch_up says, and tells how late it is."""
    case = Ticking("* * * * *", catch_up=catch_up)
    async with processes(case.group, case.clock, "one") as (one,):
        await case.clock.advance(45)
        case.clock.step(late)  # the loop's timer goes off that much too late
        await case.clock.advance(15)
        assert [] == one.those(ScheduleMisfired)
    assert [after(60)] == case.ticks
    assert [pytest.approx(late)] == case.lateness


async def test_a_restart_across_a_tick() -> None:
    """cron-103: the last decided tick is kept in the store, so one that fell between is run."""
    case = Ticking("0 15 * * *", start=EPOCH + timedelta(hours=14))
    async with MemoryBroker(case.clock) as broker:
        case.clock.step(-24 * 3600)
        await case.run(3600 + 1, broker=broker)  # yesterday's tick
        case.clock.step(24 * 3600 - 12)
        await case.run(1, broker=broker)  # it goes down at 14:59:50
        await case.clock.advance(30)
        await case.run(1, broker=broker)
    today = EPOCH + timedelta(hours=15)
    assert [today - timedelta(days=1), today] == case.ticks
    assert today + timedelta(seconds=20) == case.starts[-1]


async def test_ten_restarts() -> None:
    """cron-106: a schedule is known by its name, so restarts add no second series."""
    case = Ticking("*/2 * * * * *")
    async with MemoryBroker(case.clock) as broker:
        for _ in range(10):
            await case.run(4, broker=broker)
    assert [after(2 * number) for number in range(1, 21)] == case.ticks


async def test_a_timer_that_goes_off_a_moment_too_early() -> None:
    """cron-108: the clock is read after each wake, and a tick that is not due yet is waited for."""
    case = Ticking("* * * * *")
    async with processes(case.group, case.clock, "one"):
        await case.clock.advance(45)
        case.clock.step(-0.001)  # so that its timer wakes it at 59.999
        await case.clock.advance(15)
        assert [] == case.ticks
        await case.clock.advance(1)
    assert [after(60)] == case.ticks


async def test_a_run_that_is_over_at_once() -> None:
    """cron-109: the next tick is the one after that tick, not one after a truncated now."""
    case = Ticking("0 3 * * *", start=EPOCH + timedelta(hours=2, minutes=59, seconds=59.6))
    await case.run(2 * 86_400)
    third = EPOCH + timedelta(hours=3)
    assert [third, third + timedelta(days=1)] == case.ticks


async def test_a_tick_at_exactly_now() -> None:
    """cron-111: a tick at this very instant is due."""
    case = Ticking("0 9 * * *", start=EPOCH + timedelta(hours=8, minutes=59, seconds=30))
    await case.run(30)
    assert [EPOCH + timedelta(hours=9)] == case.ticks


async def test_an_event_loop_that_was_blocked() -> None:
    """cron-112: nothing runs twice, of the ticks missed the last one runs, and it says so."""
    case = Ticking("* * * * * *")
    async with processes(case.group, case.clock, "one") as (one,):
        await case.clock.advance(3)
        case.clock.step(2.5)
        await case.clock.advance(1.5)
        (misfire,) = one.those(ScheduleMisfired)
    assert [after(n) for n in (1, 2, 3, 6, 7)] == case.ticks
    assert (after(6), after(4)) == (misfire.due_at, misfire.missed_since)


@pytest.mark.parametrize(
    ("cron", "lasts", "seconds", "ran", "skipped"),
    [
        pytest.param("*/10 * * * *", 900, 2400, [600, 1800], [1200, 2400], id="a quarter hour"),
        pytest.param("*/3 * * * * *", 12.5, 19, [3, 18], [6, 9, 12, 15], id="twelve seconds"),
        pytest.param("*/2 * * * * *", 5, 13, [2, 8], [4, 6, 10, 12], id="five seconds"),
    ],
)
async def test_a_run_longer_than_its_period(
    cron: str, lasts: float, seconds: float, ran: list[float], skipped: list[float]
) -> None:
    """cron-114, cron-115, cron-116: ticks that come meanwhile are gone, each with an event."""
    case = Ticking(cron, lasts=lasts)
    async with processes(case.group, case.clock, "one") as (one,):
        await case.clock.advance(seconds)
        skips = one.those(ScheduleSkipped)
        assert [after(each) for each in skipped] == [skip.due_at for skip in skips]
        assert len(ran) == len(one.those(ScheduleRun))
    assert [after(each) for each in ran] == case.ticks == case.starts


async def test_an_interval_longer_than_the_life_of_a_process() -> None:
    """cron-119: intervals are counted from the epoch, so restarts don't put them off."""
    group, clock, ticks = Group(), VirtualClock(), []

    @group.schedule(every=3600)
    async def hourly(ctx: ScheduleContext) -> None:
        ticks.append(ctx.due_at)

    async with MemoryBroker(clock) as broker:
        for _ in range(9):
            async with processes(group, clock, "one", broker=broker):
                await clock.advance(1200)
    assert [after(3600), after(7200), after(10_800)] == ticks


@pytest.mark.parametrize("stops_at", [61, 60 + 29])
async def test_a_stop_during_the_jitter(stops_at: float) -> None:
    """cron-120: the wait ends with the scheduler, and nothing runs after it."""
    case = Ticking("* * * * *", jitter=30)
    async with processes(case.group, case.clock, "one"):
        await case.clock.advance(120)
    (delay,) = [(start - after(60)).total_seconds() for start in case.starts[:1]]
    assert 0 < delay < 30

    stopped = Ticking("* * * * *", jitter=30)
    async with processes(stopped.group, stopped.clock, "one") as (one,):
        await stopped.clock.advance(60 + delay / 2)
        one.draining.set()
        await stopped.clock.advance(stops_at)
        await anyio.wait_all_tasks_blocked()
    assert [] == stopped.ticks
