"""Unique guards: keys of the state bucket, taken and given up by compare-and-set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from secrets import token_hex

import msgspec

from mega.adapters.nats.buckets import Stored, last_stored
from mega.adapters.nats.client import Client
from mega.adapters.nats.layout import STATE
from mega.adapters.nats.publisher import EXPECTED_SEQUENCE, Publisher, WrongSequence
from mega.adapters.nats.server_clock import ServerClock
from mega.adapters.nats.state import DELETED, MARKER_TTL, TTL, whole_seconds
from mega.ports import Guard
from mega.wire.message import SERVER_ID, stream_name, unique_token

__all__ = ["NatsGuards"]


@dataclass(frozen=True, slots=True)
class GuardRecord:
    """What is stored under the key."""

    id: str
    ttl: float
    stored: bool = False
    timed: bool = False


class NatsGuards:
    """Implements `ports.GuardStore`."""

    def __init__(self, client: Client, publisher: Publisher, clock: ServerClock) -> None:
        self._client = client
        self._publisher = publisher
        self._clock = clock

    async def take(self, guard: Guard, *, over: Guard | None = None) -> Guard:
        sequence = over.version if over is not None else 0
        while True:
            written = await self._write(guard, sequence)
            if written is not None:
                return written
            stored = await self._read(guard.subject, guard.key)
            if stored.body:
                return self._guard(guard.subject, guard.key, stored)
            sequence = stored.sequence  # it was freed, or ran out

    async def confirm(self, guard: Guard) -> None:
        await self._write(replace(guard, is_stored=True), guard.version)

    async def free(self, subject: str, key: str, *, job_id: str) -> None:
        stored = await self._read(subject, key)
        if not stored.body or self._guard(subject, key, stored).job_id != job_id:
            return
        headers = {TTL: MARKER_TTL, **DELETED}
        await self._replace(token(subject, key), b"", headers, stored.sequence)

    async def _write(self, guard: Guard, sequence: int) -> Guard | None:
        record = GuardRecord(guard.job_id, guard.ttl, guard.is_stored, guard.is_timed)
        headers = {TTL: whole_seconds(guard.ttl)}
        body = msgspec.json.encode(record)
        written = await self._replace(token(guard.subject, guard.key), body, headers, sequence)
        return replace(guard, version=written, age=0.0) if written else None

    async def _replace(
        self, token: str, body: bytes, headers: dict[str, str], sequence: int
    ) -> int:
        """Return the new sequence, or 0 when somebody wrote since."""
        # The id makes sending it twice store it once.
        headers = {**headers, EXPECTED_SEQUENCE: str(sequence), SERVER_ID: token_hex(8)}
        try:
            return (await self._publisher.store(f"$KV.{STATE}.{token}", body, headers)).seq
        except WrongSequence:
            return 0

    async def _read(self, subject: str, key: str) -> Stored:
        return await last_stored(self._client, STATE, token(subject, key))

    def _guard(self, subject: str, key: str, stored: Stored) -> Guard:
        record = msgspec.json.decode(stored.body, type=GuardRecord)
        age = (self._clock.now() - stored.at).total_seconds()
        return Guard(
            subject=subject,
            key=key,
            job_id=record.id,
            ttl=record.ttl,
            is_stored=record.stored,
            is_timed=record.timed,
            version=stored.sequence,
            age=max(0.0, age),
        )


def token(subject: str, key: str) -> str:
    """Return the key in the bucket. No job can have it: a `%` in an id is itself encoded."""
    return f"%unique.{stream_name(subject)}.{unique_token(key)}"
