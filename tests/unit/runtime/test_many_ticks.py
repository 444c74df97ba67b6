"""Much time and many schedules: each tick is accounted for, none runs twice or out of order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mega.adapters.memory import MemoryBroker
from mega.context import ScheduleContext
from mega.cron.timetable import CronTimetable
from mega.events import ScheduleMisfired
from mega.group import Group
from mega.options import CatchUp
from mega.runtime.ticks import MOST_CAUGHT_UP, decide
from mega.testing import VirtualClock
from tests.unit.runtime.schedulers import after, processes

MINUTE = timedelta(minutes=1)
CHANGES = {
    "Europe/Berlin": [datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)],
    "Australia/Lord_Howe": [
        datetime(2026, 4, 4, 15, tzinfo=UTC),
        datetime(2026, 10, 3, 15, 30, tzinfo=UTC),
    ],
}


@pytest.mark.parametrize("zone", CHANGES)
def test_a_year_of_minutes_has_each_of_them_once(zone: str) -> None:
    """Each real minute of the year is one tick, also where the local clock jumps or repeats."""
    timetable = CronTimetable("* * * * *", zone)
    now = last = start = datetime(2026, 1, 1, tzinfo=UTC)
    due, end, ticks = None, datetime(2027, 1, 1, tzinfo=UTC), list[datetime]()
    while now < end:
        decision = decide(timetable, last, now, due=due)
        assert decision.missed_since is None
        ticks += decision.ticks
        last, due = decision.last, decision.following
        assert due is not None
        now = due
    assert 365 * 24 * 60 - 1 == len(ticks)
    assert start + MINUTE == ticks[0]
    assert {MINUTE} == {later - earlier for earlier, later in pairwise(ticks)}


@pytest.mark.parametrize("zone", CHANGES)
async def test_the_scheduler_crosses_the_changes_of_the_clock(zone: str) -> None:
    ticks = list[datetime | None]()

    async def minutely(ctx: ScheduleContext) -> None:
        ticks.append(ctx.due_at)

    for change in CHANGES[zone]:
        group, clock, before = Group(), VirtualClock(change - 120 * MINUTE), len(ticks)
        group.schedule("* * * * *", timezone=zone)(minutely)
        async with processes(group, clock, "one"):
            await clock.advance(4 * 3600)
        expected = [change + number * MINUTE for number in range(-119, 121)]
        assert expected == ticks[before:]


async def test_a_thousand_of_ten_thousand_are_due_at_one_instant() -> None:
    group, clock, started = Group(), VirtualClock(), set[str]()

    async def note(ctx: ScheduleContext) -> None:
        started.add(ctx.name)

    for number in range(9000):
        group.schedule(every=86_400 + number, name=f"rare-{number}")(note)
    for number in range(1000):
        group.schedule("0 3 * * *", timezone="UTC", name=f"nightly-{number}")(note)
    async with processes(group, clock, "one"):
        await clock.advance(3 * 3600 - 1)
        early = {name for name in started if name.startswith("nightly")}
        await clock.advance(1)
        assert set() == early
        assert {f"nightly-{number}" for number in range(1000)} <= started


#: What happens next: time passes, the wall clock steps, or the process is down for a while.
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["pass", "step", "down"]),
        st.integers(min_value=-10_000, max_value=10_000),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(EVENTS, st.sampled_from(["one", "skip", "all"]), st.sampled_from([7, 60, 1000]))
def test_no_tick_runs_twice_or_out_of_order(
    events: list[tuple[str, int]], catch_up: CatchUp, every: int
) -> None:
    """Whatever the clock does, for steps back of at most three hours in all."""
    timetable = CronTimetable(
        "* * * * *" if every == 60 else f"*/{min(every, 59)} * * * * *", "UTC"
    )
    now = last = datetime(2026, 1, 1, tzinfo=UTC)
    highest, ticks = now, list[datetime]()
    for what, seconds in events:
        step = timedelta(seconds=seconds if what == "step" else abs(seconds))
        until = max(now + step, highest - timedelta(hours=3))
        for moment in (until,) if what != "pass" else (now + (until - now) / 2, until):
            now = moment
            highest = max(highest, now)
            decision = decide(timetable, last, now, catch_up=catch_up)
            assert not decision.is_correction
            assert len(decision.ticks) <= MOST_CAUGHT_UP
            assert all(tick <= now for tick in decision.ticks)
            ticks += decision.ticks
            last = decision.last
    assert sorted(set(ticks)) == ticks


@settings(deadline=None)
@given(st.lists(st.integers(min_value=1, max_value=400), max_size=20))
def test_restarts_lose_no_tick_that_is_to_be_caught_up(absences: list[int]) -> None:
    timetable = CronTimetable("*/10 * * * * *", "UTC")
    now = last = datetime(2026, 1, 1, tzinfo=UTC)
    ticks = list[datetime]()
    for seconds in absences:
        now += timedelta(seconds=seconds)
        decision = decide(timetable, last, now, catch_up="all")
        ticks, last = [*ticks, *decision.ticks], decision.last
    passed = int((now - datetime(2026, 1, 1, tzinfo=UTC)).total_seconds()) // 10
    assert [
        datetime(2026, 1, 1, tzinfo=UTC) + n * timedelta(seconds=10) for n in range(1, passed + 1)
    ] == ticks


async def test_a_week_of_schedulers_that_come_and_go() -> None:
    """Two at a time, one after the other leaving: each tick ran once, or is told as missed."""
    group, clock, ticks, missed = Group(), VirtualClock(), [], list[ScheduleMisfired]()

    @group.schedule(every=600)
    async def often(ctx: ScheduleContext) -> None:
        ticks.append(ctx.due_at)

    async with MemoryBroker(clock) as broker:
        for _ in range(24):
            async with processes(group, clock, "one", "two", broker=broker) as both:
                await clock.advance(5 * 3600 + 30)
                missed += [event for one in both for event in one.those(ScheduleMisfired)]
            await clock.advance(1900)
    skipped = {
        each.missed_since + timedelta(seconds=600 * number)
        for each in missed
        for number in range(int((each.due_at - each.missed_since).total_seconds()) // 600)
        if each.due_at is not None
    }
    last = max(tick for tick in ticks if tick is not None)
    assert len(set(ticks)) == len(ticks)
    every = {
        after(600 * number)
        for number in range(1, int((last - after(0)).total_seconds()) // 600 + 1)
    }
    assert every == {*ticks, *skipped}
