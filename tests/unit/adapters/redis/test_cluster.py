"""A Redis Cluster: each key lies on one of its servers, which any of them names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest
from redis import Redis

from mega.errors import LockBackendError
from mega.ports import Claim, Held, Skip
from tests.local_server import free_port
from tests.redis_server import RedisServer
from tests.unit.adapters.redis.asking import onlooker, store_on
from tests.waiting import until_sync

TICK = datetime(2026, 11, 30, 3, tzinfo=UTC)
SLOTS = 16384
BUS = 10_000
FORMED_WITHIN = 30.0
#: Enough of them to be on both servers.
KEYS = [f"mega:schedule:report-{number}" for number in range(16)]


def server_of_a_cluster() -> RedisServer:
    """Return a server, not yet started, whose second port, ten thousand higher, exists."""
    port = free_port()
    while port + BUS > 65535:
        port = free_port()
    return RedisServer("--cluster-enabled", "yes", port=port)


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    """Two servers that hold half of the slots each."""
    with ExitStack() as stack:
        servers = [stack.enter_context(server_of_a_cluster()) for _ in range(2)]
        clients = [stack.enter_context(onlooker(server)) for server in servers]
        halves = range(SLOTS // 2), range(SLOTS // 2, SLOTS)
        for client, slots in zip(clients, halves, strict=True):
            client.execute_command("CLUSTER ADDSLOTS", *slots)
        clients[0].execute_command("CLUSTER MEET", "127.0.0.1", servers[1].port)
        for client in clients:
            until_sync(lambda: is_formed(client), within=FORMED_WITHIN, what="a cluster")  # noqa: B023
        yield servers


def is_formed(client: Redis) -> bool:
    slots = client.execute_command("CLUSTER SLOTS")
    info = client.execute_command("CLUSTER INFO")
    return len(slots) == 2 and "ok" in str(info.get("cluster_state"))


async def test_claims_in_a_cluster(cluster: list[RedisServer]) -> None:
    with store_on(f"{cluster[0].url}?cluster=true") as store:
        for key in KEYS:
            claim = await store.claim(key, tick=TICK, owner="a", lease=30.0)
            assert isinstance(claim, Claim)
            assert Skip("taken", by="a") == await store.claim(key, tick=TICK, owner="b", lease=30.0)
            assert Held() == await store.extend(claim)
            assert TICK == await store.last_tick(key)
            await store.release(claim)
        assert abs((await store.time() - datetime.now(UTC)).total_seconds()) < 10
    for server in cluster:
        with onlooker(server) as client:
            assert client.dbsize()


async def test_a_cluster_that_is_not_declared_as_one(cluster: list[RedisServer]) -> None:
    async def ask_for_all() -> None:
        for key in KEYS:
            await store.last_tick(key)

    with store_on(cluster[0].url) as store, pytest.raises(LockBackendError) as raised:
        await ask_for_all()
    assert "?cluster=true" in raised.value.hint
    assert not raised.value.ambiguous


async def test_a_cluster_that_is_down() -> None:
    with server_of_a_cluster() as server:
        pass
    with store_on(f"{server.url}?cluster=true") as store, pytest.raises(LockBackendError) as raised:
        await store.claim(KEYS[0], tick=TICK, owner="a", lease=30.0)
    assert not raised.value.ambiguous
    assert "refused" in str(raised.value)
