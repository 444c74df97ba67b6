"""Job records in the bucket MEGA_STATE: one message for each key, each with a time to live.

Writes wait for nothing: awaiting two of them for each job leaves a fifth of the throughput.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from nats.aio.msg import Msg

from mega.adapters.nats.buckets import Stored, last_stored
from mega.adapters.nats.client import Client
from mega.adapters.nats.layout import FOLLOW, STATE, key_token
from mega.adapters.nats.publisher import EXPECTED_SEQUENCE, Publisher
from mega.errors import BrokerUnavailable
from mega.wire.record import JobRecord, decode_record, encode_record

__all__ = ["NatsState"]

Read: TypeAlias = Callable[[], Awaitable[Stored]]

TTL, SEQUENCE = "Nats-TTL", "Nats-Sequence"
# A key that no job can have, because a `%` in an id is itself encoded.
BARRIER = f"$KV.{STATE}.%barrier"
LOOK_AGAIN_AFTER = 1.0


class NatsState:
    """Implements `ports.StateStore`."""

    def __init__(self, client: Client, publisher: Publisher) -> None:
        self._client = client
        self._publisher = publisher
        self._has_written = False

    async def create(self, record: JobRecord, *, ttl: float) -> None:
        await self._send(record, {TTL: whole_seconds(ttl), EXPECTED_SEQUENCE: "0"})

    async def write(self, record: JobRecord, *, ttl: float) -> None:
        await self._send(record, {TTL: whole_seconds(ttl)})

    async def get(self, job_id: str) -> JobRecord | None:
        stored = await self._read(key_token(job_id))
        return decode_record(stored.body) if stored.body else None

    @asynccontextmanager
    async def follow(self, job_id: str) -> AsyncIterator[AsyncIterator[JobRecord]]:
        token = key_token(job_id)
        follower = Follower()
        interest = await self._client.subscribe(f"{FOLLOW}.{token}", follower.hear)
        self._client.on_up.append(follower.look_again)
        try:
            yield follower.records(lambda: self._read(token))
        finally:
            self._client.on_up.remove(follower.look_again)
            await interest.stop()

    async def _send(self, record: JobRecord, headers: dict[str, str]) -> None:
        self._has_written = True
        subject = f"$KV.{STATE}.{key_token(record.id)}"
        await self._client.publish(subject, encode_record(record), headers=headers)

    async def _read(self, token: str) -> Stored:
        # The server reads and stores in different goroutines: a read can overtake our writes.
        if self._has_written:
            await self._publisher.store(BARRIER, b"", {TTL: "1", "KV-Operation": "DEL"})
            self._has_written = False
        return await last_stored(self._client, STATE, token)


class Follower:
    """The newest record that was heard or read; the stream's sequence says which is newer."""

    def __init__(self) -> None:
        self._newest: tuple[int, bytes] = (0, b"")
        self._news = asyncio.Event()
        self._must_look = True

    async def hear(self, message: Msg) -> None:
        """Take a record that the server has just stored."""
        self._take(int((message.headers or {}).get(SEQUENCE, 0)), message.data)

    def look_again(self) -> None:
        """Read once more: something may have been stored while there was no connection."""
        self._must_look = True
        self._news.set()

    async def records(self, read: Read) -> AsyncIterator[JobRecord]:
        """Yield the newest record each time there is one."""
        seen = 0
        while True:
            self._news.clear()
            await self._look(read, is_first=seen == 0)
            sequence, body = self._newest
            if sequence > seen:
                seen = sequence
                yield decode_record(body)
            else:
                await self._news.wait()

    async def _look(self, read: Read, *, is_first: bool) -> None:
        while self._must_look:
            self._must_look = False
            try:
                stored = await read()
                self._take(stored.sequence, stored.body)
            except BrokerUnavailable:
                if is_first:
                    raise
                self._must_look = True
                await asyncio.sleep(LOOK_AGAIN_AFTER)

    def _take(self, sequence: int, body: bytes) -> None:
        if sequence > self._newest[0] and body:
            self._newest = (sequence, body)
            self._news.set()


def whole_seconds(ttl: float) -> str:
    """Return a time to live as the server takes it: at least 1 s."""
    return str(max(1, math.ceil(ttl)))
