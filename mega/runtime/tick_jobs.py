"""Schedules over a job: each tick is one job, and its id decides which process stores it.

Claim and enqueue are one publish then, so a scheduler that dies leaves no tick half done:
that the tick is decided is noted after. The broker knows an id for its duplicate window only.
For an older tick, one that is caught up, who may store its job is decided first, by a lease.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from mega.declare.registry import Registry, ScheduleSpec
from mega.errors import BrokerError
from mega.events import ScheduleDone, ScheduleFailed, ScheduleRun, ScheduleSkipped
from mega.ports import Claim
from mega.runtime.producer import Producer, Target
from mega.runtime.schedule_notes import ScheduleNotes
from mega.runtime.surroundings import Surroundings
from mega.runtime.tick_claims import TickClaims, backing_off

__all__ = ["JobStore", "TickJobs"]

#: How long storing a job may take; by then the broker must still know the id.
MARGIN = 10.0


class JobStore:
    """Stores the jobs of schedules, under ids that tell the ticks."""

    def __init__(self, registry: Registry, producer: Producer) -> None:
        self._registry = registry
        self._producer = producer

    async def enqueue(self, spec: ScheduleSpec, tick: datetime | None = None) -> bool:
        """Store the job; False when it was there already. Raises: BrokerError."""
        job_id = job_id_of(spec, tick) if tick else None
        job = await self._producer.enqueue(self._target(spec), None, {"id": job_id})
        return not job.duplicate

    def is_tracked(self, spec: ScheduleSpec) -> bool:
        """Whether its jobs have records."""
        return self._target(spec).is_tracked

    def _target(self, spec: ScheduleSpec) -> Target:
        assert spec.subject is not None
        return Target.of(self._registry.jobs[spec.subject])


class TickJobs:
    """Sees to it that each tick becomes one job."""

    def __init__(
        self, around: Surroundings, store: JobStore, claims: TickClaims, notes: ScheduleNotes
    ) -> None:
        self._around = around
        self._store = store
        self._claims = claims
        self._notes = notes

    async def run(self, spec: ScheduleSpec, tick: datetime) -> None:
        """Have the tick's job stored, by this process or another, before the next tick is due."""
        failed: ScheduleFailed | None = None
        for wait in backing_off():
            try:
                if await self._is_done(spec, tick):
                    return
                failed = None
            except BrokerError as error:
                failed = ScheduleFailed(name=spec.name, due_at=tick, error=error)
            if not await self._claims.may_try_again(spec, tick, wait):
                break
        if failed is not None:
            self._emit(failed)

    async def _is_done(self, spec: ScheduleSpec, tick: datetime) -> bool:
        """Store the job, or see that it is; False when that can't be decided now."""
        # A scheduler whose clock is hours behind comes to ticks whose ids nobody knows any more.
        if await self._claims.is_decided(spec, tick):
            self._skip(spec, tick)
            return True
        age = (self._around.clock.now() - tick).total_seconds()
        if age < self._around.broker.duplicate_window - MARGIN:
            await self._enqueue(spec, tick)
            return True
        holder = await self._claims.hold(spec, tick)
        if holder is None:
            return False
        try:
            await self._enqueue(spec, tick, holder=holder)
        finally:
            await self._claims.release(spec, tick, holder)
        return True

    async def _enqueue(
        self, spec: ScheduleSpec, tick: datetime, *, holder: Claim | None = None
    ) -> None:
        """Store the job unless it is there, and note that the tick is decided."""
        started_at, begun = self._around.clock.now(), self._around.clock.monotonic()
        is_there = holder is not None and await self._has_record(spec, tick)
        is_new = not is_there and await self._store.enqueue(spec, tick)
        seconds = self._around.clock.monotonic() - begun
        if is_new:
            lateness = (started_at - tick).total_seconds()
            self._emit(ScheduleRun(name=spec.name, due_at=tick, lateness=lateness))
            self._emit(ScheduleDone(name=spec.name, due_at=tick, seconds=seconds))
        else:
            self._skip(spec, tick)
        await self._claims.note(spec, tick, owner=holder.owner if holder else None)
        if is_new:
            await self._notes.keep(spec, tick=tick, started_at=started_at, seconds=seconds)

    async def _has_record(self, spec: ScheduleSpec, tick: datetime) -> bool:
        if not self._store.is_tracked(spec):
            return False
        return await self._around.broker.state.get(job_id_of(spec, tick)) is not None

    def _skip(self, spec: ScheduleSpec, tick: datetime) -> None:
        self._emit(ScheduleSkipped(name=spec.name, due_at=tick, reason="taken"))

    def _emit(self, event: Any) -> None:
        if self._around.hub.wants(type(event)):
            self._around.hub.emit(event)


def job_id_of(spec: ScheduleSpec, tick: datetime) -> str:
    return f"{spec.name}:{tick.isoformat()}"
