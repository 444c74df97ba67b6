"""Processes that run the schedules of a group, on one memory broker and a virtual clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from mega.adapters.memory import MemoryBroker
from mega.adapters.memory_stores import MemoryClaims
from mega.declare.registry import ScheduleSpec
from mega.errors import LockBackendError
from mega.events import Event, ScheduleEvent
from mega.group import Group
from mega.ports import Claim, LeaseAnswer, Skip
from mega.runtime.hub import Hub
from mega.runtime.producer import Producer
from mega.runtime.schedule_run import ScheduleRunner
from mega.runtime.scheduler import Scheduler
from mega.runtime.surroundings import Surroundings
from mega.runtime.tick_jobs import JobStore
from mega.testing import EPOCH, VirtualClock

E = TypeVar("E", bound=Event)


class Process:
    """One process that runs the schedules of a group; several share a broker."""

    def __init__(self, group: Group, broker: MemoryBroker, clock: VirtualClock, name: str) -> None:
        self.events: list[Event] = []
        self.draining = anyio.Event()
        self.hub = Hub([(Event, self._note)])
        self._around = Surroundings(app=None, broker=broker, hub=self.hub, clock=clock, worker=name)
        store = JobStore(group.registry, Producer(broker, self.hub))
        self.runner = ScheduleRunner(self._around, store)
        self._registry = group.registry
        self.scheduler = Scheduler(group.registry.schedules.values(), self.runner, self._around)

    async def _note(self, event: Event) -> None:
        self.events.append(event)

    def spec(self, name: str) -> ScheduleSpec:
        return self._registry.schedules[name]

    def kinds(self) -> list[type[Event]]:
        """Return what happened to its schedules."""
        return [type(event) for event in self.those(ScheduleEvent)]

    def those(self, kind: type[E]) -> list[E]:
        """Return the events of one kind, in the order in which they came."""
        return [event for event in self.events if isinstance(event, kind)]

    def start(self, tasks: TaskGroup) -> None:
        tasks.start_soon(self.hub.run)
        tasks.start_soon(self.scheduler.run, self.draining)


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
    """A claim store that does not answer the calls named in `away`.

    While it `is_mute` it makes claims, and their answers are lost.
    """

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.away: set[str] = set()
        self.asked = Counter[str]()
        self.is_mute = False

    def _ask(self, call: str) -> None:
        self.asked[call] += 1
        if call in self.away:
            raise LockBackendError("the lock store is away.")

    async def last_tick(self, key: str) -> datetime | None:
        self._ask("last_tick")
        return await super().last_tick(key)

    async def claim(
        self, key: str, *, tick: datetime | None, owner: str, lease: float | None
    ) -> Claim | Skip:
        self._ask("claim")
        answer = await super().claim(key, tick=tick, owner=owner, lease=lease)
        if self.is_mute:
            error = LockBackendError("no answer came.")
            error.ambiguous = True
            raise error
        return answer

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
