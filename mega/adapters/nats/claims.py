"""Schedule claims in the bucket MEGA_CLAIMS, by compare-and-set on the key's last sequence.

All times are the server's: a scheduler with a wrong clock can't end another one's lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime
from secrets import token_hex
from typing import TypeVar

import msgspec

from mega.adapters.claiming import (
    ClaimRecord,
    deny,
    extended,
    grant,
    is_far_behind,
    released,
    settled,
)
from mega.adapters.nats.buckets import last_stored
from mega.adapters.nats.client import ApiError, Client
from mega.adapters.nats.layout import CLAIMS, key_token
from mega.adapters.nats.publisher import EXPECTED_SEQUENCE, Publisher, WrongSequence
from mega.adapters.nats.server_clock import instant
from mega.errors import BrokerError, BrokerUnavailable, LockBackendError
from mega.ports import Claim, LeaseAnswer, Lost, Skip
from mega.wire.message import SERVER_ID

__all__ = ["NatsClaims"]

T = TypeVar("T")

BUDGET = 1.0


@dataclass(slots=True)
class Entry:
    """A record as it was read: `sequence` is what a write is compared with."""

    key: str
    sequence: int
    record: ClaimRecord
    at: datetime


class NatsClaims:
    """Implements `ports.ClaimStore`."""

    def __init__(self, client: Client, publisher: Publisher) -> None:
        self._client = client
        self._publisher = publisher

    async def last_tick(self, key: str) -> datetime | None:
        entry = await self._within_budget(self._read(key))
        return entry.record.tick

    async def claim(
        self, key: str, *, tick: datetime | None, owner: str, lease: float | None
    ) -> Claim | Skip:
        asked = Claim(key=key, owner=owner, fence=0, tick=tick, lease=lease)
        return await self._within_budget(self._claim(asked))

    async def extend(self, claim: Claim) -> LeaseAnswer:
        return await self._within_budget(self._extend(claim))

    async def release(self, claim: Claim) -> None:
        await self._within_budget(self._release(claim))

    async def time(self) -> datetime:
        return await self._within_budget(self._time())

    async def _claim(self, asked: Claim) -> Claim | Skip:
        while True:
            entry = await self._read(asked.key)
            now = await self._time() if is_far_behind(entry.record, asked) else None
            refusal = settled(entry.record, asked, now=now)
            if refusal is not None:
                return refusal
            wanted, answer = await self._decide(entry, asked)
            # A lease counts from the writing, so that a repeated claim writes it anew.
            is_written = wanted == entry.record and (isinstance(answer, Skip) or not asked.lease)
            if is_written or await self._replace(entry, wanted):
                return answer

    async def _decide(self, entry: Entry, asked: Claim) -> tuple[ClaimRecord, Claim | Skip]:
        left = await self._left(entry, asked.owner)
        if left:
            return deny(entry.record, asked, left=left)
        now = await self._time() if asked.tick is None else None
        # The sequence outlives a record that somebody deleted.
        return grant(entry.record, asked, above=entry.sequence, now=now)

    async def _extend(self, claim: Claim) -> LeaseAnswer:
        while True:
            entry = await self._read(claim.key)
            wanted, answer = extended(entry.record, claim)
            if isinstance(answer, Lost) or await self._replace(entry, wanted):
                return answer

    async def _release(self, claim: Claim) -> None:
        while True:
            entry = await self._read(claim.key)
            wanted = released(entry.record, claim)
            if wanted == entry.record or await self._replace(entry, wanted):
                return

    async def _left(self, entry: Entry, owner: str) -> float:
        """Return how long another owner's lease still lasts."""
        if entry.record.owner in ("", owner):
            return 0.0
        age = await self._time() - entry.at
        return max(0.0, entry.record.lease - age.total_seconds())

    async def _time(self) -> datetime:
        info = await self._client.api(f"STREAM.INFO.KV_{CLAIMS}", timeout=BUDGET)
        return instant(info["ts"])

    async def _read(self, key: str) -> Entry:
        stored = await last_stored(self._client, CLAIMS, key_token(key), timeout=BUDGET)
        record = msgspec.json.decode(stored.body or b"{}", type=ClaimRecord)
        return Entry(key, stored.sequence, record, stored.at)

    async def _replace(self, entry: Entry, record: ClaimRecord) -> bool:
        """Write unless someone wrote since. The id makes sending it twice store it once."""
        headers = {EXPECTED_SEQUENCE: str(entry.sequence), SERVER_ID: token_hex(8)}
        subject = f"$KV.{CLAIMS}.{key_token(entry.key)}"
        try:
            await self._publisher.store(subject, msgspec.json.encode(record), headers)
        except WrongSequence:
            return False
        return True

    async def _within_budget(self, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(BUDGET):
                return await call
        except TimeoutError:
            error = LockBackendError(f"{self._client.where} did not answer within {BUDGET:g} s.")
            error.ambiguous = True
            raise error from None
        except (BrokerError, ApiError, msgspec.DecodeError) as cause:
            error = LockBackendError(f"the claim store failed: {cause.args[0]}")
            error.ambiguous = type(cause) is BrokerUnavailable
            raise error from cause
