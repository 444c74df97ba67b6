"""Which schedules are paused, and their last runs: keys of the bucket of claims.

No claim can have these keys, because a `%` in the key of a lock is itself encoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from secrets import token_hex
from typing import TypeVar

import msgspec

from mega.adapters.nats.buckets import Stored, last_stored
from mega.adapters.nats.client import Client
from mega.adapters.nats.layout import CLAIMS, key_token
from mega.adapters.nats.publisher import EXPECTED_SEQUENCE, Publisher, WrongSequence
from mega.wire.message import SERVER_ID
from mega.wire.schedule_record import (
    ScheduleRecord,
    decode_schedule_record,
    encode_schedule_record,
)

__all__ = ["NatsSchedules"]

T = TypeVar("T")

BUDGET = 1.0
PAUSED = "%paused"


class NatsSchedules:
    """Implements `ports.ScheduleStore`."""

    def __init__(self, client: Client, publisher: Publisher) -> None:
        self._client = client
        self._publisher = publisher

    async def paused(self) -> Mapping[str, str]:
        return names_in(await self._within_budget(self._read(PAUSED)))

    async def pause(self, name: str, *, by: str) -> None:
        await self._change(name, by)

    async def resume(self, name: str) -> None:
        await self._change(name, None)

    async def keep(self, record: ScheduleRecord) -> None:
        token = last_run_token(record.name)
        await self._within_budget(self._write(token, encode_schedule_record(record)))

    async def last_run(self, name: str) -> ScheduleRecord | None:
        stored = await self._within_budget(self._read(last_run_token(name)))
        try:
            return decode_schedule_record(stored.body) if stored.body else None
        except msgspec.DecodeError:
            return None  # a newer release wrote it

    async def _change(self, name: str, by: str | None) -> None:
        """Put the name among the paused ones, or take it out, as compared with what was read."""
        while True:
            stored = await self._read(PAUSED)
            known = names_in(stored)
            if (name in known) == (by is not None):
                return
            others = {other: who for other, who in known.items() if other != name}
            wanted = others if by is None else {**others, name: by}
            try:
                await self._write(PAUSED, msgspec.json.encode(wanted), over=stored)
            except WrongSequence:
                continue
            return

    async def _read(self, token: str) -> Stored:
        return await last_stored(self._client, CLAIMS, token)

    async def _write(self, token: str, body: bytes, *, over: Stored | None = None) -> None:
        headers = {SERVER_ID: token_hex(8)}  # sending it twice stores it once
        if over is not None:
            headers[EXPECTED_SEQUENCE] = str(over.sequence)
        await self._publisher.store(f"$KV.{CLAIMS}.{token}", body, headers)

    async def _within_budget(self, call: Awaitable[T]) -> T:
        """Give up early: a run that is due waits for it."""
        try:
            async with asyncio.timeout(BUDGET):
                return await call
        except TimeoutError:
            raise self._client.unavailable(f"no answer within {BUDGET:g} s") from None


def names_in(stored: Stored) -> dict[str, str]:
    try:
        return msgspec.json.decode(stored.body or b"{}", type=dict[str, str])
    except msgspec.DecodeError:
        return {}


def last_run_token(name: str) -> str:
    return f"%last.{key_token(name)}"
