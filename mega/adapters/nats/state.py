"""Job records in the bucket MEGA_STATE: one message for each key, each with a time to live.

Writes wait for nothing: awaiting two of them for each job leaves a fifth of the throughput.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import msgspec
from nats.aio.msg import Msg

from mega.adapters.nats.buckets import Stored, last_stored
from mega.adapters.nats.client import Client
from mega.adapters.nats.layout import STATE, key_token
from mega.adapters.nats.publisher import EXPECTED_SEQUENCE, Publisher
from mega.errors import BrokerUnavailable
from mega.wire.record import JobRecord, decode_record, encode_record

__all__ = ["NatsState"]

Read: TypeAlias = Callable[[], Awaitable[Stored]]

logger = logging.getLogger("mega.broker")

TTL = "Nats-TTL"
# A key that no job can have, because a `%` in an id is itself encoded.
BARRIER = f"$KV.{STATE}.%barrier"
SETTLED_AFTER = 1.0
LOOKS_AFTER = (0, 0.01, 0.05, 0.25, 1.0)


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
        stored = await self._read_own_writes(key_token(job_id))
        return readable(stored)

    @asynccontextmanager
    async def follow(self, job_id: str) -> AsyncIterator[AsyncIterator[JobRecord]]:
        token = key_token(job_id)
        follower = Follower(lambda: self._read(token))
        interest = await self._client.subscribe(f"$KV.{STATE}.{token}", follower.hear)
        self._client.on_up.append(follower.look)
        # In a cluster another server may learn of our interest a moment later than ours.
        second_look = asyncio.get_running_loop().call_later(SETTLED_AFTER, follower.look)
        try:
            # A write that came right before our interest is not heard, and may not be stored
            # yet either: it is, once something of ours behind it is.
            self._has_written = True
            yield follower.records(await self._read_own_writes(token))
        finally:
            second_look.cancel()
            self._client.on_up.remove(follower.look)
            await interest.stop()

    async def _send(self, record: JobRecord, headers: dict[str, str]) -> None:
        self._has_written = True
        subject = f"$KV.{STATE}.{key_token(record.id)}"
        await self._client.publish(subject, encode_record(record), headers=headers)

    async def _read_own_writes(self, token: str) -> Stored:
        # The server reads and stores in different goroutines: a read right behind a write
        # overtook it in 9 of 10 cases (nats-server 2.15.1). Stores stay in order.
        if self._has_written:
            self._has_written = False  # before the wait: a write meanwhile needs its own
            try:
                await self._publisher.store(BARRIER, b"", {TTL: "1", "KV-Operation": "DEL"})
            except BaseException:
                self._has_written = True
                raise
        return await self._read(token)

    async def _read(self, token: str) -> Stored:
        return await last_stored(self._client, STATE, token)


class Follower:
    """Reads the key again for each write that is heard of.

    A write is heard before the stream has it, and the stream may refuse it (a `create`).
    So only what was read counts, in the order of its sequences; while that isn't what was
    heard, it is read again, a few times.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._news = asyncio.Event()
        self._heard: bytes | None = None

    async def hear(self, message: Msg) -> None:
        """Note that someone wrote."""
        self._heard = message.data
        self._news.set()

    def look(self) -> None:
        """Read once more: writes may have gone unheard while there was no connection."""
        self._news.set()

    async def records(self, last: Stored) -> AsyncIterator[JobRecord]:
        """Yield `last`, if it holds a record, and each newer one that a read finds."""
        if record := readable(last):
            yield record
        while True:
            await self._news.wait()
            self._news.clear()
            newer = await self._read_newer(last.sequence)
            if newer is not None:
                last = newer
                if record := readable(last):
                    yield record

    async def _read_newer(self, seen: int) -> Stored | None:
        for wait in LOOKS_AFTER:
            await asyncio.sleep(wait)
            try:
                stored = await self._read()
            except BrokerUnavailable:
                self._news.set()
                continue
            if self._heard in (None, stored.body):
                self._heard = None
            elif stored.sequence > seen:
                self._news.set()  # what was heard is yet to come
            else:
                continue
            return stored if stored.sequence > seen else None
        return None


def readable(stored: Stored) -> JobRecord | None:
    """Return the record, or None when there is none or a newer release wrote it."""
    try:
        return decode_record(stored.body) if stored.body else None
    except msgspec.DecodeError as error:
        logger.warning("a job's record can't be read, as if there were none: %s", error)
        return None


def whole_seconds(ttl: float) -> str:
    """Return a time to live as the server takes it: at least 1 s."""
    return str(max(1, math.ceil(ttl)))
