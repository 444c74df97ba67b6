"""A schedule over a job: one job for each tick, whatever fails between the two steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Literal

import anyio
import pytest

from mega.errors import BrokerUnavailable
from mega.events import LockStoreDown, ScheduleDone, ScheduleFailed, ScheduleRun, ScheduleSkipped
from mega.group import Group
from mega.options import CatchUp
from mega.ports import Queue, Receipt
from mega.testing import VirtualClock
from mega.wire.message import Message
from tests.unit.runtime.schedulers import FaultyBroker, Process, after, processes

MINUTE = 60


class ShakyBroker(FaultyBroker):
    """A broker that is away for publishes, or takes them without an answer.

    The first process that enqueues `freezes` before its job is stored or after, for good: as
    one that is killed, it neither notes nor releases anything.
    """

    def __init__(self, clock: VirtualClock, *away: str) -> None:
        super().__init__(clock, *away)
        self.is_down = False
        self.is_mute = False
        self.hangs_for = 0.0
        self.freezes: Literal["before", "after"] | None = None
        self.stored: list[str] = []

    async def provide(self, queue: Queue, *, is_serving: bool = False) -> None:
        await self._freeze("before")
        await super().provide(queue, is_serving=is_serving)

    async def _freeze(self, moment: str) -> None:
        if self.freezes == moment:
            self.freezes = None
            await anyio.sleep_forever()

    async def publish(
        self, message: Message, *, due_at: datetime | None = None, after: float = 0.0
    ) -> Receipt:
        if self.hangs_for:
            await self._clock.sleep(self.hangs_for)
        if self.is_down:
            raise BrokerUnavailable("the broker is away.")
        receipt = await super().publish(message, due_at=due_at, after=after)
        if not receipt.duplicate:
            self.stored.append(message.id.removeprefix("reports:"))
        await self._freeze("after")
        if self.is_mute:
            raise BrokerUnavailable("no answer came.")
        return receipt


def minutely(**options: Any) -> Group:
    return every(MINUTE, **options)


def hourly(**options: Any) -> Group:
    return every(3600, **options)


def every(seconds: float, *, catch_up: CatchUp = "one", **options: Any) -> Group:
    group = Group()

    @group.schedule(every=seconds, name="reports", catch_up=catch_up)
    @group.job("report.send", **options)
    async def send_report() -> None: ...

    return group


@asynccontextmanager
async def schedulers(
    broker: ShakyBroker, clock: VirtualClock, *names: str, **options: Any
) -> AsyncIterator[list[Process]]:
    group = minutely(**options)
    async with broker:
        await broker.provide(Queue("report.send", group.registry.jobs["report.send"].options))
        async with processes(group, clock, *names, broker=broker) as started:
            yield started


@asynccontextmanager
async def decided(
    broker: ShakyBroker, group: Group, *, lease: float | None = None
) -> AsyncIterator[None]:
    """Enter the broker, where "x" has decided the tick at the clock's start."""
    async with broker:
        await broker.provide(Queue("report.send", group.registry.jobs["report.send"].options))
        await broker.claims.claim("mega:schedule:reports", tick=after(0), owner="x", lease=lease)
        yield


def ticks(*minutes: int) -> list[str]:
    return [after(MINUTE * minute).isoformat() for minute in minutes]


async def test_of_two_schedulers_one_stores_the_job() -> None:
    clock = VirtualClock()
    broker = ShakyBroker(clock)
    async with schedulers(broker, clock, "one", "two") as both:
        await clock.advance(3 * MINUTE)
        assert ticks(1, 2, 3) == broker.stored
        kinds = [kind for process in both for kind in process.kinds()]
        assert 3 == kinds.count(ScheduleRun) == kinds.count(ScheduleDone)
        assert ["taken"] * 3 == [skip.reason for one in both for skip in one.those(ScheduleSkipped)]
        assert after(3 * MINUTE) == await broker.claims.last_tick("mega:schedule:reports")


async def test_a_claim_store_that_is_away_costs_no_job() -> None:
    clock = VirtualClock()
    broker = ShakyBroker(clock, "claim")
    async with schedulers(broker, clock, "one") as (one,):
        await clock.advance(2 * MINUTE)
        assert ticks(1, 2) == broker.stored
        assert [ScheduleRun, ScheduleDone, LockStoreDown] * 2 == one.kinds()


async def test_a_broker_that_is_away_gets_the_job_when_it_is_back() -> None:
    clock = VirtualClock()
    broker = ShakyBroker(clock)
    async with schedulers(broker, clock, "one") as (one,):
        broker.is_down = True
        await clock.advance(MINUTE + 20)
        broker.is_down = False
        await clock.advance(30)
        assert ticks(1) == broker.stored
        assert [ScheduleRun, ScheduleDone] == one.kinds()


async def test_a_broker_that_is_away_until_the_next_tick_costs_the_tick() -> None:
    clock = VirtualClock()
    broker = ShakyBroker(clock)
    async with schedulers(broker, clock, "one") as (one,):
        broker.is_down = True
        await clock.advance(2 * MINUTE - 1)
        assert [ScheduleFailed] == one.kinds()
        broker.is_down = False
        await clock.advance(2)
        assert ticks(2) == broker.stored


async def test_a_job_whose_answer_is_lost_is_stored_once() -> None:
    clock = VirtualClock()
    broker = ShakyBroker(clock)
    async with schedulers(broker, clock, "one"):
        broker.is_mute = True
        await clock.advance(MINUTE + 5)
        broker.is_mute = False
        await clock.advance(10)
        assert ticks(1) == broker.stored


async def test_an_old_tick_is_claimed_before_its_job_is_stored() -> None:
    clock = VirtualClock()
    broker = ShakyBroker(clock)
    group = hourly()
    async with decided(broker, group):
        clock.step(3600 + 1800)
        async with processes(group, clock, "one", "two", broker=broker) as both:
            await clock.advance(0)
            kinds = [kind for process in both for kind in process.kinds()]
            assert 1 == kinds.count(ScheduleRun)
        assert [after(3600).isoformat()] == broker.stored


async def test_an_old_tick_whose_job_is_there_is_not_enqueued_again() -> None:
    """Its scheduler died before it could note the tick, and the duplicate window is over."""
    clock = VirtualClock()
    broker = ShakyBroker(clock, "claim")
    group = hourly()
    async with broker:
        await broker.provide(Queue("report.send", group.registry.jobs["report.send"].options))
        async with processes(group, clock, "one", broker=broker):
            await clock.advance(3600)
        assert [after(3600).isoformat()] == broker.stored
        broker.faulty.away.clear()
        await broker.claims.claim("mega:schedule:reports", tick=after(0), owner="x", lease=None)
        await clock.advance(1800)
        async with processes(group, clock, "two", broker=broker):
            await clock.advance(0)
        assert [after(3600).isoformat()] == broker.stored


@pytest.mark.parametrize("freezes", ["before", "after"])
@pytest.mark.parametrize("options", [{}, {"track": False}])
@pytest.mark.parametrize("late", [0, 1800])
async def test_a_scheduler_that_is_killed_between_the_steps_loses_and_doubles_nothing(
    freezes: Literal["before", "after"], options: dict[str, Any], late: float
) -> None:
    clock = VirtualClock()
    broker = ShakyBroker(clock)
    group = hourly(**options)
    async with decided(broker, group):
        clock.step(3600 + late)
        broker.freezes = freezes
        async with processes(group, clock, "one", "two", broker=broker):
            await clock.advance(60)
            assert [after(3600).isoformat()] == broker.stored
            assert after(3600) == await broker.claims.last_tick("mega:schedule:reports")
        async with processes(group, clock, "three", broker=broker):
            await clock.advance(60)
            assert [after(3600).isoformat()] == broker.stored


async def test_a_scheduler_whose_clock_is_hours_behind_doubles_nothing() -> None:
    """By its clock the ticks are new; the broker has long forgotten their ids."""
    clock, behind = VirtualClock(), VirtualClock(after(-5 * 3600))
    broker = ShakyBroker(clock)
    group = minutely()
    async with broker:
        await broker.provide(Queue("report.send", group.registry.jobs["report.send"].options))
        async with (
            processes(group, clock, "one", broker=broker),
            processes(group, behind, "two", broker=broker) as (two,),
        ):
            for _ in range(5 * 60 + 10):
                await clock.advance(MINUTE)
                await behind.advance(MINUTE)
            assert ticks(*range(1, 5 * 60 + 11)) == broker.stored
            assert {ScheduleSkipped} == set(two.kinds())


@pytest.mark.parametrize("late", [0, 600])
async def test_a_try_that_failed_is_no_proof_that_the_job_is_stored(late: float) -> None:
    """Its record is written before its message; with the broker back the job must still come."""
    clock = VirtualClock()
    broker = ShakyBroker(clock)
    group = hourly()
    async with decided(broker, group):
        clock.step(3600 + late)
        broker.is_down = True
        async with processes(group, clock, "one", broker=broker) as (one,):
            await clock.advance(150)
            broker.is_down = False
            await clock.advance(60)
            assert [after(3600).isoformat()] == broker.stored
            assert ScheduleSkipped not in one.kinds()


async def test_what_a_scheduler_gave_up_another_one_stores() -> None:
    clock = VirtualClock()
    broker = ShakyBroker(clock)
    group = hourly()
    async with broker:
        await broker.provide(Queue("report.send", group.registry.jobs["report.send"].options))
        broker.is_down = True
        async with processes(group, clock, "one", broker=broker) as (one,):
            await clock.advance(3600 + 60)
            one.draining.set()
            await clock.advance(600)
        broker.is_down = False
        await broker.claims.claim("mega:schedule:reports", tick=after(0), owner="x", lease=None)
        async with processes(group, clock, "two", broker=broker):
            await clock.advance(60)
        assert [after(3600).isoformat()] == broker.stored


async def test_a_job_whose_first_answer_was_lost_is_told_as_run() -> None:
    clock = VirtualClock()
    broker = ShakyBroker(clock)
    async with schedulers(broker, clock, "one") as (one,):
        broker.is_mute = True
        await clock.advance(MINUTE)
        broker.is_mute = False
        await clock.advance(10)
        assert [ScheduleRun, ScheduleDone] == one.kinds()
        assert (await one.runner.last_run(one.spec("reports"))) is not None


async def test_caught_up_ticks_outlast_the_lease_of_who_died() -> None:
    """It held the schedule; its lease ends after half a minute, and none of the ticks is lost."""
    clock = VirtualClock()
    broker = ShakyBroker(clock)
    group = every(600, catch_up="all")
    async with decided(broker, group, lease=30):
        clock.step(5 * 600)
        async with processes(group, clock, "one", broker=broker):
            await clock.advance(300)
        assert [after(600 * number).isoformat() for number in range(1, 6)] == broker.stored


async def test_a_tick_that_comes_while_a_job_is_being_stored_is_stored_after_it() -> None:
    clock = VirtualClock()
    broker = ShakyBroker(clock)
    async with schedulers(broker, clock, "one"):
        broker.hangs_for = 65.0
        await clock.advance(MINUTE)
        broker.hangs_for = 0.0
        await clock.advance(2 * MINUTE)
        assert ticks(1, 2, 3) == broker.stored


async def test_ticks_do_not_gather_while_a_broker_hangs() -> None:
    """With catch_up="one" the latest of them is stored when it is back, and the others are told."""
    clock = VirtualClock()
    broker = ShakyBroker(clock)
    async with schedulers(broker, clock, "one") as (one,):
        broker.hangs_for = 10 * MINUTE - 30.0
        await clock.advance(MINUTE)
        broker.hangs_for = 0.0
        await clock.advance(10 * MINUTE)
        assert ticks(1, 10, 11) == broker.stored
        assert ["running"] * 8 == [skip.reason for skip in one.those(ScheduleSkipped)]


async def test_a_tick_that_others_hold_until_the_end_says_so() -> None:
    clock = VirtualClock()
    broker = ShakyBroker(clock)
    group = hourly()
    async with decided(broker, group, lease=9999):
        clock.step(3600 + 600)
        async with processes(group, clock, "one", broker=broker) as (one,):
            await clock.advance(3600)
            skips = [(skip.reason, skip.by) for skip in one.those(ScheduleSkipped)]
        assert ("running", "x") == skips[0]
