"""The scheduler's loop: one heap, one timer, runs as tasks of their own.

What is due is decided in `ticks`; whether this process may run it, in `schedule_run`.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import anyio
from anyio.abc import TaskGroup

from mega.declare.registry import ScheduleSpec
from mega.errors import LockBackendError
from mega.events import ScheduleMisfired, ScheduleSkipped
from mega.options import kept_seconds
from mega.runtime.draining import cancel_when_set
from mega.runtime.schedule_run import ScheduleRunner
from mega.runtime.skew import SkewWatch
from mega.runtime.surroundings import Surroundings
from mega.runtime.ticks import MOST_CAUGHT_UP, Decision, decide, jitter_of

__all__ = ["Scheduler", "warn_of_host_zone"]

logger = logging.getLogger("mega.schedule")

#: No sleep is longer, so that a stepped clock or a resumed machine is noticed.
LONGEST_SLEEP = 30.0
#: A look at a schedule may compute its ticks of a day; runs may begin between so many of them.
IN_A_ROW = 100
LATE_SECONDS = 1.0
BETWEEN_WARNINGS = 60.0
#: A schedule that has ended is kept: a clock that is set right may bring its ticks back.
NEVER = datetime.max.replace(tzinfo=UTC)
LOADED_AT_ONCE = 64

Ticks = Sequence[datetime]


@dataclass(order=True)
class Entry:
    """One schedule in the heap, by when it is to be looked at again.

    `last` is its last decided tick, and `due` the one after that, once it is known.
    `runs` counts those that go on, and `queued` are the ticks that wait for their end.
    """

    wake_at: datetime
    name: str
    spec: ScheduleSpec = field(compare=False)
    last: datetime = field(compare=False)
    jitter: timedelta = field(compare=False)
    grace: timedelta | None = field(compare=False)
    due: datetime | None = field(compare=False, default=None)
    runs: int = field(compare=False, default=0)
    queued: Ticks = field(compare=False, default=())

    @classmethod
    def of(cls, spec: ScheduleSpec, *, now: datetime, last: datetime | None) -> Entry:
        """Return the entry of a schedule; before its first tick `last` is now: no deploy runs."""
        options = spec.options
        jitter = jitter_of(spec.name, kept_seconds(options.jitter))
        grace = options.grace
        if grace is not None:
            grace = timedelta(seconds=kept_seconds(grace))
        return cls(now, spec.name, spec, last or now, jitter, grace)

    def decide(self, last: datetime, now: datetime, *, due: datetime | None = None) -> Decision:
        """Decide what is due by its options; see `ticks.decide`."""
        catch_up = self.spec.options.catch_up
        return decide(self.spec.timetable, last, now, due=due, catch_up=catch_up, grace=self.grace)


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
        self._silent_until = 0.0
        self._draining = anyio.Event()
        self._runs: TaskGroup
        self._waits: TaskGroup

    async def run(self, draining: anyio.Event) -> None:
        """Run ticks until `draining` is set, and return when the runs in hand have ended."""
        warn_of_host_zone(self._specs)
        self._draining = draining
        self._runner.end_waits_when(draining)
        async with anyio.create_task_group() as self._runs:
            with anyio.CancelScope() as loop:
                async with anyio.create_task_group() as self._waits:
                    self._waits.start_soon(cancel_when_set, draining, loop)
                    self._waits.start_soon(self._skew_watch().run)
                    await self._load()
                    await self._loop()

    def _skew_watch(self) -> SkewWatch:
        claimed = [spec for spec in self._specs if spec.options.scope == "cluster"]
        stores = {spec.store: self._around.claims_for(spec.lock) for spec in claimed}
        return SkewWatch(stores, self._around.clock)

    async def _load(self) -> None:
        """Fill the heap with all schedules, from their last decided ticks on."""
        now, left = self._around.clock.now(), iter(self._specs)
        silent: dict[str, LockBackendError] = {}

        async def load() -> None:
            for spec in left:  # which all of these share
                last = await self._last_tick(spec, silent)
                self._heap.append(Entry.of(spec, now=now, last=last))

        async with anyio.create_task_group() as loads:
            for _ in range(LOADED_AT_ONCE):
                loads.start_soon(load)
        heapq.heapify(self._heap)
        for store, error in silent.items():
            first, *others = [spec.name for spec in self._specs if spec.store == store]
            more = f" (and of {len(others)} more)" if others else ""
            logger.warning("the last tick of %s%s is not known: %s", first, more, error)

    async def _last_tick(
        self, spec: ScheduleSpec, silent: dict[str, LockBackendError]
    ) -> datetime | None:
        """Return the last decided tick, if it is known; a store that is silent is asked once."""
        if spec.options.scope != "cluster" or spec.store in silent:
            return None
        try:
            return await self._around.claims_for(spec.lock).last_tick(spec.key)
        except LockBackendError as error:
            silent[spec.store] = error
            return None

    async def _loop(self) -> None:
        while True:
            now = self._around.clock.now()
            self._notice_step_back(now)
            lateness: list[float] = []
            while self._heap and self._heap[0].wake_at <= now and len(lateness) < IN_A_ROW:
                lateness.append(self._look_at(heapq.heappop(self._heap), now))
            self._warn_of_lag([seconds for seconds in lateness if seconds > LATE_SECONDS])
            await self._around.clock.sleep(self._seconds_left())

    def _seconds_left(self) -> float:
        """Return the time to the next tick, as it is after what was started has begun."""
        if not self._heap:
            return LONGEST_SLEEP
        left = (self._heap[0].wake_at - self._around.clock.now()).total_seconds()
        return min(max(0.0, left), LONGEST_SLEEP)

    def _warn_of_lag(self, late: list[float]) -> None:
        """Say it once a minute at most: each run tells its own lateness."""
        monotonic = self._around.clock.monotonic()
        if late and monotonic >= self._silent_until:
            self._silent_until = monotonic + BETWEEN_WARNINGS
            count = "1 schedule starts" if len(late) == 1 else f"{len(late)} schedules start up to"
            logger.warning("%s %.1f s late", count, max(late))

    def _notice_step_back(self, now: datetime) -> None:
        """Look at all schedules anew: what the clock said before is no time to wait for."""
        if now < self._latest:
            for entry in self._heap:
                entry.wake_at = now
            heapq.heapify(self._heap)
        self._latest = now

    def _look_at(self, entry: Entry, now: datetime) -> float:
        """Start what is due, and return by how many seconds it is late, unless it was missed."""
        before = entry.last
        decision = entry.decide(before, now, due=entry.due)
        if decision.is_correction:
            text = "the clock was set back to %s, by hours: %s counts its ticks from there"
            logger.warning(text, now.isoformat(timespec="seconds"), entry.name)
        entry.last, entry.due = decision.last, decision.following
        entry.wake_at = decision.following or NEVER
        heapq.heappush(self._heap, entry)
        if decision.missed_since is not None:
            self._waits.start_soon(self._catch_up, entry, before, now)
            return 0.0
        self._start(entry, decision.ticks)
        return (now - decision.latest).total_seconds() if decision.latest else 0.0

    async def _catch_up(self, entry: Entry, before: datetime, now: datetime) -> None:
        """Tell of what was missed and start it, but for the ticks that others have decided."""
        decision = entry.decide(await self._last_decided(entry, before), now)
        if decision.latest is not None and decision.missed_since is not None:
            misfired = ScheduleMisfired(
                name=entry.name,
                due_at=decision.latest,
                missed_since=decision.missed_since,
                lateness=(now - decision.latest).total_seconds(),
            )
            self._around.hub.emit(misfired)
        self._start(entry, decision.ticks)

    async def _last_decided(self, entry: Entry, known: datetime) -> datetime:
        if entry.spec.options.scope != "cluster":
            return known
        try:
            last = await self._around.claims_for(entry.spec.lock).last_tick(entry.spec.key)
        except LockBackendError:  # to claim the ticks is to ask again, and to say so
            return known
        return known if last is None else max(known, last)

    def _start(self, entry: Entry, ticks: Ticks) -> None:
        if ticks and entry.jitter:
            self._waits.start_soon(self._begin_after_jitter, entry, ticks)
        elif ticks:
            self._begin(entry, ticks)

    async def _begin_after_jitter(self, entry: Entry, ticks: Ticks) -> None:
        """Wait in the scope that a drain cancels, so that nothing begins after it."""
        wait = (ticks[-1] + entry.jitter - self._around.clock.now()).total_seconds()
        if wait > 0:
            await self._around.clock.sleep(wait)
        self._begin(entry, ticks)

    def _begin(self, entry: Entry, ticks: Ticks) -> None:
        overlap = entry.spec.options.overlap
        if not entry.runs or overlap == "allow":
            entry.runs += 1
            self._runs.start_soon(self._run, entry, ticks)
        elif entry.spec.subject is not None:
            # To store its job is no run that another one could overlap. But while the broker is
            # away no more may gather than would be caught up.
            most = MOST_CAUGHT_UP if entry.spec.options.catch_up == "all" else 1
            waiting = (*entry.queued, *ticks)
            entry.queued = waiting[-most:]
            for tick in waiting[:-most]:
                self._skip(entry, tick)
        elif overlap == "queue" and not entry.queued:
            entry.queued = ticks
        else:
            for tick in ticks:
                self._skip(entry, tick)

    def _skip(self, entry: Entry, tick: datetime) -> None:
        worker = self._around.worker
        skipped = ScheduleSkipped(name=entry.name, due_at=tick, reason="running", by=worker)
        self._around.hub.emit(skipped)

    async def _run(self, entry: Entry, ticks: Ticks) -> None:
        """Run ticks in turn, and then what was queued meanwhile."""
        try:
            while ticks and not self._draining.is_set():
                for tick in ticks:
                    if not self._draining.is_set():
                        await self._run_one(entry, tick)
                ticks, entry.queued = entry.queued, ()
        finally:
            entry.runs -= 1

    async def _run_one(self, entry: Entry, tick: datetime) -> None:
        try:
            await self._runner.run(entry.spec, tick)
        except Exception:
            # A fault of our own must not end the scheduler for all other schedules.
            logger.exception("%s: a run went wrong", entry.name)


def warn_of_host_zone(specs: Iterable[ScheduleSpec]) -> None:
    """Name the zone of the schedules that were declared without one."""
    zones = {spec.timezone for spec in specs if spec.is_host_zone}
    if zones:
        logger.warning("schedules without timezone= run in the host's zone, %s", zones.pop())
