"""Schedule claims in the bucket MEGA_CLAIMS, by compare-and-set on the key's last sequence.

All times are the server's: a scheduler with a wrong clock can't end another one's lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from secrets import token_hex
from typing import TypeVar

import msgspec

from mega.adapters.nats.buckets import last_stored
from mega.adapters.nats.client import ApiError, Client
from mega.adapters.nats.layout import CLAIMS, key_token
from mega.adapters.nats.publisher import EXPECTED_SEQUENCE, Publisher, WrongSequence
from mega.errors import BrokerError, LockBackendError
from mega.ports import Claim, LeaseAnswer, Skip
from mega.wire.message import SERVER_ID

__all__ = ["NatsClaims"]

T = TypeVar("T")

BUDGET = 1.0


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """What is known of one schedule.

    `lease` are the seconds that the owner's lease lasts from the moment of the writing.
    `running` is who held the lease when the tick was decided, and so kept it from running.
    """

    tick: datetime | None = None
    claimed_by: str = ""
    running: str = ""
    owner: str = ""
    lease: float = 0.0
    fence: int = 0


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

    async def _claim(self, asked: Claim) -> Claim | Skip:
        while True:
            entry = await self._read(asked.key)
            answer = settled(entry.record, asked)
            if answer is not None:
                return answer
            left = await self._left(entry, asked.owner)
            wanted, answer = deny(entry, asked, left) if left else grant(entry, asked)
            if wanted == entry.record or await self._replace(entry, wanted):
                return answer

    async def _extend(self, claim: Claim) -> LeaseAnswer:
        while True:
            entry = await self._read(claim.key)
            known = entry.record
            if known.fence > claim.fence or known.owner not in ("", claim.owner):
                return "lost"
            wanted = replace(known, owner=claim.owner, lease=claim.lease or 0.0, fence=claim.fence)
            if await self._replace(entry, wanted):
                return "held"

    async def _release(self, claim: Claim) -> None:
        while True:
            entry = await self._read(claim.key)
            if (entry.record.owner, entry.record.fence) != (claim.owner, claim.fence):
                return
            if await self._replace(entry, replace(entry.record, owner="", lease=0)):
                return

    async def _left(self, entry: Entry, owner: str) -> float:
        """Return how long another owner's lease still lasts."""
        if entry.record.owner in ("", owner):
            return 0.0
        info = await self._client.api(f"STREAM.INFO.KV_{CLAIMS}", timeout=BUDGET)
        age = datetime.fromisoformat(info["ts"]) - entry.at
        return max(0.0, entry.record.lease - age.total_seconds())

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
            raise LockBackendError(f"the claim store failed: {cause.args[0]}") from cause


def settled(known: ClaimRecord, asked: Claim) -> Claim | Skip | None:
    """Return the answer when the tick was decided before; its decider is told the same again."""
    if asked.tick is None or known.tick is None or asked.tick > known.tick:
        return None
    if asked.tick != known.tick or asked.owner != known.claimed_by:
        return Skip("taken", by=known.claimed_by)
    if known.running:
        return Skip("running", by=known.running)
    return replace(asked, fence=known.fence)


def grant(entry: Entry, asked: Claim) -> tuple[ClaimRecord, Claim]:
    """Return the record that makes the claim.

    A fence above the key's last sequence is above every earlier fence, and known in advance.
    """
    claim = replace(asked, fence=entry.sequence + 1)
    record = replace(with_tick(entry.record, claim), fence=claim.fence)
    if claim.lease is not None:
        record = replace(record, owner=claim.owner, lease=claim.lease)
    return record, claim


def deny(entry: Entry, asked: Claim, left: float) -> tuple[ClaimRecord, Skip]:
    """Return the record that decides the tick without a run, for another one's lease lasts."""
    holder = entry.record.owner
    record = entry.record
    if asked.tick is not None:
        record = replace(with_tick(record, asked), running=holder, lease=left)
    return record, Skip("running", by=holder)


def with_tick(record: ClaimRecord, claim: Claim) -> ClaimRecord:
    if claim.tick is None:
        return record
    return replace(record, tick=claim.tick.astimezone(UTC), claimed_by=claim.owner, running="")
