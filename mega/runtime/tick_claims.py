"""Claims and leases of schedules, also while a lock store is away; says once that it is."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from secrets import token_hex
from typing import TypeAlias

import anyio

from mega.declare.registry import ScheduleSpec
from mega.errors import LockBackendError
from mega.events import LockLost, LockStoreDown, ScheduleFailed
from mega.options import kept_seconds
from mega.ports import FAR_AHEAD, Claim, ClaimStore, Lost, Skip
from mega.runtime.draining import has_slept
from mega.runtime.surroundings import Surroundings

__all__ = ["TickClaims", "backing_off"]

#: A lock store, and a key in it.
Place: TypeAlias = tuple[str, str]

logger = logging.getLogger("mega.schedule")

#: A lease is renewed this many times before it would run out.
RENEWALS_PER_TTL = 3
#: Longer than it takes to store a job, and shorter than the broker knows its id.
HELD_FOR = 30.0
#: How long a tick that is caught up is tried for, at least: longer than who died may hold it.
OLD_TICK_PATIENCE = timedelta(seconds=60)


def backing_off() -> Iterator[float]:
    """Yield the seconds before each further try: 1, 2, 4 and so on, at most 30."""
    for doubling in itertools.count():
        yield min(30.0, 2.0 ** min(doubling, 5))


class TickClaims:
    """What this process asks of the lock stores. No wait outlasts the setting of `draining`."""

    def __init__(self, around: Surroundings) -> None:
        self.draining = anyio.Event()
        self._around = around
        self._silent_stores: set[str] = set()
        self._abandoned: dict[Place, list[Claim]] = {}

    async def claim(self, spec: ScheduleSpec, tick: datetime | None) -> Claim | Skip | None:
        """Return what the store says, or None when it said nothing until the next tick.

        `tick` None, a manual run, asks for the lease alone, and once. Raises then:
        LockBackendError.
        """
        # Over a job the lock names the store that notes the ticks; runs are the job's own.
        lease = kept_seconds(spec.lock.ttl) if spec.lock and spec.subject is None else None
        asked = Claim(spec.lock_key, self._owner(), 0, tick, lease)
        if spec.options.scope == "replica" or (tick is None and lease is None):
            return asked
        if tick is None or spec.lock_key == spec.key:
            return await self._ask_until_next_tick(spec, tick, asked)
        # The lock is shared: another schedule's tick of this instant decides nothing here.
        decided = await self._ask_until_next_tick(
            spec, tick, replace(asked, key=spec.key, lease=None)
        )
        if not isinstance(decided, Claim):
            return decided
        return await self._ask_until_next_tick(spec, tick, replace(asked, tick=None))

    async def note(
        self, spec: ScheduleSpec, tick: datetime, *, owner: str | None = None
    ) -> Claim | Skip | None:
        """Note the tick as decided, for other schedulers and those that start later."""
        noted = Claim(spec.key, owner or self._owner(), 0, tick, None)
        try:
            return await self._ask(spec, tick, noted)
        except LockBackendError:
            return None

    async def is_decided(self, spec: ScheduleSpec, tick: datetime) -> bool:
        """Whether the tick is known to be decided."""
        store = self._around.claims_for(spec.lock)
        try:
            last = await store.last_tick(spec.key)
            if last is not None and last - tick > FAR_AHEAD:
                # Decided by a clock that was wrong, or asked by one that is: the store's knows.
                return last - await store.time() <= FAR_AHEAD
        except LockBackendError as error:
            self._store_is_silent(spec, tick, error)
            return False
        self._store_answered(spec)
        return last is not None and tick <= last

    def holding(self, spec: ScheduleSpec) -> Claim:
        """Return a claim to `hold` with: one owner, however often it asks."""
        return Claim(spec.key, self._owner(), 0, None, HELD_FOR)

    async def hold(self, spec: ScheduleSpec, tick: datetime, asked: Claim) -> Claim | Skip:
        """Keep others off the schedule's ticks for a while. Raises: LockBackendError."""
        try:
            return await self._ask(spec, tick, asked)
        except LockBackendError:
            if spec.options.on_lock_error == "run":
                return replace(asked, lease=None)
            raise

    def give_up_at(self, spec: ScheduleSpec, tick: datetime) -> datetime | None:
        """Return until when a tick is tried for: until the next one is due. None: for ever."""
        now, following = self._around.clock.now(), spec.timetable.next(tick)
        if following is None or following > now:
            return following
        coming = spec.timetable.next(now)
        return None if coming is None else max(coming, now + OLD_TICK_PATIENCE)

    async def may_try_again(self, give_up_at: datetime | None, wait: float) -> bool:
        """Wait for so many seconds; False at once when that would be too late."""
        after = self._around.clock.now() + timedelta(seconds=wait)
        is_in_time = give_up_at is None or after < give_up_at
        return is_in_time and await self.has_slept(wait)

    async def has_slept(self, seconds: float) -> bool:
        """Return True after that many seconds, or False at once in a drain."""
        return await has_slept(self._around.clock, seconds, draining=self.draining)

    async def renew(
        self, spec: ScheduleSpec, tick: datetime | None, claim: Claim, run: anyio.CancelScope
    ) -> None:
        """Hold the lease until it is lost to another owner, and cancel the run then."""
        assert claim.lease is not None
        while True:
            await self._around.clock.sleep(claim.lease / RENEWALS_PER_TTL)
            try:
                answer = await self._around.claims_for(spec.lock).extend(claim)
            except LockBackendError as error:
                self._store_is_silent(spec, tick, error)
                continue
            self._store_answered(spec)
            if isinstance(answer, Lost):
                self._around.hub.emit(LockLost(name=spec.name, due_at=tick, by=answer.by))
                run.cancel()
                return
            if answer.retaken:
                text = "the lock store %r had lost the lease of %s, which is taken again"
                logger.warning(text, spec.store, spec.name)

    async def release(self, spec: ScheduleSpec, tick: datetime | None, claim: Claim) -> None:
        """Give the lease up, if there is one, also when this is being cancelled."""
        if claim.lease is None:
            return
        with anyio.CancelScope(shield=True):
            try:
                await self._around.claims_for(spec.lock).release(claim)
            except LockBackendError as error:
                failed = ScheduleFailed(name=spec.name, due_at=tick, error=error, phase="release")
                self._around.hub.emit(failed)

    def _owner(self) -> str:
        # In containers, two processes may have one host name and one id: each is 1 there.
        return f"{self._around.worker}/{token_hex(4)}"

    async def _ask_until_next_tick(
        self, spec: ScheduleSpec, tick: datetime | None, asked: Claim
    ) -> Claim | Skip | None:
        """Ask again while the store is away: one owner gets one answer, however often it asks."""
        give_up_at = self.give_up_at(spec, tick) if tick else None
        may_be_held = asked.lease is not None
        try:
            for wait in backing_off():
                try:
                    answer = await self._ask(spec, tick, asked)
                except LockBackendError:
                    if tick is None:
                        raise
                else:
                    may_be_held = False
                    return answer
                if spec.options.on_lock_error == "run":
                    return replace(asked, lease=None)
                if not await self.may_try_again(give_up_at, wait):
                    return None
        finally:
            if may_be_held:
                await self.abandon(spec, asked)
        raise AssertionError("the waits never end")

    async def abandon(self, spec: ScheduleSpec, claim: Claim) -> None:
        """Release what may have been given although no answer came; it would keep out everybody.

        While the store is away that waits until it is asked again.
        """
        store, place = self._around.claims_for(spec.lock), (spec.store, claim.key)
        self._abandoned.setdefault(place, []).append(claim)
        with anyio.CancelScope(shield=True), suppress(LockBackendError):
            await self._release_abandoned(store, place)

    async def _release_abandoned(self, store: ClaimStore, place: Place) -> None:
        claims = self._abandoned.get(place, [])
        while claims:
            await store.release(claims[0])
            del claims[:1]
        self._abandoned.pop(place, None)

    async def _ask(self, spec: ScheduleSpec, tick: datetime | None, asked: Claim) -> Claim | Skip:
        store = self._around.claims_for(spec.lock)
        try:
            await self._release_abandoned(store, (spec.store, asked.key))
            answer = await store.claim(
                asked.key, tick=asked.tick, owner=asked.owner, lease=asked.lease
            )
        except LockBackendError as error:
            self._store_is_silent(spec, tick, error)
            raise
        self._store_answered(spec)
        return answer

    def _store_is_silent(
        self, spec: ScheduleSpec, tick: datetime | None, error: LockBackendError
    ) -> None:
        is_again = spec.store in self._silent_stores
        self._silent_stores.add(spec.store)
        down = LockStoreDown(name=spec.name, due_at=tick, error=error, again=is_again)
        self._around.hub.emit(down)

    def _store_answered(self, spec: ScheduleSpec) -> None:
        if spec.store in self._silent_stores:
            self._silent_stores.discard(spec.store)
            logger.warning("the lock store %r answers again", spec.store)
