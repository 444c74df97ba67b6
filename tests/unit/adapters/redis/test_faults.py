"""A Redis that is down, hangs, is killed or loses an answer: what the store says, and when."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from mega.adapters.redis.claims import RedisClaims, redis_key
from mega.adapters.redis.redlock import BUDGET, Redlock
from mega.adapters.redis.server import THREADS
from mega.errors import LockBackendError
from mega.ports import Claim, Held, Lost, Skip
from tests.proxy import Proxy, bound_socket
from tests.redis_server import RedisServer
from tests.unit.adapters.redis.asking import kept, onlooker, store_on
from tests.waiting import until

KEY = "mega:schedule:nightly"
TICK = datetime(2026, 11, 30, 3, tzinfo=UTC)
LATER = TICK + timedelta(days=1)
#: Long enough for a loaded machine; the proxy makes the store wait for half of it.
LONG = 4.0
SOME = 100


@pytest.fixture
def refused() -> Iterator[str]:
    """The URL of a port on which nobody listens."""
    with bound_socket(0) as held:
        yield f"redis://127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


def url_of(proxy: Proxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}"


async def test_a_server_that_is_down(refused: str) -> None:
    with store_on(refused) as store, pytest.raises(LockBackendError) as raised:
        await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
    assert not raised.value.ambiguous
    assert f"the lock store {refused}/0 can't answer" in str(raised.value)
    assert "refused" in str(raised.value)


async def test_every_call_says_that_a_server_is_down(refused: str) -> None:
    claim = Claim(key=KEY, owner="a", fence=1, tick=TICK, lease=30.0)
    with store_on(refused) as store:
        for call in (store.last_tick(KEY), store.extend(claim), store.release(claim), store.time()):
            with pytest.raises(LockBackendError):
                await call


@pytest.mark.parametrize("host", ["nobody.invalid", "no..body"])
async def test_a_host_that_is_not_there(host: str) -> None:
    with store_on(f"redis://{host}") as store, pytest.raises(LockBackendError) as raised:
        await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
    assert not raised.value.ambiguous


async def test_a_server_that_hangs(server: RedisServer) -> None:
    with store_on(server.url, budget=BUDGET) as store:
        server.pause()
        with pytest.raises(LockBackendError, match="did not answer within 1 s") as raised:
            await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
        assert raised.value.ambiguous
        server.resume()
    # Whether it took the claim while nobody listened, the same owner gets it now.
    with store_on(server.url) as store:
        assert isinstance(await store.claim(KEY, tick=TICK, owner="a", lease=30.0), Claim)


async def test_many_calls_of_a_server_that_hangs_end_together(server: RedisServer) -> None:
    errors: list[LockBackendError] = []

    async def ask(number: int) -> None:
        with pytest.raises(LockBackendError) as raised:
            await store.claim(f"{KEY}-{number}", tick=TICK, owner="a", lease=None)
        errors.append(raised.value)

    with store_on(server.url, budget=BUDGET) as store:
        server.pause()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for number in range(50 * THREADS):
                    tasks.start_soon(ask, number)
    assert 50 * THREADS == len(errors)
    assert {True, False} == {error.ambiguous for error in errors}  # most were never sent


async def test_more_calls_than_a_budget_has_room_for(server: RedisServer) -> None:
    budget, answers = 2.0, []

    async def ask(store: RedisClaims | Redlock, number: int) -> None:
        answers.append(await store.claim(f"{KEY}-{number}", tick=TICK, owner="a", lease=None))

    with store_on(server.url, budget=budget) as store:
        begun = time.monotonic()
        for number in range(SOME):
            await ask(store, number)
        # Eight at once are hardly faster than one by one, so these take longer than the budget.
        many = round(2 * budget / (time.monotonic() - begun) * SOME)
        async with anyio.create_task_group() as tasks:
            for number in range(SOME, SOME + many):
                tasks.start_soon(ask, store, number)
    assert [Claim] * (SOME + many) == [type(answer) for answer in answers]


async def test_a_lost_answer_is_asked_for_again(server: RedisServer, proxy: Proxy) -> None:
    with store_on(url_of(proxy), budget=LONG) as store:
        proxy.drop(rb":\d+")  # the fence, which the store waits for
        claim = await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
    assert 1 == proxy.dropped[rb":\d+"]
    assert isinstance(claim, Claim)
    assert str(claim.fence) == kept(server, KEY)["fence"]
    assert claim.fence == TICK.timestamp() * 1000


async def test_an_answer_that_is_lost_twice_is_ambiguous(server: RedisServer, proxy: Proxy) -> None:
    with store_on(url_of(proxy), budget=BUDGET) as store:
        proxy.drop(rb":\d+", times=2)
        with pytest.raises(LockBackendError) as raised:
            await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
        assert raised.value.ambiguous
        assert "a" == kept(server, KEY)["claimed_by"]


async def test_connections_that_died_while_they_idled(server: RedisServer, proxy: Proxy) -> None:
    with store_on(url_of(proxy), budget=LONG) as store:
        async with anyio.create_task_group() as tasks:
            for number in range(THREADS):
                tasks.start_soon(store.last_tick, f"{KEY}-{number}")
        assert proxy.links > 1
        proxy.forget()
        # The first try finds one of them dead, and the second takes a new one.
        assert isinstance(await store.claim(KEY, tick=TICK, owner="a", lease=30.0), Claim)


async def test_a_connection_that_is_reset(server: RedisServer, proxy: Proxy) -> None:
    with store_on(url_of(proxy)) as store:
        await store.last_tick(KEY)
        proxy.cut()
        assert isinstance(await store.claim(KEY, tick=TICK, owner="a", lease=30.0), Claim)


async def test_a_server_that_forgot_gives_the_lease_back(server: RedisServer) -> None:
    with store_on(server.url) as store:
        claim = await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
        assert isinstance(claim, Claim)
        server.kill()
        with pytest.raises(LockBackendError):
            await store.extend(claim)
        server.start()

        assert Held(retaken=True) == await store.extend(claim)
        assert Held() == await store.extend(claim)
        assert TICK == await store.last_tick(KEY)
        skip = await store.claim(KEY, tick=LATER, owner="b", lease=30.0)
    assert Skip("running", by="a") == skip
    assert str(claim.fence) == kept(server, KEY)["fence"]


async def test_a_server_that_forgot_and_gave_the_key_to_another(server: RedisServer) -> None:
    with store_on(server.url) as store:
        claim = await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
        assert isinstance(claim, Claim)
        server.restart()
        other = await store.claim(KEY, tick=LATER, owner="b", lease=30.0)
        assert isinstance(other, Claim)

        assert Lost(by="b") == await store.extend(claim)
        await store.release(claim)
        assert Held() == await store.extend(other)
    assert claim.fence < other.fence


async def test_a_claim_that_was_forgotten_can_be_made_again_with_the_same_fence(
    server: RedisServer,
) -> None:
    # As at a failover before the replica had it: nothing here can know. It is in the docs.
    with store_on(server.url) as store:
        first = await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
        server.restart()
        second = await store.claim(KEY, tick=TICK, owner="b", lease=30.0)
        assert isinstance(first, Claim)
        assert isinstance(second, Claim)
        assert first.fence == second.fence
        assert Lost(by="b") == await store.extend(first)
        await store.release(second)
        assert Lost(by="b") == await store.extend(first)


async def test_an_error_of_the_server_is_no_error_of_its_client(server: RedisServer) -> None:
    with onlooker(server) as client:
        client.set(redis_key(KEY), "not a hash")
    with store_on(server.url) as store, pytest.raises(LockBackendError) as raised:
        await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
    assert not raised.value.ambiguous
    assert "WRONGTYPE" in str(raised.value)


async def test_a_master_that_became_a_replica(server: RedisServer, proxy: Proxy) -> None:
    with store_on(url_of(proxy)) as store, onlooker(server) as client:
        async with anyio.create_task_group() as tasks:
            for number in range(THREADS):
                tasks.start_soon(store.last_tick, f"{KEY}-{number}")
        client.replicaof("127.0.0.1", 1)
        with pytest.raises(LockBackendError, match="read only replica"):
            await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
        # None is left to a server that its name may not stand for any more.
        await until(lambda: proxy.links == 0, what="no connection")


async def test_a_wrong_password_is_not_shown() -> None:
    with (
        RedisServer("--requirepass", "right") as server,
        store_on(server.url.replace("//", "//:wr0ng@")) as store,
        pytest.raises(LockBackendError) as raised,
    ):
        await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
    assert "AuthenticationError" in str(raised.value)
    assert "wr0ng" not in str(raised.value)
    assert not raised.value.ambiguous


async def test_a_login() -> None:
    with (
        RedisServer("--requirepass", "p@ss/w#rd") as server,
        store_on(server.url.replace("//", "//default:p%40ss%2Fw%23rd@")) as store,
    ):
        assert await store.last_tick(KEY) is None


async def test_scripts_that_the_server_forgot(server: RedisServer) -> None:
    with store_on(server.url) as store, onlooker(server) as client:
        for tick in (TICK, LATER):
            client.script_flush()
            assert isinstance(await store.claim(KEY, tick=tick, owner="a", lease=None), Claim)


async def test_a_record_outlives_a_year(server: RedisServer) -> None:
    year = timedelta(days=366).total_seconds()
    with store_on(server.url) as store, onlooker(server) as client:
        claim = await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
        assert isinstance(claim, Claim)
        for call in (store.extend, store.release):
            client.pexpire(redis_key(KEY), 60_000)
            await call(claim)
            assert client.ttl(redis_key(KEY)) > year


async def test_a_database_of_its_own(server: RedisServer) -> None:
    with store_on(f"{server.url}/1") as store, store_on(server.url) as other:
        await store.claim(KEY, tick=TICK, owner="a", lease=None)
        assert await other.last_tick(KEY) is None
        assert TICK == await store.last_tick(KEY)


async def test_a_call_that_is_cancelled_leaves_the_store_usable(server: RedisServer) -> None:
    with store_on(server.url) as store:
        server.pause()
        with anyio.move_on_after(0.05) as scope:
            await store.last_tick(KEY)
        server.resume()
        assert scope.cancelled_caught
        assert await store.last_tick(KEY) is None


def test_no_port_is_opened_before_the_first_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        with (
            store_on(f"redis://127.0.0.1:{listener.getsockname()[1]}"),
            pytest.raises(BlockingIOError),
        ):
            listener.accept()
