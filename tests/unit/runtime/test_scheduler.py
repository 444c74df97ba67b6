"""The scheduler's loop and its runs: claims, locks, faults of both, and the end."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from mega.adapters.memory import MemoryBroker
from mega.adapters.memory_stores import MemoryClaims
from mega.context import ScheduleContext, current_run
from mega.errors import LockBackendError, LockLostError
from mega.events import (
    Event,
    LockLost,
    LockStoreDown,
    ScheduleDone,
    ScheduleFailed,
    ScheduleRun,
    ScheduleSkipped,
)
from mega.group import Group
from mega.handles import ScheduleHandle
from mega.options import Lock
from mega.ports import Claim, LeaseAnswer, Skip
from mega.runtime.hub import Hub
from mega.runtime.schedule_run import ScheduleRunner
from mega.runtime.scheduler import Scheduler
from mega.runtime.surroundings import Surroundings
from mega.testing import EPOCH, VirtualClock, job_context

Schedule = ScheduleHandle[Any, Any]


class Process:
    """One process that runs the schedules of a group; several share a broker."""

    def __init__(self, group: Group, broker: MemoryBroker, clock: VirtualClock, name: str) -> None:
        self.events: list[Event] = []
        self.draining = anyio.Event()
        self.hub = Hub([(Event, self._note)])
        self._around = Surroundings(app=None, broker=broker, hub=self.hub, clock=clock, worker=name)
        self.runner = ScheduleRunner(self._around, _enqueue_nothing)
        self.scheduler = Scheduler(group.registry.schedules.values(), self.runner, self._around)

    async def _note(self, event: Event) -> None:
        self.events.append(event)

    def kinds(self) -> list[type[Event]]:
        return [type(event) for event in self.events]

    def start(self, tasks: TaskGroup) -> None:
        tasks.start_soon(self.hub.run)
        tasks.start_soon(self.scheduler.run, self.draining)


async def _enqueue_nothing(*anything: object) -> None: ...


@asynccontextmanager
async def processes(
    group: Group, clock: VirtualClock, *names: str, broker: MemoryBroker | None = None
) -> AsyncIterator[list[Process]]:
    async with AsyncExitStack() as stack:
        if broker is None:
            broker = await stack.enter_async_context(MemoryBroker(clock))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        started = [Process(group, broker, clock, name) for name in names]
        for process in started:
            process.start(tasks)
        await clock.advance(0)
        try:
            yield started
        finally:
            tasks.cancel_scope.cancel()
            for process in started:
                process.hub.close()


class FaultyClaims(MemoryClaims):
    """A claim store that does not answer the calls named in `away`."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.away: set[str] = set()

    def _ask(self, call: str) -> None:
        if call in self.away:
            raise LockBackendError("the lock store is away.")

    async def last_tick(self, key: str) -> datetime | None:
        self._ask("last_tick")
        return await super().last_tick(key)

    async def claim(
        self, key: str, *, tick: datetime | None, owner: str, lease: float | None
    ) -> Claim | Skip:
        self._ask("claim")
        return await super().claim(key, tick=tick, owner=owner, lease=lease)

    async def extend(self, claim: Claim) -> LeaseAnswer:
        self._ask("extend")
        return await super().extend(claim)

    async def release(self, claim: Claim) -> None:
        self._ask("release")
        await super().release(claim)


class FaultyBroker(MemoryBroker):
    """A broker with a claim store that can be away."""

    def __init__(self, clock: VirtualClock, *away: str) -> None:
        super().__init__(clock)
        self.faulty = FaultyClaims(clock)
        self.faulty.away.update(away)

    @property
    def claims(self) -> FaultyClaims:
        return self.faulty


def after(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


async def test_of_two_schedulers_one_runs_each_tick_and_the_other_says_who() -> None:
    group, clock, ticks = Group(), VirtualClock(), []

    @group.schedule(every=10)
    async def often(ctx: ScheduleContext) -> None:
        ticks.append(ctx.due_at)

    async with processes(group, clock, "one", "two") as both:
        await clock.advance(30)
        events = [event for process in both for event in process.events]

    assert [after(10), after(20), after(30)] == ticks
    skips = [event for event in events if isinstance(event, ScheduleSkipped)]
    assert ["taken"] * 3 == [skip.reason for skip in skips]
    assert all(skip.by.startswith(("one/", "two/")) for skip in skips)


async def test_without_a_lock_runs_of_two_ticks_may_overlap_across_processes() -> None:
    group, clock, running = Group(), VirtualClock(), []

    @group.schedule(every=10)
    async def slow(ctx: ScheduleContext) -> None:
        running.append(ctx.due_at)
        await clock.sleep(15)

    async with processes(group, clock, "one", "two"):
        await clock.advance(20)
        assert [after(10), after(20)] == running
        await clock.advance(15)


async def test_a_lock_keeps_runs_apart_across_processes_and_names_the_holder() -> None:
    group, clock, ticks = Group(), VirtualClock(), []

    @group.schedule(every=10, lock=Lock(ttl=5))
    async def slow(ctx: ScheduleContext) -> None:
        ticks.append(ctx.due_at)
        await clock.sleep(15)

    async with processes(group, clock, "one", "two") as both:
        await clock.advance(30)
        events = [event for process in both for event in process.events]
        await clock.advance(5)

    assert [after(10), after(30)] == ticks
    running = [
        (event.due_at, event.by.partition("/")[0])
        for event in events
        if isinstance(event, ScheduleSkipped) and event.reason == "running"
    ]
    assert [after(20), after(20)] == [due_at for due_at, _ in running]
    assert 1 == len({by for _, by in running})


async def test_a_dead_holder_keeps_others_out_until_its_lease_has_run_out() -> None:
    group, clock, ticks = Group(), VirtualClock(), []

    @group.schedule(every=20, lock=Lock(ttl=30))
    async def locked(ctx: ScheduleContext) -> None:
        ticks.append(ctx.due_at)

    async with MemoryBroker(clock) as broker:
        await broker.claims.claim("mega:schedule:locked", tick=None, owner="dead", lease=30)
        async with processes(group, clock, "one", broker=broker) as (one,):
            await clock.advance(40)
            (skip,) = [event for event in one.events if isinstance(event, ScheduleSkipped)]

    assert [after(40)] == ticks
    assert ("running", "dead", after(20)) == (skip.reason, skip.by, skip.due_at)


async def test_the_key_of_a_lock_can_be_shared_by_schedules() -> None:
    group, clock, running = Group(), VirtualClock(), []
    lock = Lock(key="archive")

    @group.schedule(every=10, lock=lock)
    async def write() -> None:
        running.append("write")
        await clock.sleep(100)

    @group.schedule("* * * * *", timezone="UTC", lock=lock)
    async def read() -> None:
        running.append("read")

    async with processes(group, clock, "one"):
        await clock.advance(60)
        assert ["write"] == running
        await clock.advance(60)


async def test_a_fence_grows_with_each_claim() -> None:
    group, clock, fences = Group(), VirtualClock(), []

    @group.schedule(every=10)
    async def often(ctx: ScheduleContext) -> None:
        fences.append(ctx.fence)

    async with processes(group, clock, "one", "two"):
        await clock.advance(40)

    assert sorted(set(fences)) == fences


async def test_a_lease_that_another_owner_holds_ends_the_run() -> None:
    group, clock, ended = Group(), VirtualClock(), []

    @group.schedule(every=40, lock=Lock(ttl=30))
    async def slow() -> None:
        try:
            await clock.sleep(1000)
        finally:
            ended.append(clock.monotonic())

    async with (
        MemoryBroker(clock) as broker,
        processes(group, clock, "one", broker=broker) as (one,),
    ):
        await clock.advance(40)
        key = "mega:schedule:slow"
        await broker.claims.release(Claim(key, "one/1", 1, after(40), 30))
        await broker.claims.claim(key, tick=None, owner="other", lease=300)
        await clock.advance(10)
        assert [ScheduleRun, LockLost, ScheduleFailed] == one.kinds()
        failed = one.events[2]

    assert [50] == ended
    assert isinstance(failed, ScheduleFailed)
    assert LockLostError is type(failed.error)


async def test_a_lock_store_that_is_away_for_a_moment_costs_no_tick() -> None:
    group, clock, ticks = Group(), VirtualClock(), []

    @group.schedule(every=10)
    async def often(ctx: ScheduleContext) -> None:
        ticks.append(ctx.due_at)

    async with (
        FaultyBroker(clock, "claim") as broker,
        processes(group, clock, "one", broker=broker) as (one,),
    ):
        await clock.advance(10)
        assert [LockStoreDown] == one.kinds()
        broker.faulty.away.clear()
        await clock.advance(10)

    assert [after(10), after(20)] == ticks


async def test_a_lock_store_that_stays_away_costs_ticks_until_it_is_back() -> None:
    group, clock, ticks = Group(), VirtualClock(), []

    @group.schedule(every=10)
    async def often(ctx: ScheduleContext) -> None:
        ticks.append(ctx.due_at)

    async with (
        FaultyBroker(clock, "claim") as broker,
        processes(group, clock, "one", broker=broker) as (one,),
    ):
        await clock.advance(29)
        assert {LockStoreDown} == set(one.kinds())
        broker.faulty.away.clear()
        await clock.advance(11)

    assert [after(30), after(40)] == ticks


async def test_a_lock_store_that_is_away_at_the_start_means_a_first_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group, clock, ticks = Group(), VirtualClock(), []

    @group.schedule(every=10)
    async def often(ctx: ScheduleContext) -> None:
        ticks.append(ctx.due_at)

    async with (
        FaultyBroker(clock, "last_tick") as broker,
        processes(group, clock, "one", broker=broker),
    ):
        await clock.advance(10)

    assert [after(10)] == ticks
    assert "the last tick of often is not known" in caplog.text


async def test_a_lease_that_could_not_be_renewed_in_time_ends_no_run() -> None:
    group, clock, ended = Group(), VirtualClock(), []

    @group.schedule(every=60, lock=Lock(ttl=30))
    async def slow() -> None:
        await clock.sleep(25)
        ended.append(clock.monotonic())

    async with (
        FaultyBroker(clock, "extend") as broker,
        processes(group, clock, "one", broker=broker) as (one,),
    ):
        await clock.advance(90)
        assert [ScheduleRun, LockStoreDown, LockStoreDown, ScheduleDone] == one.kinds()

    assert [85] == ended


async def test_a_lock_that_could_not_be_released_is_a_failure_of_that_phase() -> None:
    group, clock = Group(), VirtualClock()

    @group.schedule(every=60, lock=True)
    async def quick() -> None: ...

    async with (
        FaultyBroker(clock, "release") as broker,
        processes(group, clock, "one", broker=broker) as (one,),
    ):
        await clock.advance(60)
        assert [ScheduleRun, ScheduleDone, ScheduleFailed] == one.kinds()
        failed = one.events[2]

    assert isinstance(failed, ScheduleFailed)
    assert ("release", LockBackendError) == (failed.phase, type(failed.error))


async def test_a_scheduler_that_starts_again_catches_the_missed_tick_up() -> None:
    group, clock, ticks = Group(), VirtualClock(), []

    @group.schedule(every=60)
    async def minutely(ctx: ScheduleContext) -> None:
        ticks.append((ctx.due_at, ctx.lateness))

    async with (
        MemoryBroker(clock) as broker,
        processes(group, clock, "one", broker=broker),
    ):
        await clock.advance(60)
    await clock.advance(200)
    async with processes(group, clock, "two", broker=broker):
        await clock.advance(0)

    assert [(after(60), 0), (after(240), 20)] == ticks


async def test_a_clock_that_is_set_back_half_a_day_holds_nothing_up() -> None:
    group, clock, ticks = Group(), VirtualClock(), []

    @group.schedule("0 * * * *", timezone="UTC")
    async def hourly(ctx: ScheduleContext) -> None:
        ticks.append(ctx.due_at)

    async with processes(group, clock, "one"):
        await clock.advance(60)
        clock.step(-12 * 3600)
        await clock.advance(3600)

    assert [EPOCH - timedelta(hours=11)] == ticks


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), ValueError("no")])
async def test_whatever_a_run_raises_the_next_tick_runs(error: BaseException) -> None:
    group, clock, ticks = Group(), VirtualClock(), []

    @group.schedule(every=10)
    async def broken() -> None:
        ticks.append(clock.monotonic())
        raise error

    async with processes(group, clock, "one") as (one,):
        await clock.advance(20)
        assert [ScheduleRun, ScheduleFailed] * 2 == one.kinds()

    assert [10, 20] == ticks


@pytest.mark.parametrize("lock", [None, True])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancellation_that_nobody_asked_for_is_an_error_of_the_run(
    lock: bool | None, anyio_backend: str
) -> None:
    import asyncio

    group, clock, ticks = Group(), VirtualClock(), []

    @group.schedule(every=10, lock=lock)
    async def broken() -> None:
        ticks.append(clock.monotonic())
        task = asyncio.ensure_future(asyncio.sleep(math.inf))
        task.cancel()
        await task

    async with processes(group, clock, "one") as (one,):
        await clock.advance(20)
        assert [ScheduleRun, ScheduleFailed] * 2 == one.kinds()

    assert [10, 20] == ticks


@pytest.mark.parametrize("lock", [None, True])
async def test_draining_starts_no_tick_and_waits_for_the_run_in_hand(lock: bool | None) -> None:
    group, clock, order = Group(), VirtualClock(), []

    @group.schedule(every=10, lock=lock)
    async def slow() -> None:
        order.append(("begins", clock.monotonic()))
        await clock.sleep(35)
        order.append(("ends", clock.monotonic()))

    async with processes(group, clock, "one") as (one,):
        await clock.advance(15)
        one.draining.set()
        await clock.advance(60)

    assert [("begins", 10), ("ends", 45)] == order


async def test_a_cancelled_run_gives_its_lock_up() -> None:
    group, clock = Group(), VirtualClock()

    @group.schedule(every=10, lock=Lock(ttl=300))
    async def slow() -> None:
        await clock.sleep(1000)

    async with MemoryBroker(clock) as broker:
        async with anyio.create_task_group() as tasks:
            one = Process(group, broker, clock, "one")
            one.start(tasks)
            await clock.advance(10)
            tasks.cancel_scope.cancel()
        one.hub.close()
        answer = await broker.claims.claim("mega:schedule:slow", tick=None, owner="other", lease=30)
        assert isinstance(answer, Claim)


async def test_a_run_by_hand_leaves_the_caller_what_it_was_in() -> None:
    group, clock, seen = Group(), VirtualClock(), []

    @group.schedule("0 3 * * *", timezone="UTC")
    async def nightly() -> None:
        seen.append(run.facts() if (run := current_run.get()) else None)

    async with processes(group, clock, "one") as (one,):
        job = job_context()
        current_run.set(job)
        await one.runner.run(nightly.spec)
        assert job is current_run.get()

    assert [{"schedule": "nightly"}] == seen


async def test_many_schedules_each_keep_their_own_time() -> None:
    group, clock, runs = Group(), VirtualClock(), []

    def declare(seconds: int) -> Callable[[], Any]:
        @group.schedule(every=seconds, name=f"every-{seconds}")
        async def run() -> None:
            runs.append(seconds)

        return run

    for seconds in (10, 15, 25):
        declare(seconds)
    async with processes(group, clock, "one"):
        await clock.advance(150)

    assert (15, 10, 6) == (runs.count(10), runs.count(15), runs.count(25))


async def test_a_scheduler_without_schedules_waits_for_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = VirtualClock()
    caplog.set_level(logging.DEBUG, "mega")
    async with processes(Group(), clock, "one") as (one,):
        await clock.advance(3600)
        assert [] == one.events
    assert "" == caplog.text
