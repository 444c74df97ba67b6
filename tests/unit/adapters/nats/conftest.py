"""A server of its own for each test, ways to it, and a second connection that looks on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from mega.adapters.nats.broker import NatsBroker
from mega.adapters.nats.client import Client
from tests.nats_server import NatsServer
from tests.proxy import Proxy


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
async def broker(server: NatsServer) -> AsyncIterator[NatsBroker]:
    async with NatsBroker(server.url(), name="test") as broker:
        yield broker


@pytest.fixture
def proxy(server: NatsServer) -> Iterator[Proxy]:
    """A way to the server that can be cut."""
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    client = Client(server.url(), name="onlooker")
    await client.open()
    yield client
    await client.close()
