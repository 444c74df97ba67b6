"""What another tool sees of the server, and does to it: a plain NATS client without mega."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64decode
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

__all__ = ["Onlooker", "body_in"]

LOOK_EVERY = 0.02
GIVE_UP_AFTER = 10.0


class Kept(msgspec.Struct):
    """The part of a dead letter that keeps the body."""

    payload: msgspec.Raw = msgspec.Raw()
    raw: str | None = None


class Onlooker:
    """Publishes what mega would not, and reads streams as they are."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def publish(
        self, subject: str, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        """Store a message; the stream of the subject must be there."""
        await self.client.jetstream().publish(subject, body, headers=headers)

    async def beats(self, subject: str) -> list[bytes]:
        """Return a list that grows with each renewal of a lease from now on."""
        beats: list[bytes] = []

        async def hear(message: Msg) -> None:
            if message.data == b"+WPI":
                beats.append(message.data)

        await self.client.subscribe(f"$JS.ACK.{stream_of(subject)}.>", cb=hear)
        await self.client.flush()
        return beats

    async def jobs(self, subject: str) -> list[RawStreamMsg]:
        """Return the jobs of a subject that have not ended, delayed copies included."""
        return await self._messages(stream_of(subject))

    async def letters(self, subject: str) -> list[bytes]:
        """Return the dead letters of a subject as they are stored, oldest first.

        Of one that takes several messages the last names the others.
        """
        parts = {part.seq: part for part in await self._messages(f"{stream_of(subject)}_DLQ")}
        letters = []
        for sequence, part in parts.items():
            headers = part.headers or {}
            if "Mega-Part-Of" not in headers:
                numbers = [*map(int, headers.get("Mega-Parts", "").split()), sequence]
                letters.append(b"".join(parts[number].data or b"" for number in numbers))
        return letters

    async def dead_letters(self, subject: str) -> list[dict[str, Any]]:
        """Return the dead letters of a subject, oldest first."""
        return [json.loads(letter) for letter in await self.letters(subject)]

    async def wait_for_dead_letters(self, subject: str, count: int = 1) -> list[dict[str, Any]]:
        """Return the dead letters once there are that many."""
        deadline = time.monotonic() + GIVE_UP_AFTER
        while len(letters := await self.dead_letters(subject)) < count:
            what = f"{len(letters)} of {count} dead letters on {subject}"
            assert time.monotonic() < deadline, f"after {GIVE_UP_AFTER} s there are {what}"
            await asyncio.sleep(LOOK_EVERY)
        return letters

    async def wait_until_empty(self, subject: str) -> None:
        """Return once no job of the subject is left, waiting, delayed or in hand."""
        deadline = time.monotonic() + GIVE_UP_AFTER
        manager = self.client.jsm()
        while left := (await manager.stream_info(stream_of(subject))).state.messages:
            assert time.monotonic() < deadline, f"after {GIVE_UP_AFTER} s {left} jobs are left"
            await asyncio.sleep(LOOK_EVERY)

    async def wait_until_due(self, subject: str, count: int) -> None:
        """Return once that many jobs of a subject wait for nothing but a worker."""
        deadline = time.monotonic() + GIVE_UP_AFTER
        while (due := [job.subject for job in await self.jobs(subject)].count(subject)) < count:
            assert time.monotonic() < deadline, f"after {GIVE_UP_AFTER} s {due} jobs are due"
            await asyncio.sleep(LOOK_EVERY)

    async def in_hand(self, subject: str) -> int:
        """Return how many jobs of a subject workers have, or had when they died."""
        info = await self.client.jsm().consumer_info(stream_of(subject), "workers")
        return info.num_ack_pending or 0

    async def record(self, job_id: str) -> dict[str, Any] | None:
        """Return the record of a job whose id needs no escape, or None."""
        stream, key = "KV_MEGA_STATE", f"$KV.MEGA_STATE.{job_id}"
        try:
            stored = await self.client.jsm().get_last_msg(stream, key)
        except NotFoundError:
            return None
        return dict(json.loads(stored.data)) if stored.data else None  # else it was deleted

    async def _messages(self, stream: str) -> list[RawStreamMsg]:
        """Return all that a stream holds, oldest first; nothing when there is no such stream."""
        manager, found = self.client.jsm(), []
        try:
            state = (await manager.stream_info(stream)).state
        except NotFoundError:
            return []
        for sequence in range(state.first_seq, state.last_seq + 1) if state.messages else ():
            try:
                found.append(await manager.get_msg(stream, sequence))
            except NotFoundError:
                continue  # it was acknowledged
        return found


def body_in(letter: bytes) -> bytes:
    """Return the body that a dead letter keeps, to the byte."""
    kept = msgspec.json.decode(letter, type=Kept)
    return b64decode(kept.raw) if kept.raw is not None else bytes(kept.payload)


def stream_of(subject: str) -> str:
    return f"MEGA_JOBS_{subject.replace('.', '_')}"
