"""What every store of claims does: one decision per tick, one holder of the lease."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import anyio
import pytest

from mega.ports import Claim, ClaimStore, Held, Lost, Skip
from mega.wire.message import new_id
from tests.contract.claims_bench import BrokerClaims, ClaimsBench, LockClaims

STORES = [
    pytest.param(("memory", "asyncio"), id="memory-asyncio"),
    pytest.param(("memory", "trio"), id="memory-trio"),
    pytest.param(("nats", "asyncio"), id="nats-asyncio"),
    pytest.param(("redis", "asyncio"), id="redis-asyncio"),
    pytest.param(("redis", "trio"), id="redis-trio"),
    pytest.param(("redlock", "asyncio"), id="redlock-asyncio"),
    pytest.param(("redlock", "trio"), id="redlock-trio"),
]

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Nobody waits for the end of this one, and so for no test.
LEASE = 30.0
SHORT = 1.0
ENDED = SHORT + 0.2

Contend: TypeAlias = Callable[[ClaimStore, str], Coroutine[Any, Any, None]]


@pytest.fixture(params=STORES)
def adapter(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The store's name, and the loop that it runs on."""
    name, backend = request.param
    return name, backend


@pytest.fixture
def bench(adapter: tuple[str, str], request: pytest.FixtureRequest) -> ClaimsBench:
    """The store under test."""
    name, _ = adapter
    if name in ("redis", "redlock"):
        urls = [server.url for server in request.getfixturevalue("redis_servers")]
        return LockClaims(urls if name == "redlock" else urls[0])
    return BrokerClaims(request.getfixturevalue("broker_bench"))


@pytest.fixture
def key() -> str:
    return f"mega:schedule:nightly {new_id()}"


async def won(
    store: ClaimStore, key: str, tick: datetime | None, owner: str, *, lease: float | None = LEASE
) -> Claim:
    """Claim, and be sure to get it."""
    answer = await store.claim(key, tick=tick, owner=owner, lease=lease)
    assert isinstance(answer, Claim), answer
    return answer


async def contend_from_two_processes(bench: ClaimsBench, contend: Contend, *, count: int) -> None:
    async with bench.stores() as (store, other), anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(contend, store, f"a{number}")
            tasks.start_soon(contend, other, f"b{number}")


# -- ticks


async def test_the_first_claim_of_a_tick_wins(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        claim = await store.claim(key, tick=NOON, owner="a", lease=None)
        second = await other.claim(key, tick=NOON, owner="b", lease=None)
    assert isinstance(claim, Claim)
    assert (key, "a", NOON, None) == (claim.key, claim.owner, claim.tick, claim.lease)
    assert Skip("taken", by="a") == second


@pytest.mark.parametrize("lease", [None, LEASE])
async def test_one_of_many_contenders_wins(
    bench: ClaimsBench, key: str, lease: float | None
) -> None:
    answers: list[Claim | Skip] = []

    async def contend(store: ClaimStore, owner: str) -> None:
        answers.append(await store.claim(key, tick=NOON, owner=owner, lease=lease))

    await contend_from_two_processes(bench, contend, count=8)
    [winner] = [answer for answer in answers if isinstance(answer, Claim)]
    skips = [answer for answer in answers if isinstance(answer, Skip)]
    assert [Skip("taken", by=winner.owner)] * 15 == skips


async def test_each_tick_of_a_series_is_won_once(bench: ClaimsBench, key: str) -> None:
    ticks = [NOON + number * MINUTE for number in range(10)]
    winners: list[datetime | None] = []

    async def contend(store: ClaimStore, owner: str) -> None:
        for tick in ticks:
            answer = await store.claim(key, tick=tick, owner=owner, lease=None)
            if isinstance(answer, Claim):
                winners.append(answer.tick)

    await contend_from_two_processes(bench, contend, count=3)
    assert len(winners) == len(set(winners))
    assert NOON + 9 * MINUTE in winners


async def test_an_older_tick_is_taken(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        await won(store, key, NOON, "a", lease=None)
        late = await other.claim(key, tick=NOON - MINUTE, owner="b", lease=None)
        own = await store.claim(key, tick=NOON - MINUTE, owner="a", lease=None)
    assert Skip("taken", by="a") == late == own


async def test_a_tick_of_a_clock_that_was_wrong_decides_nothing(
    bench: ClaimsBench, key: str
) -> None:
    """Or setting a clock right would silence its schedules for as long as it was ahead."""
    async with bench.stores() as (store, other):
        present = bench.now().replace(microsecond=0)
        await won(store, key, present + 365 * 24 * 60 * MINUTE, "a", lease=None)
        await won(other, key, present, "b", lease=None)
        assert present == await store.last_tick(key)
        skip = await store.claim(key, tick=present - 240 * MINUTE, owner="late", lease=None)
        assert Skip("taken", by="b") == skip


async def test_the_last_tick_is_remembered(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        assert await store.last_tick(key) is None
        await won(store, key, NOON, "a", lease=None)
        await won(store, key, NOON + MINUTE, "a", lease=None)
        assert NOON + MINUTE == await other.last_tick(key)


async def test_a_tick_may_lie_between_seconds(bench: ClaimsBench, key: str) -> None:
    tick = NOON + timedelta(microseconds=333_334)
    async with bench.stores() as (store, _):
        await won(store, key, NOON, "a", lease=None)
        await won(store, key, tick, "a", lease=None)
        assert tick == await store.last_tick(key)


async def test_a_tick_is_an_instant_in_any_zone(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        await won(store, key, NOON.astimezone(), "a", lease=None)
        assert Skip("taken", by="a") == await other.claim(key, tick=NOON, owner="b", lease=None)


async def test_keys_are_apart(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, _):
        await won(store, key, NOON, "a")
        await won(store, f"{key}.weekly", NOON, "b")
        await won(store, f"{key}*", NOON, "c")
        await won(store, f"{{{key}}}", NOON, "d")


async def test_names_may_be_of_any_script(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        await won(store, f"{key} nächtlich", NOON, "größe/1")
        skip = await other.claim(f"{key} nächtlich", tick=NOON, owner="b", lease=None)
    assert Skip("taken", by="größe/1") == skip


# -- a call that is repeated


async def test_asking_again_gets_the_same_answer(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        claim = await won(store, key, NOON, "a")
        assert claim == await won(store, key, NOON, "a")
        for _ in range(2):
            skip = await other.claim(key, tick=NOON + MINUTE, owner="b", lease=LEASE)
            assert Skip("running", by="a") == skip
        await store.release(claim)
        skip = await other.claim(key, tick=NOON + MINUTE, owner="b", lease=LEASE)
        assert Skip("running", by="a") == skip


async def test_asking_again_without_a_lease_gets_the_same_answer(
    bench: ClaimsBench, key: str
) -> None:
    async with bench.stores() as (store, _):
        claim = await won(store, key, NOON, "a", lease=None)
        assert claim == await won(store, key, NOON, "a", lease=None)


async def test_the_lease_of_a_repeated_claim_counts_anew(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        claim = await won(store, key, NOON, "a", lease=SHORT)
        again = await won(store, key, NOON, "a", lease=LEASE)
        assert claim.fence == again.fence
        await bench.pass_time(ENDED)
        skip = await other.claim(key, tick=NOON + MINUTE, owner="b", lease=LEASE)
    assert Skip("running", by="a") == skip


async def test_asking_again_does_not_disturb_who_came_between(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        await won(store, key, NOON, "a", lease=SHORT)
        await bench.pass_time(ENDED)
        manual = await won(other, key, None, "me")
        skip = await store.claim(key, tick=NOON, owner="a", lease=LEASE)
        assert Skip("running", by="me") == skip
        assert Held() == await other.extend(manual)


# -- leases


async def test_a_run_that_goes_on_keeps_others_out(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        await won(store, key, NOON, "a")
        skip = await other.claim(key, tick=NOON + MINUTE, owner="b", lease=LEASE)
        without = await other.claim(key, tick=NOON + 2 * MINUTE, owner="c", lease=None)
    assert Skip("running", by="a") == skip == without


async def test_a_tick_that_met_a_running_one_is_decided(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        claim = await won(store, key, NOON, "a")
        await other.claim(key, tick=NOON + MINUTE, owner="b", lease=LEASE)
        await store.release(claim)
        late = await store.claim(key, tick=NOON + MINUTE, owner="c", lease=LEASE)
        assert Skip("taken", by="b") == late
        assert NOON + MINUTE == await store.last_tick(key)


async def test_a_tick_that_met_a_running_one_leaves_its_lease(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        claim = await won(store, key, NOON, "a")
        await other.claim(key, tick=NOON + MINUTE, owner="b", lease=LEASE)
        assert Held() == await store.extend(claim)
        skip = await other.claim(key, tick=NOON + 2 * MINUTE, owner="b", lease=LEASE)
    assert Skip("running", by="a") == skip


async def test_release_lets_the_next_run_begin(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        claim = await won(store, key, NOON, "a")
        await store.release(claim)
        await won(other, key, NOON + MINUTE, "b")


async def test_release_does_not_free_the_tick(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        claim = await won(store, key, NOON, "a")
        await store.release(claim)
        late = await other.claim(key, tick=NOON, owner="b", lease=LEASE)
    assert Skip("taken", by="a") == late


async def test_a_lease_that_nobody_renews_ends(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        await won(store, key, NOON, "dead", lease=SHORT)
        await bench.pass_time(ENDED)
        await won(other, key, NOON + MINUTE, "b")


async def test_what_others_ask_for_prolongs_no_lease(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        await won(store, key, NOON, "dead", lease=SHORT)
        await bench.pass_time(SHORT / 2)
        skip = await other.claim(key, tick=None, owner="me", lease=LEASE)
        assert Skip("running", by="dead") == skip
        await other.release(Claim(key, "me", 1, None, LEASE))
        await bench.pass_time(ENDED - SHORT / 2)
        await won(other, key, None, "me")


async def test_a_lease_that_has_ended_stays_ended(bench: ClaimsBench, key: str) -> None:
    """Whoever notes a tick writes the record, which must not begin the lease anew."""
    async with bench.stores() as (store, other):
        await won(store, key, NOON, "dead", lease=SHORT)
        await bench.pass_time(ENDED)
        await won(other, key, NOON + MINUTE, "noting", lease=None)
        await won(other, key, NOON + 2 * MINUTE, "b")


async def test_extend_keeps_the_lease(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        claim = await won(store, key, NOON, "a", lease=SHORT)
        assert Held() == await store.extend(replace(claim, lease=LEASE))
        await bench.pass_time(ENDED)
        skip = await other.claim(key, tick=NOON + MINUTE, owner="b", lease=LEASE)
    assert Skip("running", by="a") == skip


async def test_a_late_extend_holds_when_nobody_came(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        claim = await won(store, key, NOON, "a", lease=SHORT)
        await bench.pass_time(ENDED)
        assert Held() == await store.extend(replace(claim, lease=LEASE))
        skip = await other.claim(key, tick=NOON + MINUTE, owner="b", lease=LEASE)
    assert Skip("running", by="a") == skip


async def test_a_holder_that_was_overtaken_is_told_by_whom(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        overtaken = await won(store, key, NOON, "a", lease=SHORT)
        await bench.pass_time(ENDED)
        claim = await won(other, key, NOON + MINUTE, "b")
        assert Lost(by="b") == await store.extend(overtaken)
        await store.release(overtaken)
        assert Held() == await other.extend(claim)
        assert overtaken.fence < claim.fence


async def test_a_holder_is_told_of_one_that_came_and_went(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        overtaken = await won(store, key, NOON, "a", lease=SHORT)
        await bench.pass_time(ENDED)
        claim = await won(other, key, NOON + MINUTE, "b")
        await other.release(claim)
        assert Lost(by="b") == await store.extend(overtaken)


async def test_a_holder_is_told_of_one_that_asked_for_no_lease(
    bench: ClaimsBench, key: str
) -> None:
    async with bench.stores() as (store, other):
        overtaken = await won(store, key, NOON, "a", lease=SHORT)
        await bench.pass_time(ENDED)
        await won(other, key, NOON + MINUTE, "b", lease=None)
        assert Lost(by="b") == await store.extend(overtaken)


async def test_a_holder_is_not_told_its_own_name(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        overtaken = await won(store, key, NOON, "a", lease=SHORT)
        await bench.pass_time(ENDED)
        manual = await won(other, key, None, "me")
        assert Lost(by="me") == await store.extend(overtaken)
        await other.release(manual)
        assert Lost(by="") == await store.extend(overtaken)


async def test_the_fence_grows(bench: ClaimsBench, key: str) -> None:
    fences = []
    ticks = [NOON, None, NOON + MINUTE, NOON + timedelta(microseconds=60_000_001), None]
    async with bench.stores() as stores:
        for number, tick in enumerate(ticks):
            store = stores[number % 2]
            claim = await won(store, key, tick, f"owner-{number}")
            assert Held() == await store.extend(claim)
            await store.release(claim)
            fences.append(claim.fence)
    assert sorted(set(fences)) == fences


async def test_the_fence_of_a_claim_without_a_tick_outlasts_what_the_store_knows(
    bench: ClaimsBench, key: str
) -> None:
    """As locks that schedules share have it: after a loss it must not begin at 1 again."""
    async with bench.stores() as (store, _):
        claim = await won(store, key, None, "a")
    assert claim.fence > (bench.now() - EPOCH - MINUTE) // timedelta(milliseconds=1)


# -- runs by hand


async def test_a_manual_run_needs_the_lease_alone(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        await won(store, key, NOON, "a", lease=None)
        manual = await won(store, key, None, "me")
        assert manual.tick is None
        assert NOON == await store.last_tick(key)
        skip = await other.claim(key, tick=NOON + MINUTE, owner="b", lease=LEASE)
        assert Skip("running", by="me") == skip


async def test_a_manual_run_waits_for_no_other(bench: ClaimsBench, key: str) -> None:
    async with bench.stores() as (store, other):
        await won(store, key, NOON, "a")
        skip = await other.claim(key, tick=None, owner="me", lease=LEASE)
    assert Skip("running", by="a") == skip


# -- time


async def test_the_time_is_that_of_this_machine(bench: ClaimsBench) -> None:
    async with bench.stores() as (store, _):
        before = bench.now()
        instant = await store.time()
    assert timedelta(0) == instant.utcoffset()
    assert timedelta(seconds=-1) < instant - before < timedelta(seconds=10)
