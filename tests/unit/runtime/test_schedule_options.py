"""What the options of a schedule do: jitter, overlap, catch_up, retries, scope, on_lock_error."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from mega.adapters.memory import MemoryBroker
from mega.context import ScheduleContext
from mega.errors import BadOption, LockBackendError
from mega.events import (
    LockStoreDown,
    ScheduleDone,
    ScheduleFailed,
    ScheduleMisfired,
    ScheduleRun,
    ScheduleSkipped,
)
from mega.group import Group
from mega.options import Lock
from mega.testing import VirtualClock
from tests.unit.runtime.schedulers import FaultyBroker, after, processes


class Noted:
    """A group with a schedule that notes `(tick, start, end)`, each at a second of its clock."""

    def __init__(
        self, *, every: float = 10, lasts: float = 0.0, name: str = "noted", **options: Any
    ):
        self.group, self.clock = Group(), VirtualClock()
        self.runs: list[list[float | None]] = []

        @self.group.schedule(every=every, name=name, **options)
        async def noted(ctx: ScheduleContext) -> None:
            run = [seconds(ctx.due_at), self.clock.monotonic()]
            self.runs.append(run)
            await self.clock.sleep(lasts)
            run.append(self.clock.monotonic())


def seconds(instant: datetime | None) -> float | None:
    return None if instant is None else (instant - after(0)).total_seconds()


async def test_a_queued_tick_runs_right_after_the_one_before() -> None:
    noted = Noted(lasts=26, overlap="queue")
    async with processes(noted.group, noted.clock, "one") as (one,):
        await noted.clock.advance(65)
        skipped = [seconds(skip.due_at) for skip in one.those(ScheduleSkipped)]
    assert [[10, 10, 36], [20, 36, 62], [40, 62]] == noted.runs
    assert [30, 50, 60] == skipped


async def test_a_queued_tick_does_not_begin_in_a_drain() -> None:
    noted = Noted(lasts=25, overlap="queue")
    async with processes(noted.group, noted.clock, "one") as (one,):
        await noted.clock.advance(21)
        one.draining.set()
        await noted.clock.advance(100)
    assert [[10, 10, 35]] == noted.runs


async def test_runs_that_may_overlap_do() -> None:
    noted = Noted(lasts=25, overlap="allow")
    async with processes(noted.group, noted.clock, "one") as (one,):
        await noted.clock.advance(45)
        assert [] == one.those(ScheduleSkipped)
    assert [[10, 10, 35], [20, 20, 45], [30, 30], [40, 40]] == noted.runs


async def restarted_after(noted: Noted, absence: float) -> list[ScheduleMisfired]:
    """Run a first tick, be down for so long, and return the misfires of the next process."""
    async with MemoryBroker(noted.clock) as broker:
        async with processes(noted.group, noted.clock, "one", broker=broker):
            await noted.clock.advance(10)
        await noted.clock.advance(absence)
        async with processes(noted.group, noted.clock, "two", broker=broker) as (two,):
            await noted.clock.advance(0)
            return two.those(ScheduleMisfired)


@pytest.mark.parametrize(
    ("options", "absence", "ran", "missed"),
    [
        ({"catch_up": "one"}, 45, [50], [(50, 20)]),
        ({"catch_up": "one"}, 12, [20], []),
        ({"catch_up": "skip"}, 45, [50], [(50, 20)]),
        ({"catch_up": "skip", "grace": 4}, 45, [], [(50, 20)]),
        ({"catch_up": "skip", "grace": 4}, 13, [20], []),
        ({"catch_up": "skip", "grace": 4}, 15, [], [(20, 20)]),
        ({"catch_up": "all"}, 45, [20, 30, 40, 50], [(50, 20)]),
        ({"catch_up": "all"}, 12, [20], []),
        ({"catch_up": "all", "grace": 4}, 45, [20, 30, 40, 50], [(50, 20)]),
        ({"catch_up": "one", "grace": 4}, 15, [20], [(20, 20)]),
    ],
)
async def test_what_becomes_of_missed_ticks(
    options: dict[str, Any], absence: float, ran: list[float], missed: list[tuple[float, float]]
) -> None:
    noted = Noted(**options)
    misfires = await restarted_after(noted, absence)
    assert ran == [tick for tick, *_ in noted.runs[1:]]
    assert missed == [(seconds(each.due_at), seconds(each.missed_since)) for each in misfires]


async def test_missed_ticks_run_in_turn() -> None:
    noted = Noted(catch_up="all", lasts=3, overlap="queue")
    async with MemoryBroker(noted.clock) as broker:
        async with processes(noted.group, noted.clock, "one", broker=broker):
            await noted.clock.advance(13)
        await noted.clock.advance(28)
        async with processes(noted.group, noted.clock, "two", broker=broker):
            await noted.clock.advance(20)
    assert [[20, 41, 44], [30, 44, 47], [40, 47, 50], [50, 50, 53], [60, 60]] == noted.runs[1:]


async def test_at_most_a_hundred_are_caught_up() -> None:
    noted = Noted(catch_up="all")
    (misfire,) = await restarted_after(noted, 2000)
    assert [20 + 10 * number for number in range(100)] == [tick for tick, *_ in noted.runs[1:]]
    assert (2010, 20) == (seconds(misfire.due_at), seconds(misfire.missed_since))


async def test_jitter_is_the_same_at_each_tick_and_in_each_process() -> None:
    delays = set[float]()
    for process in ("one", "two"):
        noted = Noted(every=60, jitter=20)
        async with processes(noted.group, noted.clock, process):
            await noted.clock.advance(200)
        assert [60, 120, 180] == [tick for tick, *_ in noted.runs]
        delays |= {start - tick for tick, start, *_ in noted.runs if start and tick}
    (delay,) = {round(delay, 6) for delay in delays}
    assert 0 < delay < 20


async def test_jitter_keeps_schedules_apart() -> None:
    delays = []
    for number in range(20):
        noted = Noted(every=60, jitter=20, name=f"noted-{number}")
        async with processes(noted.group, noted.clock, "one"):
            await noted.clock.advance(80)
        delays += [start for _, start, *_ in noted.runs]
    assert 20 == len(set(delays))


async def test_a_failed_run_is_run_again_in_place() -> None:
    group, clock, starts = Group(), VirtualClock(), []

    @group.schedule(every=60, retries=2, lock=True)
    async def shaky(ctx: ScheduleContext) -> None:
        starts.append((seconds(ctx.due_at), clock.monotonic()))
        if len(starts) < 3:
            raise ConnectionError("the archive is away")

    async with processes(group, clock, "one") as (one,):
        await clock.advance(70)
        assert [ScheduleRun, ScheduleFailed, ScheduleFailed, ScheduleDone] == one.kinds()
        assert ["retry", "retry"] == [failed.phase for failed in one.those(ScheduleFailed)]
    assert [60, 60, 60] == [tick for tick, _ in starts]
    assert 60 == starts[0][1] < starts[1][1] < starts[2][1] <= 63


async def test_a_run_that_fails_to_the_end_has_failed() -> None:
    group, clock, starts = Group(), VirtualClock(), []

    @group.schedule(every=60, retries=1)
    async def broken() -> None:
        starts.append(clock.monotonic())
        raise ConnectionError("the archive is away")

    async with processes(group, clock, "one") as (one,):
        await clock.advance(70)
        assert ["retry", "run"] == [failed.phase for failed in one.those(ScheduleFailed)]
    assert 2 == len(starts)


async def test_a_schedule_of_each_replica_runs_in_each_process() -> None:
    noted = Noted(scope="replica")
    async with (
        FaultyBroker(noted.clock, "claim", "last_tick") as broker,
        processes(noted.group, noted.clock, "one", "two", broker=broker) as both,
    ):
        await noted.clock.advance(20)
        assert [[ScheduleRun, ScheduleDone] * 2] * 2 == [process.kinds() for process in both]
    assert [10, 10, 20, 20] == [tick for tick, *_ in noted.runs]


async def test_a_tick_that_can_not_be_claimed_runs_when_that_is_wanted() -> None:
    noted = Noted(on_lock_error="run")
    async with (
        FaultyBroker(noted.clock, "claim") as broker,
        processes(noted.group, noted.clock, "one", broker=broker) as (one,),
    ):
        await noted.clock.advance(20)
        assert [LockStoreDown, ScheduleRun, ScheduleDone] * 2 == one.kinds()
    assert [[10, 10, 10], [20, 20, 20]] == noted.runs


async def test_an_outage_of_the_lock_store_is_told_once_and_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "mega")
    noted = Noted()
    async with (
        FaultyBroker(noted.clock, "claim") as broker,
        processes(noted.group, noted.clock, "one", broker=broker) as (one,),
    ):
        await noted.clock.advance(49)
        downs = one.those(LockStoreDown)
        assert [False] + [True] * (len(downs) - 1) == [down.again for down in downs]
        assert 1 == caplog.text.count("lock.down")
        broker.faulty.away.clear()
        await noted.clock.advance(2)
    assert [50] == [tick for tick, *_ in noted.runs]
    assert 1 == caplog.text.count("the lock store 'default' answers again")


async def test_late_ticks_are_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    group, clock = Group(), VirtualClock()
    for number in range(30):

        @group.schedule(every=60, name=f"each-{number}")
        async def each() -> None: ...

    async with processes(group, clock, "one"):
        await clock.advance(45)
        clock.step(2.5)
        await clock.advance(15)
    assert ["30 schedules start up to 2.5 s late"] == [record.message for record in caplog.records]


async def test_a_scheduler_that_stays_late_says_so_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    noted = Noted(every=10)
    async with processes(noted.group, noted.clock, "one"):
        for _ in range(12):
            await noted.clock.advance(5)
            noted.clock.step(2)
            await noted.clock.advance(3)
    assert ["1 schedule starts 2.0 s late"] * 2 == caplog.messages


async def test_the_last_ticks_of_many_schedules_are_loaded_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group, clock, runs = Group(), VirtualClock(), []
    for number in range(300):

        @group.schedule(every=60, name=f"each-{number}")
        async def each() -> None:
            runs.append(1)

    async with (
        FaultyBroker(clock, "last_tick") as broker,
        processes(group, clock, "one", broker=broker),
    ):
        await clock.advance(60)
    assert 300 == len(runs)
    (line,) = [record.message for record in caplog.records]
    assert "(and of 299 more) is not known" in line


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"overlap": "queu"}, "overlap='queu' is none of 'skip', 'allow', 'queue'."),
        ({"catch_up": True}, "catch_up=True is none of 'one', 'skip', 'all'."),
        ({"scope": "host"}, "scope='host' is none of 'cluster', 'replica'."),
        ({"on_lock_error": None}, "on_lock_error=None is none of 'skip', 'run'."),
        ({"jitter": -1}, "jitter=-1 is not a duration of at least 0 s."),
        ({"grace": "1h"}, "grace='1h' is not a duration of at least 0 s."),
        ({"retries": -1}, "retries=-1 is not a whole number of at least 0."),
        ({"scope": "replica", "lock": True}, "lock= keeps processes apart"),
    ],
)
def test_a_mistake_is_refused_on_its_line(options: dict[str, Any], text: str) -> None:
    with pytest.raises(BadOption) as caught:
        Group().schedule(every=60, **options)
    assert str(caught.value).startswith(text)


def test_catch_up_is_told_with_what_each_of_its_values_does() -> None:
    with pytest.raises(BadOption) as caught:
        Group().schedule(every=60, catch_up=True)  # type: ignore[arg-type]
    assert caught.value.hint.startswith('"one" runs the latest missed tick')


async def test_the_zone_of_the_host_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    group, clock = Group(), VirtualClock()
    for name in ("first", "second"):

        @group.schedule("0 3 * * *", name=name)
        async def nightly() -> None: ...

    async with processes(group, clock, "one"):
        await clock.advance(60)
    zone = group.registry.schedules["first"].timezone
    assert [f"schedules without timezone= run in the host's zone, {zone}"] == caplog.messages


async def test_what_another_scheduler_ran_was_not_missed() -> None:
    """A process that was frozen finds the ticks of that time decided."""
    noted, behind = Noted(every=10), VirtualClock()
    async with (
        MemoryBroker(noted.clock) as broker,
        processes(noted.group, noted.clock, "one", broker=broker),
        processes(noted.group, behind, "frozen", broker=broker) as (frozen,),
    ):
        await noted.clock.advance(95)
        behind.step(95)
        await behind.advance(30)
        assert [] == frozen.those(ScheduleMisfired)
    assert [10.0 * number for number in range(1, 13)] == [tick for tick, *_ in noted.runs]


@pytest.mark.parametrize("policy", ["skip", "run"])
async def test_a_lease_whose_answer_was_lost_keeps_nobody_out(policy: str) -> None:
    noted = Noted(every=10, lock=Lock(ttl=600), on_lock_error=policy)
    async with (
        FaultyBroker(noted.clock) as broker,
        processes(noted.group, noted.clock, "one", broker=broker),
    ):
        broker.faulty.is_mute = True
        broker.faulty.away.add("release")
        await noted.clock.advance(19)
        broker.faulty.is_mute = False
        broker.faulty.away.clear()
        await noted.clock.advance(20)
    first = [10.0] if policy == "run" else []
    assert [*first, 20.0, 30.0] == [tick for tick, *_ in noted.runs]


async def test_a_manual_run_that_got_no_answer_leaves_no_lease() -> None:
    noted = Noted(every=10, lock=Lock(ttl=600))
    async with (
        FaultyBroker(noted.clock) as broker,
        processes(noted.group, noted.clock, "one", broker=broker) as (one,),
    ):
        broker.faulty.is_mute = True
        with pytest.raises(LockBackendError):
            await one.runner.run_now(one.spec("noted"))
        broker.faulty.is_mute = False
        assert await one.runner.run_now(one.spec("noted"))
    assert [None] == [tick for tick, *_ in noted.runs]


async def test_the_last_tick_of_all_is_tried_until_it_can_be_claimed() -> None:
    group, clock = Group(), VirtualClock()
    ran = []

    @group.schedule("0 1 0 1 1 * 2030", timezone="UTC")
    async def once() -> None:
        ran.append(clock.monotonic())

    async with (
        FaultyBroker(clock, "claim") as broker,
        processes(group, clock, "one", broker=broker),
    ):
        await clock.advance(60 + 20)
        broker.faulty.away.clear()
        await clock.advance(60)
    assert 1 == len(ran)


async def test_a_store_that_is_silent_at_the_start_is_asked_once() -> None:
    """It takes a second to say nothing, and other schedules wait meanwhile."""
    group, clock = Group(), VirtualClock()
    for number in range(200):

        @group.schedule(every=60, name=f"each-{number}")
        async def each() -> None: ...

    async with (
        FaultyBroker(clock, "last_tick") as broker,
        processes(group, clock, "one", broker=broker),
    ):
        assert broker.faulty.asked["last_tick"] < 100


async def test_a_fault_of_ours_ends_no_other_schedule(caplog: pytest.LogCaptureFixture) -> None:
    noted, broken = Noted(every=10), Group()
    group = Group()

    @group.schedule(every=10)
    @broken.job("never.included")
    async def lost() -> None: ...

    noted.group.registry.add_schedule(group.registry.schedules["lost"])
    async with processes(noted.group, noted.clock, "one"):
        await noted.clock.advance(25)
    assert [10.0, 20.0] == [tick for tick, *_ in noted.runs]
    assert "lost: a run went wrong" in caplog.text
