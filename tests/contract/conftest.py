"""Every suite here runs against every adapter of its port."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.bench import Bench, MemoryBench
from tests.contract.nats_bench import NatsBench
from tests.nats_server import NatsServer

ADAPTERS = [
    pytest.param(("memory", "asyncio"), id="memory-asyncio"),
    pytest.param(("memory", "trio"), id="memory-trio"),
    pytest.param(("nats", "asyncio"), id="nats-asyncio"),
]


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The adapter's name, and the loop that it runs on."""
    name, backend = request.param
    return name, backend


@pytest.fixture
def anyio_backend(adapter: tuple[str, str]) -> str:
    return adapter[1]


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """One server for the whole run: each test has a subject of its own."""
    with NatsServer() as server:
        yield server


@pytest.fixture
def bench(adapter: tuple[str, str], request: pytest.FixtureRequest) -> Bench:
    """The adapter under test. Its brokers are entered in the test's own task."""
    if adapter[0] == "memory":
        return MemoryBench()
    return NatsBench(request.getfixturevalue("nats_server"))
