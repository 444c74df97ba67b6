"""The NATS adapter with a real server and real time, beside a client that knows no mega."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import anyio
import nats
from nats.aio.client import Client

from mega.adapters.nats.broker import NatsBroker
from mega.ports import Broker
from mega.wire.message import stream_name
from tests.contract.bench import ACK_WAIT, GIVE_UP_AFTER
from tests.nats_server import NatsServer


class NatsBench:
    """Each broker has connections of its own, as in another process."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._url = server.url(ack_wait=ACK_WAIT)

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[Broker]:
        with anyio.fail_after(GIVE_UP_AFTER):
            async with NatsBroker(self._url, name="contract") as broker:
                yield broker

    @asynccontextmanager
    async def second_broker(self, first: Broker) -> AsyncIterator[Broker]:
        async with NatsBroker(self._url, name="contract, the second") as broker:
            yield broker

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def pass_time(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def publish_raw(self, broker: Broker, subject: str, body: bytes) -> None:
        async with self._client() as client:
            await client.jetstream().publish(subject, body)

    async def kept(self, broker: Broker, subject: str) -> int:
        async with self._client() as client:
            info = await client.jsm().stream_info(f"MEGA_JOBS_{stream_name(subject)}")
            return info.state.messages

    async def dead_letters(self, broker: Broker, subject: str) -> list[bytes]:
        stream = f"MEGA_JOBS_{stream_name(subject)}_DLQ"
        async with self._client() as client:
            state = (await client.jsm().stream_info(stream)).state
            numbers = range(state.first_seq, state.last_seq + 1)
            return [(await client.jsm().get_msg(stream, seq)).data or b"" for seq in numbers]

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        client = await nats.connect(self._server.url().servers[0])
        try:
            yield client
        finally:
            await client.close()
