"""Pauses of schedules, what is kept of their last runs, and waits that a drain ends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from mega.adapters.memory import MemoryBroker
from mega.adapters.memory_schedules import MemorySchedules
from mega.context import ScheduleContext
from mega.errors import BrokerUnavailable
from mega.events import ScheduleDone, ScheduleFailed, ScheduleRun, ScheduleSkipped
from mega.group import Group
from mega.handles import ScheduleHandle
from mega.ports import Queue
from mega.testing import VirtualClock
from mega.wire.schedule_record import ScheduleRecord
from tests.unit.runtime.schedulers import FaultyBroker, after, processes


class AwaySchedules(MemorySchedules):
    """A store that does not answer while `is_away`, and counts how often it is read."""

    is_away = False
    reads = 0

    async def paused(self) -> Mapping[str, str]:
        self.reads += 1
        await checkpoint()
        self._ask()
        return await super().paused()

    async def keep(self, record: ScheduleRecord) -> None:
        self._ask()
        await super().keep(record)

    def _ask(self) -> None:
        if self.is_away:
            raise BrokerUnavailable("the broker is away.")


class Broker(FaultyBroker):
    """A broker whose store of schedules can be away."""

    def __init__(self, clock: VirtualClock, *away: str) -> None:
        super().__init__(clock, *away)
        self.kept = AwaySchedules()

    @property
    def schedules(self) -> AwaySchedules:
        return self.kept


class Case:
    """A group with one schedule every minute, and the ticks that it ran."""

    def __init__(self, **options: Any) -> None:
        self.group, self.clock = Group(), VirtualClock()
        self.broker = Broker(self.clock)
        self.ticks: list[datetime | None] = []
        self.error: Exception | None = None

        @self.group.schedule(every=60, name="case", **options)
        async def case(ctx: ScheduleContext) -> None:
            self.ticks.append(ctx.due_at)
            if self.error is not None:
                raise self.error

        self.handle: ScheduleHandle[Any, Any] = case


@pytest.mark.parametrize("options", [{}, {"lock": True}, {"overlap": "queue"}])
async def test_a_paused_schedule_skips_its_ticks_in_all_processes(options: dict[str, Any]) -> None:
    case = Case(**options)
    async with (
        case.broker,
        processes(case.group, case.clock, "one", "two", broker=case.broker) as both,
    ):
        await case.clock.advance(60)
        await both[0].runner.pause(case.handle.spec)
        await case.clock.advance(120)
        await both[1].runner.resume(case.handle.spec)
        await case.clock.advance(60)
        skips = [skip for one in both for skip in one.those(ScheduleSkipped)]
    assert [after(60), after(240)] == case.ticks
    paused = [(skip.due_at, skip.by) for skip in skips if skip.reason == "paused"]
    assert [(after(120), "one"), (after(180), "one")] == sorted(paused)
    assert ["taken"] * 4 == [skip.reason for skip in skips if skip.reason != "paused"]


async def test_a_pause_outlasts_a_restart_and_its_ticks_are_not_caught_up() -> None:
    case = Case(catch_up="all")
    async with case.broker:
        async with processes(case.group, case.clock, "one", broker=case.broker) as (one,):
            await case.clock.advance(60)
            await one.runner.pause(case.handle.spec)
        await case.clock.advance(150)
        async with processes(case.group, case.clock, "two", broker=case.broker) as (two,):
            await case.clock.advance(60)
            await two.runner.resume(case.handle.spec)
            await case.clock.advance(60)
    assert [after(60), after(300)] == case.ticks


async def test_a_paused_schedule_runs_by_hand() -> None:
    case = Case()
    async with (
        case.broker,
        processes(case.group, case.clock, "one", broker=case.broker) as (one,),
    ):
        await one.runner.pause(case.handle.spec)
        await one.runner.run_now(case.handle.spec)
    assert [None] == case.ticks


async def test_a_schedule_of_each_replica_pauses_in_each() -> None:
    case = Case(scope="replica")
    async with (
        case.broker,
        processes(case.group, case.clock, "one", "two", broker=case.broker) as both,
    ):
        await both[0].runner.pause(case.handle.spec)
        await case.clock.advance(60)
        skips = [skip.reason for one in both for skip in one.those(ScheduleSkipped)]
    assert ["paused", "paused"] == skips
    assert [] == case.ticks


async def test_a_paused_schedule_enqueues_no_job() -> None:
    group, clock = Group(), VirtualClock()

    @group.schedule(every=60)
    @group.job("report.send")
    async def send() -> None: ...

    async with MemoryBroker(clock) as broker:
        await broker.provide(Queue("report.send", group.registry.jobs["report.send"].options))
        async with processes(group, clock, "one", broker=broker) as (one,):
            await one.runner.pause(send.spec)
            await clock.advance(60)
            assert 0 == broker.waiting("report.send")
            await one.runner.resume(send.spec)
            await clock.advance(60)
            assert 1 == broker.waiting("report.send")


async def test_while_pauses_can_not_be_read_what_was_known_holds() -> None:
    case = Case()
    async with (
        case.broker,
        processes(case.group, case.clock, "one", broker=case.broker) as (one,),
    ):
        case.broker.kept.is_away = True
        await case.clock.advance(60)
        assert [after(60)] == case.ticks
        case.broker.kept.is_away = False
        await one.runner.pause(case.handle.spec)
        await case.clock.advance(60)
        case.broker.kept.is_away = True
        await case.clock.advance(60)
    assert [after(60)] == case.ticks


async def test_ticks_of_one_instant_read_the_pauses_once() -> None:
    group, clock, ran = Group(), VirtualClock(), []
    for number in range(50):

        @group.schedule(every=60, name=f"each-{number}")
        async def each() -> None:
            ran.append(1)

    async with Broker(clock) as broker, processes(group, clock, "one", broker=broker):
        await clock.advance(60)
        assert (50, 1) == (len(ran), broker.kept.reads)


async def test_what_became_of_the_last_run_is_kept() -> None:
    case = Case()
    async with (
        case.broker,
        processes(case.group, case.clock, "one", broker=case.broker) as (one,),
    ):
        assert await one.runner.last_run(case.handle.spec) is None
        await case.clock.advance(60)
        done = await one.runner.last_run(case.handle.spec)
        case.error = ValueError("no\nway")
        with pytest.raises(ValueError, match="no"):
            await one.runner.run_now(case.handle.spec)
        failed = await one.runner.last_run(case.handle.spec)
    facts = {"name": "case", "timetable": "every 60 s", "started_at": after(60), "seconds": 0.0}
    facts |= {"worker": "one", "next_at": after(120)}
    assert ScheduleRecord(**facts, tick=after(60)) == done  # type: ignore[arg-type]
    assert ScheduleRecord(**facts, error="ValueError: no way") == failed  # type: ignore[arg-type]


async def test_a_last_run_that_can_not_be_kept_costs_nothing() -> None:
    case = Case()
    case.broker.kept.is_away = True
    async with (
        case.broker,
        processes(case.group, case.clock, "one", broker=case.broker) as (one,),
    ):
        await case.clock.advance(120)
        assert [ScheduleRun, ScheduleDone] * 2 == one.kinds()


async def test_a_drain_ends_the_wait_before_another_try() -> None:
    case = Case(retries=5)
    case.error = ConnectionError("the archive is away")
    async with (
        case.broker,
        processes(case.group, case.clock, "one", broker=case.broker) as (one,),
    ):
        await case.clock.advance(60)
        assert [ScheduleRun, ScheduleFailed] == one.kinds()
        one.draining.set()
        await case.clock.advance(0)
        assert ["retry", "run"] == [failed.phase for failed in one.those(ScheduleFailed)]
        await case.clock.advance(300)
    assert [after(60)] == case.ticks


async def test_a_drain_ends_the_wait_for_a_lock_store() -> None:
    case = Case()
    case.broker.faulty.away.add("claim")
    async with case.broker:
        async with processes(case.group, case.clock, "one", broker=case.broker) as (one,):
            await case.clock.advance(60)
            one.draining.set()
            await case.clock.advance(0)
            case.broker.faulty.away.clear()
            await case.clock.advance(30)
            assert [] == case.ticks
        await case.broker.claims.claim("mega:schedule:case", tick=after(0), owner="", lease=None)
        async with processes(case.group, case.clock, "two", broker=case.broker):
            await case.clock.advance(0)
    assert [after(60)] == case.ticks


async def test_what_was_missed_in_a_pause_is_not_caught_up_when_no_process_was_there() -> None:
    case = Case()
    async with case.broker:
        async with processes(case.group, case.clock, "one", broker=case.broker) as (one,):
            await one.runner.pause(case.handle.spec)
            await case.clock.advance(60)
        await case.clock.advance(600)
        async with processes(case.group, case.clock, "two", broker=case.broker) as (two,):
            await two.runner.resume(case.handle.spec)
        async with processes(case.group, case.clock, "three", broker=case.broker):
            await case.clock.advance(60)
    assert [after(720)] == case.ticks
