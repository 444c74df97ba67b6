"""Ticks in schedulers whose clocks differ, and lock stores that fail while a run goes on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from mega import App, Group, Lock, ScheduleContext
from mega.adapters.memory import MemoryBroker
from mega.adapters.redis.claims import RedisClaims
from mega.adapters.redis.redlock import Redlock
from mega.errors import DuplicateName, LockLostError
from mega.events import (
    LockLost,
    LockStoreDown,
    ScheduleDone,
    ScheduleFailed,
    ScheduleRun,
    ScheduleSkipped,
)
from mega.ports import Claim
from mega.testing import EPOCH, VirtualClock
from tests.cases.conftest import broker_of
from tests.cases.served import Served, serving
from tests.cases.test_clock_skew import WrongClock
from tests.nats_server import NatsServer
from tests.redis_server import RedisServer, redis_servers
from tests.unit.adapters.redis.asking import kept, store_on
from tests.unit.runtime.schedulers import Process, after
from tests.waiting import until

WITHIN = 30.0
#: Renewed three times a second, so that a test need not wait for it.
TTL = 1


@pytest.fixture
def name(subject: str) -> str:
    """A name for a schedule that no other test has."""
    return subject.replace(".", "-")


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


# -- several schedulers


class Fleet:
    """Schedulers of one app on one broker, each with a clock of its own."""

    def __init__(self, broker: str, name: str, locks: dict[str, Any], lock: Any) -> None:
        self.broker, self.name, self.locks, self.lock = broker, name, locks, lock
        self.runs: Counter[datetime] = Counter()

    def app(self, *, lasts: float) -> App[Any]:
        app = App("cases", broker=self.broker, locks=self.locks)

        @app.schedule("* * * * * *", timezone="UTC", name=self.name, lock=self.lock)
        async def tick(ctx: ScheduleContext) -> None:
            assert ctx.due_at is not None
            self.runs[ctx.due_at] += 1
            await anyio.sleep(lasts)

        return app

    async def run(self, *, skews: Sequence[float], lasts: float, ticks: int) -> None:
        """Serve until so many ticks have run, and one second more."""
        async with AsyncExitStack() as stack:
            for skew in skews:
                serving_one = serving(
                    self.app(lasts=lasts), role="scheduler", clock=WrongClock(skew)
                )
                await stack.enter_async_context(serving_one)
            await until(lambda: len(self.runs) > ticks, within=WITHIN, what="the ticks")


@pytest.fixture(params=["nats", "redis", "redlock"])
def fleet(request: pytest.FixtureRequest, broker: str, name: str) -> Iterator[Fleet]:
    """Schedulers that claim in each kind of store in turn."""
    if request.param == "nats":
        yield Fleet(broker, name, {}, None)
        return
    with redis_servers(1 if request.param == "redis" else 3) as servers:
        yield Fleet(broker, name, {"main": [server.url for server in servers]}, "main")


async def test_two_schedulers_a_moment_apart(fleet: Fleet) -> None:
    """cron-085: the claim outlives the run, so who comes a moment later finds the tick taken."""
    await fleet.run(skews=[0, 0.01], lasts=0.001, ticks=4)
    assert {1} == set(fleet.runs.values())


async def test_three_schedulers_half_a_second_apart(fleet: Fleet) -> None:
    """cron-087: a run that is over when the next scheduler comes does not run again."""
    await fleet.run(skews=[0, 0.25, -0.25], lasts=0.005, ticks=4)
    assert {1} == set(fleet.runs.values())


class AnotherClock:
    """The clock of a machine that differs from the virtual one by some seconds."""

    def __init__(self, clock: VirtualClock, *, skew: float) -> None:
        self._clock = clock
        self._skew = timedelta(seconds=skew)
        self.monotonic, self.sleep = clock.monotonic, clock.sleep

    def now(self) -> datetime:
        return self._clock.now() + self._skew


@asynccontextmanager
async def two_processes(
    groups: Sequence[Group], clock: VirtualClock, *, skews: Sequence[float]
) -> AsyncIterator[list[Process]]:
    async with MemoryBroker(clock) as broker, anyio.create_task_group() as tasks:
        processes = [
            Process(group, broker, AnotherClock(clock, skew=skew), f"process-{number}")
            for number, (group, skew) in enumerate(zip(groups, skews, strict=True))
        ]
        for process in processes:
            process.start(tasks)
        await clock.advance(0)
        yield processes
        tasks.cancel_scope.cancel()
        for process in processes:
            process.hub.close()


@pytest.mark.parametrize("skew", [60.0, -60.0])
async def test_two_schedulers_a_minute_apart(skew: float) -> None:
    """cron-090: a claim is kept for longer than any clocks differ."""
    group, clock, ticks = Group(), VirtualClock(), []

    @group.schedule("*/5 * * * *", timezone="UTC")
    async def often(ctx: ScheduleContext) -> None:
        ticks.append(ctx.due_at)

    async with two_processes([group, group], clock, skews=[0, skew]) as both:
        await clock.advance(3600 + 61)
    assert {after(300 * number) for number in range(1, 13)} <= set(ticks)
    assert sorted(set(ticks)) == ticks
    skips = [skip for process in both for skip in process.those(ScheduleSkipped)]
    assert {"taken"} == {skip.reason for skip in skips}


async def test_one_name_with_two_expressions() -> None:
    """cron-092: a name is given once in an app; in two apps, one tick of one name runs once."""
    app = Group()
    groups, clock, ticks = [Group(), Group()], VirtualClock(), []
    for group, cron in zip(groups, ["*/10 * * * *", "*/15 * * * *"], strict=True):

        @group.schedule(cron, timezone="UTC", name="report")
        async def report(ctx: ScheduleContext) -> None:
            ticks.append(ctx.due_at)

    app.include(groups[0])
    with pytest.raises(DuplicateName, match='two schedules have the name "report"'):
        app.include(groups[1])

    async with two_processes(groups, clock, skews=[0, 0]):
        await clock.advance(3600)
    minutes = [10, 15, 20, 30, 40, 45, 50, 60]
    assert [EPOCH + timedelta(minutes=minute) for minute in minutes] == ticks


# -- stores that fail


class Run:
    """A schedule of every second whose run goes on until it is let go."""

    def __init__(self, app: App[Any], name: str, *, store: str) -> None:
        self.may_end = anyio.Event()
        self.key = f"mega:schedule:{name}"
        self.fences: list[int] = []
        self.cancelled = 0

        @app.schedule(every=1, name=name, lock=Lock(ttl=TTL, store=store))
        async def run(ctx: ScheduleContext) -> None:
            self.fences.append(ctx.fence)
            try:
                await self.may_end.wait()
            except anyio.get_cancelled_exc_class():
                self.cancelled += 1
                raise


async def test_a_redis_that_is_killed_during_a_run(
    broker: str, name: str, redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on, takes its lease again from a server that has forgotten it, and ends."""
    caplog.set_level(logging.WARNING, "mega.schedule")
    app = App("cases", broker=broker, locks={"main": redis.url})
    run = Run(app, name, store="main")
    async with serving(app, role="scheduler") as served:
        await served.wait_for(ScheduleRun)
        redis.kill()
        await served.wait_for(LockStoreDown)
        redis.start()
        await until(lambda: kept(redis, run.key).get("owner"), what="the lease")
        run.may_end.set()
        await served.wait_for(ScheduleDone, within=WITHIN)
        assert str(run.fences[0]) <= kept(redis, run.key)["fence"]
    assert [] == served.those(LockLost)
    assert [] == served.those(ScheduleFailed)
    assert "had lost the lease" in caplog.text


async def test_a_redis_that_hangs_during_a_run(broker: str, name: str, redis: RedisServer) -> None:
    """The run goes on though its lease has run out, for nobody has proved that it has another."""
    app = App("cases", broker=broker, locks={"main": redis.url})
    run = Run(app, name, store="main")
    async with serving(app, role="scheduler") as served:
        await served.wait_for(ScheduleRun)
        redis.pause()
        await served.wait_for(LockStoreDown, 2, within=WITHIN)
        redis.resume()
        run.may_end.set()
        await served.wait_for(ScheduleDone, within=WITHIN)
    assert [] == served.those(LockLost)


async def claim_over(
    store: RedisClaims | Redlock, key: str, servers: Sequence[RedisServer]
) -> Claim:
    """Let the servers forget the key until another owner gets it, before the run takes it again."""
    while True:
        for server in servers:
            server.restart()
        tick = datetime.now(UTC) + timedelta(hours=1)
        answer = await store.claim(key, tick=tick, owner="another", lease=600.0)
        if isinstance(answer, Claim):
            return answer


@pytest.mark.parametrize("count", [1, 3])
async def test_a_redis_that_forgets_a_run_and_gives_its_key_to_another(
    broker: str, name: str, count: int
) -> None:
    """The run is cancelled, the event names who has the key, and that one is left alone."""
    with redis_servers(count) as servers:
        urls = [server.url for server in servers]
        app = App("cases", broker=broker, locks={"main": urls})
        run = Run(app, name, store="main")
        async with serving(app, role="scheduler") as served:
            await served.wait_for(ScheduleRun)
            with store_on(urls) as store:
                await claim_over(store, run.key, servers)
            (lost,) = await served.wait_for(LockLost, within=WITHIN)
            (failed,) = await served.wait_for(ScheduleFailed)
        assert "another" == lost.by
        assert isinstance(failed.error, LockLostError)
        assert 1 == run.cancelled
        assert "another" in {kept(server, run.key).get("owner") for server in servers}


async def test_a_redis_that_is_down_when_the_app_starts(
    broker: str, name: str, redis: RedisServer
) -> None:
    """The app starts, says so at the tick, and runs it when the server has come."""
    redis.kill()
    app = App("cases", broker=broker, locks={"main": redis.url})
    run = Run(app, name, store="main")
    run.may_end.set()
    async with serving(app, role="scheduler") as served:
        await served.wait_for(LockStoreDown)
        assert [] == served.those(ScheduleRun)
        redis.start()
        await served.wait_for(ScheduleDone, within=WITHIN)


@pytest.mark.parametrize(("down", "runs"), [(1, True), (2, False)])
async def test_a_redlock_of_which_servers_are_down(
    broker: str, name: str, *, down: int, runs: bool
) -> None:
    """One of three may be away; two are a failure, and no run."""
    with redis_servers(3) as servers:
        for server in servers[:down]:
            server.kill()
        app = App("cases", broker=broker, locks={"main": [server.url for server in servers]})
        run = Run(app, name, store="main")
        run.may_end.set()
        async with serving(app, role="scheduler") as served:
            await served.wait_for(ScheduleDone if runs else LockStoreDown, 2)
            assert runs == bool(served.those(ScheduleRun))
            if not runs:
                servers[0].start()
                await served.wait_for(ScheduleDone, within=WITHIN)


async def test_a_nats_that_is_killed_during_a_run(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The default store: the run goes on and ends; what it claimed is there after the restart."""
    caplog.set_level(logging.WARNING, "mega.schedule")
    with NatsServer() as server:
        app = App("cases", broker=broker_of(server))
        run = Run(app, name, store="default")
        async with serving(app, role="scheduler") as served:
            (started,) = await served.wait_for(ScheduleRun)
            server.kill()
            await served.wait_for(LockStoreDown, within=WITHIN)
            server.start()
            await until(
                lambda: "answers again" in caplog.text, within=WITHIN, what="the lease renewed"
            )
            run.may_end.set()
            (done,) = await served.wait_for(ScheduleDone, within=WITHIN)
    assert started.due_at == done.due_at
    assert [] == served.those(LockLost)
    assert "had lost the lease" not in caplog.text


async def test_two_apps_on_one_lock(broker: str, name: str, redis: RedisServer) -> None:
    """A tick that meets the run of another process names that process."""
    apps = [App("cases", broker=broker, locks={"main": redis.url}) for _ in range(2)]
    runs = [Run(app, name, store="main") for app in apps]
    async with (
        serving(apps[0], role="scheduler") as one,
        serving(apps[1], role="scheduler") as other,
    ):
        both = (one, other)
        await until(lambda: any(served.those(ScheduleRun) for served in both), what="a run")
        holder, waiter = both if one.those(ScheduleRun) else (other, one)
        await until(lambda: running(waiter), within=WITHIN, what="a skip")
        assert holder.session.around.worker == running(waiter)[0].by.partition("/")[0]
        assert 1 == sum(len(run.fences) for run in runs)
        for run in runs:
            run.may_end.set()


def running(served: Served) -> list[ScheduleSkipped]:
    return [skip for skip in served.those(ScheduleSkipped) if skip.reason == "running"]
