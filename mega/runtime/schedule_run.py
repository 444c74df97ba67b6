"""One run of one schedule: claim the tick, hold the lease, call the handler, release."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextvars import copy_context
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from mega.context import ScheduleContext, current_run
from mega.declare.registry import ScheduleSpec
from mega.errors import LockBackendError, LockLostError
from mega.events import (
    LockLost,
    LockStoreDown,
    ScheduleDone,
    ScheduleFailed,
    ScheduleRun,
    ScheduleSkipped,
)
from mega.ports import Claim, Skip
from mega.runtime.calling import Call, caller
from mega.runtime.isolation import isolated
from mega.runtime.surroundings import Surroundings

__all__ = ["EnqueueTick", "ScheduleRunner"]

EnqueueTick: TypeAlias = Callable[[ScheduleSpec, datetime | None], Awaitable[Any]]

#: A lease is renewed this many times before it would run out.
RENEWALS_PER_TTL = 3


def backing_off() -> Iterator[float]:
    """Yield the seconds before each further try: 1, 2, 4 and so on, at most 30."""
    for doubling in itertools.count():
        yield min(30.0, 2.0 ** min(doubling, 5))


class ScheduleRunner:
    """Runs schedules of this process, by tick or by hand."""

    def __init__(self, around: Surroundings, enqueue: EnqueueTick) -> None:
        self._around = around
        self._enqueue = enqueue
        self._numbers = itertools.count(1)

    async def run(
        self, spec: ScheduleSpec, *, tick: datetime | None = None
    ) -> BaseException | None:
        """Run once if the claim allows it, and return the error of the run, if any.

        `tick` None is a manual run: nothing is claimed, but the lock holds.
        """
        claim = await self._claim(spec, tick)
        if claim is None:
            return None
        lateness = (self._around.clock.now() - tick).total_seconds() if tick else 0.0
        context = ScheduleContext(
            name=spec.name, due_at=tick, lateness=lateness, fence=claim.fence, app=self._around.app
        )
        try:
            return await isolated(copy_context(), self._run(spec, claim, context))
        finally:
            await self._release(spec, claim)

    async def _claim(self, spec: ScheduleSpec, tick: datetime | None) -> Claim | None:
        owner = f"{self._around.worker}/{next(self._numbers)}"
        lease = float(spec.lock.ttl) if spec.lock else None  # type: ignore[arg-type]
        if tick is None and lease is None:
            return Claim(spec.key, owner, 0, None, None)
        answer = await self._ask_until_next_tick(spec, tick, owner, lease)
        if answer is None:
            return None
        if isinstance(answer, Skip):
            skipped = ScheduleSkipped(
                name=spec.name, due_at=tick, reason=answer.reason, by=answer.by
            )
            self._emit(skipped)
            return None
        return answer

    async def _ask_until_next_tick(
        self, spec: ScheduleSpec, tick: datetime | None, owner: str, lease: float | None
    ) -> Claim | Skip | None:
        """Ask again while the store is away: one owner gets one answer, however often it asks."""
        give_up_at = spec.timetable.next(tick) if tick else None
        for wait in backing_off():
            try:
                return await self._around.broker.claims.claim(
                    spec.key, tick=tick, owner=owner, lease=lease
                )
            except LockBackendError as error:
                self._emit(LockStoreDown(name=spec.name, due_at=tick, error=error))
            now = self._around.clock.now()
            if give_up_at is None or now + timedelta(seconds=wait) >= give_up_at:
                return None
            await self._around.clock.sleep(wait)
        return None

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
        call = self._handler(spec)
        if claim.lease is None:
            await call(None, context)
            return
        error: BaseException | None = None
        run = anyio.CancelScope()
        async with anyio.create_task_group() as group:
            with run:
                group.start_soon(self._renew, spec, claim, run)
                try:
                    await call(None, context)
                except (Exception, SystemExit, KeyboardInterrupt) as raised:
                    error = raised
            group.cancel_scope.cancel()
        if error is None and run.cancelled_caught:
            error = LockLostError(f'the lease of the schedule "{spec.name}" was lost.')
        if error is not None:
            raise error

    async def _renew(self, spec: ScheduleSpec, claim: Claim, run: anyio.CancelScope) -> None:
        assert claim.lease is not None
        while True:
            await self._around.clock.sleep(claim.lease / RENEWALS_PER_TTL)
            try:
                answer = await self._around.broker.claims.extend(claim)
            except LockBackendError as error:
                self._emit(LockStoreDown(name=spec.name, due_at=claim.tick, error=error))
                continue
            if answer == "lost":
                self._emit(LockLost(name=spec.name, due_at=claim.tick, by=""))
                run.cancel()
                return

    async def _release(self, spec: ScheduleSpec, claim: Claim) -> None:
        if claim.lease is None:
            return
        with anyio.CancelScope(shield=True):
            try:
                await self._around.broker.claims.release(claim)
            except LockBackendError as error:
                failed = ScheduleFailed(
                    name=spec.name, due_at=claim.tick, error=error, phase="release"
                )
                self._emit(failed)

    def _handler(self, spec: ScheduleSpec) -> Call:
        if spec.subject is None:
            return caller(spec.handler, self._around, timeout=spec.timeout)

        async def enqueue(payload: Any, context: ScheduleContext[Any]) -> None:
            await self._enqueue(spec, context.due_at)

        return enqueue

    def _emit(self, event: Any) -> None:
        if self._around.hub.wants(type(event)):
            self._around.hub.emit(event)
