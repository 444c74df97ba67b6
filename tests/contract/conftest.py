"""Every suite here runs against every adapter of its port."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.bench import Bench, MemoryBench
from tests.contract.nats_bench import NatsBench
from tests.nats_server import NatsServer
from tests.redis_server import RedisServer
from tests.redis_server import redis_servers as started_servers

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


@pytest.fixture(scope="session")
def redis_servers() -> Iterator[list[RedisServer]]:
    """Three servers that know nothing of each other."""
    with started_servers(3) as servers:
        yield servers


@pytest.fixture
def broker_bench(adapter: tuple[str, str], request: pytest.FixtureRequest) -> Bench:
    """The adapter under test. Its brokers are entered in the test's own task."""
    if adapter[0] == "memory":
        return MemoryBench()
    return NatsBench(request.getfixturevalue("nats_server"))


@pytest.fixture
def bench(broker_bench: Bench) -> Bench:
    """What a suite asks for that knows nothing but brokers."""
    return broker_bench
