"""A server of its own for each test, a broker on it, and a second connection that looks on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from mega.adapters.nats.broker import NatsBroker
from mega.adapters.nats.client import Client
from tests.nats_server import NatsServer


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
async def broker(server: NatsServer) -> AsyncIterator[NatsBroker]:
    async with NatsBroker(server.url(), name="test") as broker:
        yield broker


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    client = Client(server.url(), name="onlooker")
    await client.open()
    yield client
    await client.close()
