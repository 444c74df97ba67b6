"""Schedules over a job: each tick is one job, and its id decides which process stores it.

Claim and enqueue are one publish then, so a scheduler that dies leaves no tick half done:
that the tick is decided is noted after. The broker knows an id for its duplicate window only.
For an older tick, one that is caught up, who may store its job is decided first, by a lease.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mega.declare.registry import Registry, ScheduleSpec
from mega.errors import BrokerError, BrokerUnavailable, LockBackendError
from mega.events import ScheduleDone, ScheduleEvent, ScheduleFailed, ScheduleRun, ScheduleSkipped
from mega.ports import Claim, Kept, Skip
from mega.runtime.producer import Producer, Target
from mega.runtime.schedule_notes import ScheduleNotes
from mega.runtime.surroundings import Surroundings
from mega.runtime.tick_claims import TickClaims, backing_off
from mega.wire.record import JobRecord

__all__ = ["JobStore", "TickJobs"]

#: How long storing a job may take; by then the broker must still know the id.
MARGIN = 10.0
NOT_KEPT = Kept(None, 0, is_vacant=True)


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


@dataclass
class Storing:
    """One tick on its way to being a job.

    `asked` is the claim that keeps others off; it `may_be_held`, without an answer, or with one.
    `is_unsure`: a try got no answer, so that what is there may be this process's own.
    """

    spec: ScheduleSpec
    tick: datetime
    asked: Claim
    may_be_held: bool = False
    is_unsure: bool = False


class TickJobs:
    """Sees to it that each tick becomes one job."""

    def __init__(
        self, around: Surroundings, store: JobStore, claims: TickClaims, notes: ScheduleNotes
    ) -> None:
        self._around = around
        self._jobs = store
        self._claims = claims
        self._notes = notes

    async def run(self, spec: ScheduleSpec, tick: datetime) -> None:
        """Have the tick's job stored, by this process or another, before the next tick is due."""
        storing = Storing(spec, tick, self._claims.holding(spec))
        give_up_at = self._claims.give_up_at(spec, tick)
        try:
            for wait in backing_off():
                failure = await self._store_or_see(storing)
                if failure is None:
                    return
                if not await self._claims.may_try_again(give_up_at, wait):
                    self._emit(failure)
                    await self._forget(storing)
                    return
        finally:
            if storing.may_be_held:
                await self._claims.abandon(spec, storing.asked)

    async def _store_or_see(self, storing: Storing) -> ScheduleEvent | None:
        """Store the job, or see that it is; else return the event that says why it isn't."""
        spec, tick = storing.spec, storing.tick
        age = (self._around.clock.now() - tick).total_seconds()
        try:
            # A scheduler whose clock is hours behind comes to ticks whose ids nobody knows now.
            if await self._claims.is_decided(spec, tick):
                self._skip(spec, tick)
            elif age < self._around.broker.duplicate_window - MARGIN:
                await self._store(storing)
            else:
                return await self._store_held(storing)
        except (BrokerError, LockBackendError) as error:
            return ScheduleFailed(name=spec.name, due_at=tick, error=error)
        return None

    async def _store_held(self, storing: Storing) -> ScheduleEvent | None:
        spec, tick = storing.spec, storing.tick
        storing.may_be_held = True
        holder = await self._claims.hold(spec, tick, storing.asked)
        if isinstance(holder, Skip):
            storing.may_be_held = False
            return ScheduleSkipped(name=spec.name, due_at=tick, reason="running", by=holder.by)
        try:
            if await self._is_there(storing):
                self._skip(spec, tick)
                await self._claims.note(spec, tick, owner=holder.owner)
            else:
                await self._store(storing, owner=holder.owner)
        finally:
            storing.may_be_held = False
            await self._claims.release(spec, tick, holder)
        return None

    async def _store(self, storing: Storing, *, owner: str | None = None) -> None:
        """Store the job unless it is there, and note that the tick is decided."""
        spec, tick, clock = storing.spec, storing.tick, self._around.clock
        started_at, begun = clock.now(), clock.monotonic()
        try:
            is_new = await self._jobs.enqueue(spec, tick) or storing.is_unsure
        except BrokerUnavailable:
            storing.is_unsure = True
            raise
        seconds = clock.monotonic() - begun
        if is_new:
            lateness = (started_at - tick).total_seconds()
            self._emit(ScheduleRun(name=spec.name, due_at=tick, lateness=lateness))
            self._emit(ScheduleDone(name=spec.name, due_at=tick, seconds=seconds))
        else:
            self._skip(spec, tick)
        await self._claims.note(spec, tick, owner=owner)
        if is_new:
            await self._notes.keep(spec, tick=tick, started_at=started_at, seconds=seconds)

    async def _is_there(self, storing: Storing) -> bool:
        """Whether the tick's job was stored before; a record of our own failed try is no proof."""
        record = (await self._look(storing)).record
        if record is None:
            return False
        return has_begun(record) or not storing.is_unsure

    async def _forget(self, storing: Storing) -> None:
        """Remove the record that a failed try left, or it would pass for a stored job."""
        if not storing.is_unsure:
            return
        with suppress(BrokerError):
            kept = await self._look(storing)
            if kept.record is not None and not has_begun(kept.record):
                await self._around.broker.state.replace(
                    kept.record.id, None, version=kept.version, ttl=0
                )

    async def _look(self, storing: Storing) -> Kept:
        if not self._jobs.is_tracked(storing.spec):
            return NOT_KEPT
        return await self._around.broker.state.look(job_id_of(storing.spec, storing.tick))

    def _skip(self, spec: ScheduleSpec, tick: datetime) -> None:
        self._emit(ScheduleSkipped(name=spec.name, due_at=tick, reason="taken"))

    def _emit(self, event: Any) -> None:
        if self._around.hub.wants(type(event)):
            self._around.hub.emit(event)


def has_begun(record: JobRecord) -> bool:
    return record.state != "waiting" or record.started_at is not None


def job_id_of(spec: ScheduleSpec, tick: datetime) -> str:
    return f"{spec.name}:{tick.isoformat()}"
