"""Several servers that know nothing of each other: a majority decides, and one contender wins."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from mega.adapters.redis.redlock import BUDGET
from mega.errors import LockBackendError
from mega.ports import Claim, Held, Lost, Skip
from tests.redis_server import RedisServer, redis_servers
from tests.unit.adapters.redis.asking import kept, store_on

KEY = "mega:schedule:nightly"
TICK = datetime(2026, 11, 30, 3, tzinfo=UTC)
A_DAY = timedelta(days=1)
LATER = TICK + A_DAY
TICKS = 20


@pytest.fixture
def servers() -> Iterator[list[RedisServer]]:
    """Three servers, in the order in which they are asked."""
    with redis_servers(3) as servers:
        yield sorted(servers, key=lambda server: server.url)


def urls(servers: list[RedisServer]) -> list[str]:
    return [server.url for server in servers]


def owners(servers: list[RedisServer]) -> list[str]:
    return [kept(server, KEY).get("owner", "") for server in servers]


@pytest.mark.parametrize("contenders", [2, 3, 5])
async def test_each_tick_has_one_winner(servers: list[RedisServer], contenders: int) -> None:
    winners: dict[datetime, list[str]] = {TICK + n * timedelta(minutes=1): [] for n in range(TICKS)}

    async def contend(number: int, tick: datetime) -> None:
        # Each wrote the list in another order.
        turn = number % 3
        with store_on(urls(servers[turn:] + servers[:turn])) as store:
            answer = await store.claim(KEY, tick=tick, owner=f"{number}", lease=None)
        if isinstance(answer, Claim):
            winners[tick].append(f"{number}")

    for tick in winners:
        async with anyio.create_task_group() as tasks:
            for number in range(contenders):
                tasks.start_soon(contend, number, tick)
    assert [1] * TICKS == [len(each) for each in winners.values()]


@pytest.mark.parametrize("down", [0, 1, 2])
async def test_one_server_of_three_is_down(servers: list[RedisServer], down: int) -> None:
    servers[down].kill()
    with store_on(urls(servers)) as store:
        claim = await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
        assert isinstance(claim, Claim)
        assert Skip("taken", by="a") == await store.claim(KEY, tick=TICK, owner="b", lease=30.0)
        assert Held() == await store.extend(claim)
        assert TICK == await store.last_tick(KEY)
        assert abs(await store.time() - datetime.now(UTC)) < timedelta(seconds=10)
        await store.release(claim)
        assert isinstance(await store.claim(KEY, tick=LATER, owner="b", lease=30.0), Claim)


async def test_one_server_of_three_hangs(servers: list[RedisServer]) -> None:
    servers[0].pause()
    with store_on(urls(servers), budget=2 * BUDGET) as store:
        claim = await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
        assert isinstance(claim, Claim)
        assert Held() == await store.extend(claim)
        await store.release(claim)


async def test_two_servers_of_three_are_down(servers: list[RedisServer]) -> None:
    with store_on(urls(servers)) as store:
        claim = await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
        assert isinstance(claim, Claim)
        servers[0].kill()
        servers[1].kill()

        calls = (
            lambda: store.claim(f"{KEY}-2", tick=TICK, owner="b", lease=30.0),
            lambda: store.extend(claim),
            lambda: store.release(claim),
            lambda: store.last_tick(KEY),
        )
        for call in calls:
            with pytest.raises(LockBackendError, match="2 of 3 did not answer"):
                await call()
        # Who asks for a tick that is claimed already need not ask again.
        assert Skip("taken", by="a") == await store.claim(KEY, tick=TICK, owner="b", lease=30.0)
        assert isinstance(await store.time(), datetime)


async def test_what_no_majority_granted_is_given_back(servers: list[RedisServer]) -> None:
    servers[0].kill()
    servers[1].kill()
    with store_on(urls(servers)) as store:
        with pytest.raises(LockBackendError):
            await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
        assert [""] == owners(servers[2:])
        for server in servers[:2]:
            server.start()

        # Who finds a majority before it asks again has the tick.
        assert isinstance(await store.claim(KEY, tick=TICK, owner="b", lease=30.0), Claim)
        assert Skip("taken", by="b") == await store.claim(KEY, tick=TICK, owner="a", lease=30.0)


async def test_a_claim_that_found_no_majority_is_made_again(servers: list[RedisServer]) -> None:
    for server in servers[:2]:
        server.kill()
    with store_on(urls(servers)) as store:
        with pytest.raises(LockBackendError):
            await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
        for server in servers[:2]:
            server.start()
        assert isinstance(await store.claim(KEY, tick=TICK, owner="a", lease=30.0), Claim)
    assert ["a"] * 3 == owners(servers)


async def test_a_refusal_gives_back_what_was_granted_before(servers: list[RedisServer]) -> None:
    with store_on(urls(servers)) as store:
        claim = await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
        assert isinstance(claim, Claim)
        servers[0].restart()

        skip = await store.claim(KEY, tick=LATER, owner="b", lease=30.0)
        assert Skip("running", by="a") == skip
        assert ["", "a", "a"] == owners(servers)
        assert Held() == await store.extend(claim)


async def test_two_servers_that_forgot_are_told(servers: list[RedisServer]) -> None:
    with store_on(urls(servers)) as store:
        claim = await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
        assert isinstance(claim, Claim)
        servers[0].restart()
        assert Held() == await store.extend(claim)
        servers[1].restart()
        servers[2].restart()
        assert Held(retaken=True) == await store.extend(claim)
    assert ["a"] * 3 == owners(servers)


async def test_a_majority_that_another_has_is_a_loss(servers: list[RedisServer]) -> None:
    with store_on(urls(servers)) as store:
        claim = await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
        assert isinstance(claim, Claim)
        for server in servers[:2]:
            server.restart()
        other = await store.claim(KEY, tick=LATER, owner="b", lease=30.0)
        assert isinstance(other, Claim)

        assert Lost(by="b") == await store.extend(claim)
        await store.release(claim)
        assert ["b", "b", ""] == owners(servers)
        assert Held() == await store.extend(other)


async def test_one_server_that_another_has_is_no_proof_of_a_loss(
    servers: list[RedisServer],
) -> None:
    with store_on(urls(servers)) as store, store_on(servers[0].url) as first:
        claim = await store.claim(KEY, tick=TICK, owner="a", lease=30.0)
        assert isinstance(claim, Claim)
        servers[0].restart()
        assert isinstance(await first.claim(KEY, tick=LATER, owner="b", lease=30.0), Claim)

        assert Held() == await store.extend(claim)
        servers[1].kill()
        with pytest.raises(LockBackendError, match="1 of 3 did not answer"):
            await store.extend(claim)


async def test_a_lease_that_ran_out_while_servers_were_asked_is_none(
    servers: list[RedisServer],
) -> None:
    servers[0].pause()  # it is waited for, half a second
    with (
        store_on(urls(servers), budget=BUDGET) as store,
        pytest.raises(LockBackendError, match="no majority of the lock servers is sure"),
    ):
        await store.claim(KEY, tick=TICK, owner="a", lease=0.1)
    servers[0].resume()
    with store_on(urls(servers)) as store:
        assert isinstance(await store.claim(KEY, tick=TICK, owner="a", lease=30.0), Claim)


async def test_the_fence_is_the_highest_that_a_server_knows(servers: list[RedisServer]) -> None:
    tick = datetime(2001, 1, 1, tzinfo=UTC)  # long ago: its fence alone would be a low one
    with store_on(servers[2].url) as one:
        manual = await one.claim(KEY, tick=None, owner="x", lease=30.0)
        assert isinstance(manual, Claim)
        await one.release(manual)
    with store_on(urls(servers)) as store:
        claim = await store.claim(KEY, tick=tick, owner="a", lease=30.0)
        assert isinstance(claim, Claim)
        await store.release(claim)
        servers[2].kill()
        following = await store.claim(KEY, tick=tick + A_DAY, owner="b", lease=30.0)
    assert isinstance(following, Claim)
    assert manual.fence < claim.fence < following.fence
