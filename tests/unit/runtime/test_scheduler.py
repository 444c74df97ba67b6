"""The scheduler's loop and its runs: claims, locks, faults of both, and the end."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest

from mega.adapters.memory import MemoryBroker
from mega.context import ScheduleContext, current_run
from mega.errors import LockBackendError, LockLostError
from mega.events import (
    LockLost,
    LockStoreDown,
    ScheduleDone,
    ScheduleFailed,
    ScheduleRun,
    ScheduleSkipped,
)
from mega.group import Group
from mega.options import Lock
from mega.ports import Claim, Queue, Skip
from mega.testing import EPOCH, VirtualClock, job_context
from tests.unit.runtime.schedulers import FaultyBroker, Process, after, processes


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


async def test_ticks_of_one_instant_are_apart_for_schedules_that_share_a_lock() -> None:
    group, clock, ticks = Group(), VirtualClock(), []
    for name in ("early", "late"):

        @group.schedule(every=60, lock=Lock(key="archive"), name=name, jitter=50)
        async def archive(ctx: ScheduleContext) -> None:
            ticks.append((ctx.name, ctx.due_at))

    async with processes(group, clock, "one", "two"):
        await clock.advance(179)

    assert 4 == len(set(ticks)) == len(ticks)


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
        skip = await broker.claims.claim(key, tick=None, owner="other", lease=300)
        assert isinstance(skip, Skip)
        await broker.claims.release(Claim(key, skip.by, 1, after(40), 30))
        await broker.claims.claim(key, tick=None, owner="other", lease=300)
        await clock.advance(10)
        assert [ScheduleRun, LockLost, ScheduleFailed] == one.kinds()
        (lost,) = one.those(LockLost)
        failed = one.events[2]

    assert [50] == ended
    assert "other" == lost.by
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


@pytest.mark.parametrize("is_over_a_job", [False, True])
async def test_a_clock_that_is_set_back_after_it_decided_ticks_holds_nothing_up(
    is_over_a_job: bool,
) -> None:
    group, clock = Group(), VirtualClock()

    @group.job("hourly")
    async def job() -> None: ...

    async def hourly() -> None: ...

    group.schedule("0 * * * *", timezone="UTC", name="hourly")(job if is_over_a_job else hourly)
    async with MemoryBroker(clock) as broker:
        await broker.provide(Queue("hourly", job.spec.options))
        async with processes(group, clock, "one", "two", broker=broker) as both:
            await clock.advance(3600)
            clock.step(-12 * 3600)
            await clock.advance(3 * 3600)
            runs = [run.due_at for one in both for run in one.those(ScheduleRun)]

    hour = timedelta(hours=1)
    assert [EPOCH - 10 * hour, EPOCH - 9 * hour, EPOCH - 8 * hour, EPOCH + hour] == sorted(
        run for run in runs if run
    )


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


async def test_a_schedule_that_had_ended_by_a_wrong_clock_runs_once_that_is_right() -> None:
    group, clock, ticks = Group(), VirtualClock(EPOCH + timedelta(days=800)), []

    @group.schedule("0 0 12 1 1 * 2030", timezone="UTC")
    async def party(ctx: ScheduleContext) -> None:
        ticks.append(ctx.due_at)

    async with processes(group, clock, "one"):
        await clock.advance(60)
        clock.step(-800 * 86_400)
        await clock.advance(12 * 3600)

    assert [EPOCH + timedelta(hours=12)] == ticks


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
        await one.runner.run_now(nightly.spec)
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
