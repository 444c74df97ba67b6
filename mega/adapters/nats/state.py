"""Job records in the bucket MEGA_STATE: one message for each key, each with a time to live.

Writes wait for nothing: awaiting two of them for each job leaves a fifth of the throughput.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import TypeAlias

import msgspec
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from mega.adapters.nats.buckets import Stored, last_stored
from mega.adapters.nats.client import Client
from mega.adapters.nats.last_records import LastRecords, Written, is_behind
from mega.adapters.nats.layout import STATE, key_token
from mega.adapters.nats.outbox import Outbox
from mega.adapters.nats.presence import is_present
from mega.adapters.nats.publisher import EXPECTED_SEQUENCE, Publisher, WrongSequence
from mega.errors import BrokerUnavailable, MegaError, one_line
from mega.ports import Kept
from mega.wire.message import SERVER_ID
from mega.wire.record import JobRecord, decode_record, encode_record

__all__ = ["DELETED", "MARKER_TTL", "TTL", "NatsState", "whole_seconds"]

Read: TypeAlias = Callable[[], Awaitable[Stored]]

logger = logging.getLogger("mega.broker")

TTL = "Nats-TTL"
MARKER_TTL, DELETED = "1", {"KV-Operation": "DEL"}
# A key that no job can have, because a `%` in an id is itself encoded.
BARRIER = f"$KV.{STATE}.%barrier"
SETTLED_AFTER = 1.0
FLUSH_WITHIN = 2.0
#: The server drops what it can't store at once, above 10,000 messages for one stream.
MOST_UNSETTLED = 2000
LOOKS_AFTER = (0, 0.01, 0.05, 0.25, 1.0)
REPEATS_AT_ONCE, REPEAT_AFTER = 16, 1.0
#: JetStream may need some seconds after a server's start.
REPEATED_WITHIN = 5.0


class NatsState:
    """Implements `ports.StateStore`."""

    def __init__(self, client: Client, publisher: Publisher) -> None:
        self._client = client
        self._publisher = publisher
        self._written = self._settled = 0
        self._settling = asyncio.Lock()
        self._last = LastRecords()
        self._unsure: Outbox[str] = Outbox()
        self._missing: dict[str, None] = {}
        self._repeating: asyncio.Task[None] | None = None
        client.on_answer.append(self._unsure.confirm)
        client.on_up.append(self._begin_to_repeat)
        client.before_acks.append(lambda: self._have_repeated(REPEATED_WITHIN))

    async def create(self, record: JobRecord, *, ttl: float) -> None:
        if self._written - self._settled >= MOST_UNSETTLED:
            await self._settle()
        headers = {TTL: whole_seconds(ttl), EXPECTED_SEQUENCE: "0"}
        self._written += 1
        await self._client.tell(subject_of(record.id), encode_record(record), headers=headers)

    async def write(self, record: JobRecord, *, ttl: float) -> None:
        body = encode_record(record)
        self._last.keep(record.id, Written(body, ttl))
        if not self._client.up.is_set():
            # nats-py would keep it, and put it in the place of whatever is written meanwhile.
            self._missing[record.id] = None
            return
        self._unsure.keep(record.id)
        self._written += 1
        headers = {TTL: whole_seconds(ttl)}
        await self._client.publish(subject_of(record.id), body, headers=headers)

    async def repeat(self, job_id: str) -> None:
        """Write the job's last record of this process again, if what is stored is behind it.

        Raises: BrokerUnavailable.
        """
        while written := self._last.find(job_id):
            ours, kept = decode_record(written.body), await self.look(job_id)
            is_lost = kept.version == 0 if kept.record is None else is_behind(kept.record, ours)
            if not is_lost or await self.replace(
                job_id, ours, version=kept.version, ttl=written.ttl
            ):
                return

    async def get(self, job_id: str) -> JobRecord | None:
        stored = await self._read_own_writes(key_token(job_id))
        return readable(stored)

    async def is_alive(self, worker: str) -> bool:
        return await is_present(self._client, worker)

    async def flush(self) -> None:
        client = self._client
        if not client.up.is_set():
            raise client.unavailable("nothing can be sent")
        last = client.nc._pending
        await asyncio.sleep(0)  # nats-py's flusher, or another job's flush, may do it for all
        if client.nc._pending is last:
            write_out(client.nc)
        # What the kernel doesn't take is kept in this process.
        if unsent(client.nc) and not await client.round_trip(FLUSH_WITHIN):
            raise client.unavailable("nothing can be sent")

    async def look(self, job_id: str, *, after_writes: bool = False) -> Kept:
        read = self._read_own_writes if after_writes else self._read
        stored = await read(key_token(job_id))
        return Kept(readable(stored), stored.sequence, not stored.body)

    async def replace(
        self, job_id: str, record: JobRecord | None, *, version: int, ttl: float
    ) -> bool:
        # The id makes sending it twice store it once.
        headers = {EXPECTED_SEQUENCE: str(version), SERVER_ID: token_hex(8)}
        headers |= {TTL: whole_seconds(ttl)} if record else {TTL: MARKER_TTL, **DELETED}
        body = encode_record(record) if record else b""
        try:
            await self._publisher.store(subject_of(job_id), body, headers)
        except WrongSequence:
            return False
        return True

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
            self._written += 1
            yield follower.records(await self._read_own_writes(token))
        finally:
            second_look.cancel()
            self._client.on_up.remove(follower.look)
            await interest.stop()

    async def close(self) -> None:
        """Repeat what is left to repeat, if the server is there, and nothing more."""
        if self._repeating is not None:
            if self._client.up.is_set():
                await self._have_repeated(REPEATED_WITHIN)
            self._repeating.cancel()
            await asyncio.wait({self._repeating})

    def _begin_to_repeat(self) -> None:
        self._missing.update(dict.fromkeys(self._unsure.unconfirmed()))
        if self._missing and (self._repeating is None or self._repeating.done()):
            self._written += 1
            self._repeating = asyncio.create_task(self._repeat_all())

    async def _have_repeated(self, within: float) -> None:
        if self._repeating is not None:
            await asyncio.wait({self._repeating}, timeout=within)

    async def _repeat_all(self) -> None:
        await asyncio.gather(*(self._repeat_each() for _ in range(REPEATS_AT_ONCE)))

    async def _repeat_each(self) -> None:
        while self._missing:
            job_id, _ = self._missing.popitem()
            try:
                await self.repeat(job_id)
            except BrokerUnavailable:
                self._missing[job_id] = None
                await asyncio.sleep(REPEAT_AFTER)
            except MegaError as error:
                logger.warning("the record of job %s is lost: %s", job_id, one_line(error))

    async def _read_own_writes(self, token: str) -> Stored:
        if self._settled < self._written:
            await self._settle()
        return await self._read(token)

    async def _settle(self) -> None:
        """Return when all is stored that was written before."""
        # The server reads and stores in different goroutines: a read right behind a write
        # overtook it in 9 of 10 cases (nats-server 2.15.1). Stores stay in order.
        await self._have_repeated(SETTLED_AFTER)
        written = self._written
        async with self._settling:  # who waits here finds it done
            if self._settled < written:
                written = self._written
                await self._publisher.store(BARRIER, b"", {TTL: MARKER_TTL, **DELETED})
                self._settled = written

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


def subject_of(job_id: str) -> str:
    return f"$KV.{STATE}.{key_token(job_id)}"


def readable(stored: Stored) -> JobRecord | None:
    """Return the record, or None when there is none or a newer release wrote it."""
    try:
        return decode_record(stored.body) if stored.body else None
    except msgspec.DecodeError as error:
        logger.warning("a job's record can't be read, as if there were none: %s", error)
        return None


def write_out(nc: NatsClient) -> None:
    """Hand to the socket what waits for nats-py's flusher."""
    if nc.is_connected and nc._pending and nc._transport is not None:
        nc._transport.writelines(nc._pending)
        nc._pending = []
        nc._pending_data_size = 0


def unsent(nc: NatsClient) -> int:
    """Return how many bytes this process keeps that it was to send."""
    if not nc.is_connected:
        return nc.pending_data_size
    writer: asyncio.StreamWriter = nc._transport._io_writer  # type: ignore[union-attr]  # connected: there is one
    return writer.transport.get_write_buffer_size()


def whole_seconds(ttl: float) -> str:
    """Return a time to live as the server takes it: at least 1 s."""
    return str(max(1, math.ceil(ttl)))
