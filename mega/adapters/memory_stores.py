"""Job records, unique guards and schedule claims in memory, timed by the given clock."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias

import anyio
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectSendStream

from mega.adapters.claiming import ClaimRecord, deny, extended, grant, released, settled
from mega.ports import Claim, Clock, Guard, Held, Kept, LeaseAnswer, Skip
from mega.wire.record import JobRecord, decode_record, encode_record

__all__ = ["MemoryClaims", "MemoryGuards", "MemoryState"]

Followers: TypeAlias = set[MemoryObjectSendStream[JobRecord]]


class MemoryState:
    """Implements `ports.StateStore`. Records are kept as bytes, as on the wire."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[bytes, float, int]] = {}
        self._versions = count(1)
        self._ends: list[tuple[float, str]] = []
        self._followers: defaultdict[str, Followers] = defaultdict(set)

    async def create(self, record: JobRecord, *, ttl: float) -> None:
        if self._find(record.id) is None:
            await self.write(record, ttl=ttl)

    async def write(self, record: JobRecord, *, ttl: float) -> None:
        end = self._clock.monotonic() + ttl
        self._kept[record.id] = (encode_record(record), end, next(self._versions))
        heappush(self._ends, (end, record.id))
        self._drop_expired()
        self._tell_followers(record.id)

    async def get(self, job_id: str) -> JobRecord | None:
        return self._find(job_id)

    async def is_alive(self, worker: str) -> bool:
        return True

    async def flush(self) -> None:
        await checkpoint()

    async def look(self, job_id: str, *, after_writes: bool = False) -> Kept:
        record = self._find(job_id)
        return Kept(record, self._kept[job_id][2] if record else 0, record is None)

    async def replace(
        self, job_id: str, record: JobRecord | None, *, version: int, ttl: float
    ) -> bool:
        if (await self.look(job_id)).version != version:
            return False
        if record is not None:
            await self.write(record, ttl=ttl)
        elif version:
            del self._kept[job_id]
        return True

    def records(self) -> list[JobRecord]:
        """Return what is kept of all jobs, in the order of their first writes."""
        kept = (self._find(job_id) for job_id in self._kept)
        return [record for record in kept if record is not None]

    @asynccontextmanager
    async def follow(self, job_id: str) -> AsyncIterator[AsyncIterator[JobRecord]]:
        send, receive = anyio.create_memory_object_stream[JobRecord](math.inf)
        with send, receive:
            present = self._find(job_id)
            if present is not None:
                send.send_nowait(present)
            self._followers[job_id].add(send)
            try:
                yield receive
            finally:
                self._forget(job_id, send)

    def _find(self, job_id: str) -> JobRecord | None:
        body, end, _ = self._kept.get(job_id, (b"", 0.0, 0))
        return decode_record(body) if end > self._clock.monotonic() else None

    def _drop_expired(self) -> None:
        now = self._clock.monotonic()
        while self._ends and self._ends[0][0] <= now:
            _, job_id = heappop(self._ends)
            if self._find(job_id) is None:
                self._kept.pop(job_id, None)

    def _tell_followers(self, job_id: str) -> None:
        if job_id not in self._followers:
            return
        record = self._find(job_id)
        if record is not None:
            for send in self._followers[job_id]:
                send.send_nowait(record)

    def _forget(self, job_id: str, send: MemoryObjectSendStream[JobRecord]) -> None:
        self._followers[job_id].discard(send)
        if not self._followers[job_id]:
            del self._followers[job_id]


class MemoryGuards:
    """Implements `ports.GuardStore`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[tuple[str, str], tuple[Guard, float]] = {}
        self._versions = count(1)

    async def take(self, guard: Guard, *, over: Guard | None = None) -> Guard:
        found = self._find(guard.subject, guard.key)
        if found is None or (over is not None and found.version == over.version):
            return self._write(guard)
        return found

    async def confirm(self, guard: Guard) -> None:
        found = self._find(guard.subject, guard.key)
        if found is not None and found.version == guard.version:
            self._write(replace(guard, is_stored=True))

    async def free(self, subject: str, key: str, *, job_id: str) -> None:
        found = self._find(subject, key)
        if found is not None and found.job_id == job_id:
            del self._held[subject, key]

    def _write(self, guard: Guard) -> Guard:
        written = replace(guard, version=next(self._versions), age=0.0)
        self._held[guard.subject, guard.key] = (written, self._clock.monotonic())
        return written

    def _find(self, subject: str, key: str) -> Guard | None:
        guard, written_at = self._held.get((subject, key), (None, 0.0))
        if guard is None:
            return None
        age = self._clock.monotonic() - written_at
        if age >= guard.ttl:
            del self._held[subject, key]
            return None
        return replace(guard, age=age)


class MemoryClaims:
    """Implements `ports.ClaimStore`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: defaultdict[str, ClaimRecord] = defaultdict(ClaimRecord)
        self._written_at: dict[str, float] = {}

    async def last_tick(self, key: str) -> datetime | None:
        return self._records[key].tick

    async def claim(
        self, key: str, *, tick: datetime | None, owner: str, lease: float | None
    ) -> Claim | Skip:
        known = self._records[key]
        asked = Claim(key=key, owner=owner, fence=0, tick=tick, lease=lease)
        refusal = settled(known, asked, now=self._clock.now())
        if refusal is not None:
            return refusal
        left = self._left(key, owner)
        wanted, answer = (
            deny(known, asked, left=left) if left else grant(known, asked, now=self._clock.now())
        )
        if isinstance(answer, Claim) or wanted != known:
            self._write(key, wanted)
        return answer

    async def extend(self, claim: Claim) -> LeaseAnswer:
        wanted, answer = extended(self._records[claim.key], claim)
        if isinstance(answer, Held):
            self._write(claim.key, wanted)
        return answer

    async def release(self, claim: Claim) -> None:
        known = self._records[claim.key]
        if (wanted := released(known, claim)) != known:
            self._write(claim.key, wanted)

    async def time(self) -> datetime:
        return self._clock.now()

    def _write(self, key: str, record: ClaimRecord) -> None:
        self._records[key], self._written_at[key] = record, self._clock.monotonic()

    def _left(self, key: str, owner: str) -> float:
        """Return how long another owner's lease still lasts."""
        known = self._records[key]
        if known.owner in ("", owner):
            return 0.0
        return max(0.0, known.lease - (self._clock.monotonic() - self._written_at[key]))
