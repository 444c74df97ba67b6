"""One real nats-server for the whole run. Each test has subjects of its own and looks on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from secrets import token_hex

import nats
import pytest

from tests.apps.program import wait_until_gone
from tests.cases.onlooker import Onlooker
from tests.nats_server import NatsServer


@pytest.fixture
def anyio_backend() -> str:
    """The NATS client knows asyncio alone."""
    return "asyncio"


@pytest.fixture(scope="session")
def server() -> Iterator[NatsServer]:
    """The server that all cases share. Who stops, kills or pauses one takes a NatsServer."""
    with NatsServer() as server:
        yield server


@pytest.fixture
def broker(server: NatsServer) -> str:
    """The broker URL of the shared server, with leases short enough for tests."""
    return broker_of(server)


@pytest.fixture
def subject() -> str:
    """A subject that no other test has. Put `.more` behind it for a second one."""
    return f"case.{token_hex(4)}"


@pytest.fixture
async def onlooker(server: NatsServer) -> AsyncIterator[Onlooker]:
    """A NATS client that knows no mega, on the shared server."""
    async with await nats.connect(server.url().text) as client:
        yield Onlooker(client)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The `.mega` folder of an app that runs as a process. No process is left behind."""
    folder = tmp_path / ".mega"
    yield folder
    wait_until_gone(folder)


def broker_of(server: NatsServer, *, ack_wait: float = 1) -> str:
    return f"{server.url().text}?ack_wait={ack_wait:g}"
