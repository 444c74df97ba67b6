"""One run of one schedule: claim the tick, hold the lease, call the handler, release."""

from __future__ import annotations

from contextvars import copy_context
from datetime import datetime
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from mega.context import ScheduleContext, current_run
from mega.declare.registry import ScheduleSpec
from mega.errors import LockLostError
from mega.events import ScheduleDone, ScheduleFailed, ScheduleRun, ScheduleSkipped
from mega.options import Backoff, kept_seconds
from mega.ports import Claim, Skip
from mega.runtime.calling import Call, caller
from mega.runtime.isolation import isolated
from mega.runtime.schedule_notes import ScheduleNotes
from mega.runtime.surroundings import Surroundings
from mega.runtime.tick_claims import TickClaims
from mega.runtime.tick_jobs import JobStore, TickJobs
from mega.wire.schedule_record import ScheduleRecord

__all__ = ["ScheduleRunner"]

RETRY_BACKOFF = Backoff()


class ScheduleRunner:
    """Runs schedules of this process, by tick or by hand."""

    def __init__(self, around: Surroundings, store: JobStore) -> None:
        self._notes = ScheduleNotes(around)
        self._claims = TickClaims(around)
        self._jobs = TickJobs(around, store, self._claims, self._notes)
        self._store = store
        self._around = around

    def end_waits_when(self, draining: anyio.Event) -> None:
        """Let no wait before another try outlast the setting of `draining`."""
        self._claims.draining = draining

    async def run(self, spec: ScheduleSpec, tick: datetime) -> None:
        """Run the tick if the claim allows it. Raises nothing but cancellation."""
        if await self._is_paused(spec, tick):
            return
        if spec.subject is not None:
            await self._jobs.run(spec, tick)
            return
        claim = await self._claims.claim(spec, tick)
        if isinstance(claim, Claim):
            await self._run_claimed(spec, tick, claim)
        elif claim is not None:
            self._skip(spec, tick, reason=claim.reason, by=claim.by)

    async def run_now(self, spec: ScheduleSpec) -> bool:
        """Run once by hand, and return whether it did: not while its lock is held.

        Raises: what the handler raised, LockBackendError, BrokerError.
        """
        claim = await self._claims.claim(spec, None)
        if isinstance(claim, Claim):
            error = await self._run_claimed(spec, None, claim)
            if error is not None:
                raise error
            return True
        if claim is not None:
            self._skip(spec, None, reason=claim.reason, by=claim.by)
        return False

    async def pause(self, spec: ScheduleSpec) -> None:
        """Skip its ticks in all processes, until `resume`. Raises: BrokerError."""
        await self._notes.pause(spec)

    async def resume(self, spec: ScheduleSpec) -> None:
        """Run its ticks again, but for those up to now. Raises: BrokerError."""
        latest = spec.timetable.previous(self._around.clock.now())
        is_claimed = spec.options.scope == "cluster"
        if latest is not None and is_claimed and await self._notes.paused_by(spec) is not None:
            await self._claims.note(spec, latest)
        await self._notes.resume(spec)

    async def is_paused(self, spec: ScheduleSpec) -> bool:
        """Whether it is paused. Raises: BrokerError."""
        return await self._notes.is_paused(spec)

    async def last_run(self, spec: ScheduleSpec) -> ScheduleRecord | None:
        """Return how its last run ended, in whichever process. Raises: BrokerError."""
        return await self._notes.last_run(spec)

    async def _run_claimed(
        self, spec: ScheduleSpec, tick: datetime | None, claim: Claim
    ) -> BaseException | None:
        started_at, begun = self._around.clock.now(), self._around.clock.monotonic()
        lateness = (started_at - tick).total_seconds() if tick else 0.0
        context: ScheduleContext[Any] = ScheduleContext(
            name=spec.name,
            due_at=tick,
            lateness=lateness,
            fence=claim.fence,
            app=self._around.app,
        )
        try:
            error = await isolated(copy_context(), self._run(spec, claim, context))
        finally:
            await self._claims.release(spec, tick, claim)
        seconds = self._around.clock.monotonic() - begun
        await self._notes.keep(spec, tick=tick, started_at=started_at, seconds=seconds, error=error)
        return error

    async def _is_paused(self, spec: ScheduleSpec, tick: datetime) -> bool:
        """Whether the schedule is paused; its tick is decided then, and won't be caught up."""
        by = await self._notes.paused_by(spec)
        if by is None:
            return False
        is_claimed = spec.options.scope == "cluster"
        answer = await self._claims.note(spec, tick) if is_claimed else None
        if isinstance(answer, Skip):
            self._skip(spec, tick, reason=answer.reason, by=answer.by)
        else:
            self._skip(spec, tick, reason="paused", by=by)
        return True

    # -- the run

    async def _run(
        self, spec: ScheduleSpec, claim: Claim, context: ScheduleContext[Any]
    ) -> BaseException | None:
        facts: dict[str, Any] = {"name": spec.name, "due_at": context.due_at}
        current_run.set(context)
        self._emit(ScheduleRun(**facts, lateness=context.lateness))
        begun = self._around.in_hand[context] = self._around.clock.monotonic()
        try:
            await self._call_held(spec, claim, context)
        except GeneratorExit:
            raise
        except BaseException as error:
            # A cancellation that nobody asked for is an error of the handler's own.
            is_cancelled = anyio.get_current_task().has_pending_cancellation()
            if is_cancelled and not isinstance(error, Exception):
                await checkpoint()  # raises the cancellation alone; a group may hold errors too
            self._emit(ScheduleFailed(**facts, error=error))
            return error
        finally:
            del self._around.in_hand[context]
        self._emit(ScheduleDone(**facts, seconds=self._around.clock.monotonic() - begun))
        return None

    async def _call_held(
        self, spec: ScheduleSpec, claim: Claim, context: ScheduleContext[Any]
    ) -> None:
        """Call the handler while the lease is renewed; a lost lease cancels it."""
        if claim.lease is None:
            await self._call(spec, context)
            return
        error: BaseException | None = None
        run = anyio.CancelScope()
        async with anyio.create_task_group() as group:
            with run:
                group.start_soon(self._claims.renew, spec, context.due_at, claim, run)
                try:
                    await self._call(spec, context)
                except (Exception, SystemExit, KeyboardInterrupt) as raised:
                    error = raised
            group.cancel_scope.cancel()
        if error is None and run.cancelled_caught:
            error = LockLostError(f'the lease of the schedule "{spec.name}" was lost.')
        if error is not None:
            raise error

    async def _call(self, spec: ScheduleSpec, context: ScheduleContext[Any]) -> None:
        """Call the handler, again after an error as often as `retries` says."""
        call = self._handler(spec)
        for attempt in range(1, spec.options.retries + 1):
            try:
                await call(None, context)
                return
            except Exception as raised:
                error = raised
            facts: dict[str, Any] = {"name": spec.name, "due_at": context.due_at}
            self._emit(ScheduleFailed(**facts, error=error, phase="retry"))
            if not await self._claims.has_slept(RETRY_BACKOFF.delay(attempt)):
                raise error
        await call(None, context)

    def _handler(self, spec: ScheduleSpec) -> Call:
        if spec.subject is None:
            limit = spec.options.timeout
            timeout = None if limit is None else kept_seconds(limit)
            return caller(spec.handler, self._around, timeout=timeout)

        async def enqueue(payload: Any, context: ScheduleContext[Any]) -> None:
            await self._store.enqueue(spec)

        return enqueue

    def _skip(
        self, spec: ScheduleSpec, tick: datetime | None, *, reason: str, by: str = ""
    ) -> None:
        self._emit(ScheduleSkipped(name=spec.name, due_at=tick, reason=reason, by=by))

    def _emit(self, event: Any) -> None:
        if self._around.hub.wants(type(event)):
            self._around.hub.emit(event)
