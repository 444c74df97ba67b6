"""The scheduler's loop: one heap, one timer, runs as tasks of their own.

What is due is decided in `ticks`; whether this process may run it, in `schedule_run`.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

import anyio
from anyio.abc import TaskGroup

from mega.declare.registry import ScheduleSpec
from mega.errors import LockBackendError
from mega.events import ScheduleMisfired, ScheduleSkipped
from mega.runtime.schedule_run import ScheduleRunner
from mega.runtime.surroundings import Surroundings
from mega.runtime.ticks import Decision, decide

__all__ = ["Scheduler"]

logger = logging.getLogger("mega.schedule")

IDLE_SLEEP = 30.0
LATE_SECONDS = 1.0


@dataclass(order=True)
class Entry:
    """One schedule in the heap, by when it is to be looked at again."""

    wake_at: datetime
    name: str
    spec: ScheduleSpec = field(compare=False)
    last: datetime = field(compare=False)
    is_running: bool = field(compare=False, default=False)


class Scheduler:
    """Starts each tick of the given schedules, as long as it runs."""

    def __init__(
        self, specs: Iterable[ScheduleSpec], runner: ScheduleRunner, around: Surroundings
    ) -> None:
        self._specs = list(specs)
        self._runner = runner
        self._around = around
        self._heap: list[Entry] = []
        self._latest = around.clock.now()

    async def run(self, draining: anyio.Event) -> None:
        """Run ticks until `draining` is set, and return when the runs in hand have ended."""
        async with anyio.create_task_group() as runs:
            with anyio.CancelScope() as loop:
                async with anyio.create_task_group() as helpers:
                    helpers.start_soon(_cancel_when_set, draining, loop)
                    await self._load()
                    await self._loop(runs)

    async def _load(self) -> None:
        now = self._around.clock.now()
        for spec in self._specs:
            heapq.heappush(self._heap, Entry(now, spec.name, spec, await self._last(spec, now)))

    async def _last(self, spec: ScheduleSpec, now: datetime) -> datetime:
        """Return the last decided tick; before the first one, now: a deploy runs nothing."""
        try:
            return await self._around.broker.claims.last_tick(spec.key) or now
        except LockBackendError as error:
            logger.warning("the last tick of %s is not known: %s", spec.name, error)
            return now

    async def _loop(self, runs: TaskGroup) -> None:
        while True:
            now = self._around.clock.now()
            self._notice_step_back(now)
            while self._heap and self._heap[0].wake_at <= now:
                self._look_at(heapq.heappop(self._heap), now, runs)
            wait = (self._heap[0].wake_at - now).total_seconds() if self._heap else IDLE_SLEEP
            await self._around.clock.sleep(min(wait, IDLE_SLEEP))

    def _notice_step_back(self, now: datetime) -> None:
        """Look at all schedules anew: what the clock said before is no time to wait for."""
        if now < self._latest:
            for entry in self._heap:
                entry.wake_at = now
            heapq.heapify(self._heap)
        self._latest = now

    def _look_at(self, entry: Entry, now: datetime, runs: TaskGroup) -> None:
        decision = decide(entry.spec.timetable, entry.last, now)
        entry.last = decision.last
        if decision.tick is not None:
            self._start(entry, decision, now, runs)
        if decision.wake_at is not None:
            entry.wake_at = decision.wake_at
            heapq.heappush(self._heap, entry)

    def _start(self, entry: Entry, decision: Decision, now: datetime, runs: TaskGroup) -> None:
        assert decision.tick is not None
        lateness = (now - decision.tick).total_seconds()
        if decision.missed_since is not None:
            misfired = ScheduleMisfired(
                name=entry.name,
                due_at=decision.tick,
                missed_since=decision.missed_since,
                lateness=lateness,
            )
            self._around.hub.emit(misfired)
        elif lateness > LATE_SECONDS:
            logger.warning("%s starts %.1f s late", entry.name, lateness)
        if entry.is_running:
            skipped = ScheduleSkipped(
                name=entry.name, due_at=decision.tick, reason="running", by=self._around.worker
            )
            self._around.hub.emit(skipped)
            return
        entry.is_running = True
        runs.start_soon(self._run, entry, decision.tick)

    async def _run(self, entry: Entry, tick: datetime) -> None:
        try:
            await self._runner.run(entry.spec, tick=tick)
        finally:
            entry.is_running = False


async def _cancel_when_set(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
