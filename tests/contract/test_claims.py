"""What every store of claims does: one decision per tick, one holder of the lease."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import anyio
import pytest

from mega.ports import Claim, ClaimStore, Skip
from mega.wire.message import new_id
from tests.contract.bench import Bench

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LEASE = 1.0

Contend: TypeAlias = Callable[[ClaimStore, str], Coroutine[Any, Any, None]]


@pytest.fixture
def key() -> str:
    return f"mega:schedule:nightly {new_id()}"


async def won(store: ClaimStore, key: str, tick: datetime | None, owner: str) -> Claim:
    """Claim with a lease, and be sure to get it."""
    answer = await store.claim(key, tick=tick, owner=owner, lease=LEASE)
    assert isinstance(answer, Claim), answer
    return answer


async def contend_from_two_processes(bench: Bench, contend: Contend, *, count: int) -> None:
    async with (
        bench.broker() as broker,
        bench.second_broker(broker) as other,
        anyio.create_task_group() as tasks,
    ):
        for number in range(count):
            tasks.start_soon(contend, broker.claims, f"a{number}")
            tasks.start_soon(contend, other.claims, f"b{number}")


async def test_the_first_claim_of_a_tick_wins(bench: Bench, key: str) -> None:
    async with bench.broker() as broker:
        claim = await broker.claims.claim(key, tick=NOON, owner="a", lease=None)
        second = await broker.claims.claim(key, tick=NOON, owner="b", lease=None)
    assert isinstance(claim, Claim)
    assert (key, "a", NOON, None) == (claim.key, claim.owner, claim.tick, claim.lease)
    assert Skip("taken", by="a") == second


@pytest.mark.parametrize("lease", [None, LEASE])
async def test_one_of_many_contenders_wins(bench: Bench, key: str, lease: float | None) -> None:
    answers: list[Claim | Skip] = []

    async def contend(store: ClaimStore, owner: str) -> None:
        answers.append(await store.claim(key, tick=NOON, owner=owner, lease=lease))

    await contend_from_two_processes(bench, contend, count=8)
    [winner] = [answer for answer in answers if isinstance(answer, Claim)]
    skips = [answer for answer in answers if isinstance(answer, Skip)]
    assert [Skip("taken", by=winner.owner)] * 15 == skips


async def test_each_tick_of_a_series_is_won_once(bench: Bench, key: str) -> None:
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


async def test_an_older_tick_is_taken(bench: Bench, key: str) -> None:
    async with bench.broker() as broker:
        await broker.claims.claim(key, tick=NOON, owner="a", lease=None)
        late = await broker.claims.claim(key, tick=NOON - MINUTE, owner="b", lease=None)
        own = await broker.claims.claim(key, tick=NOON - MINUTE, owner="a", lease=None)
    assert Skip("taken", by="a") == late == own


async def test_the_last_tick_is_remembered(bench: Bench, key: str) -> None:
    async with bench.broker() as broker, bench.second_broker(broker) as other:
        assert await broker.claims.last_tick(key) is None
        await broker.claims.claim(key, tick=NOON, owner="a", lease=None)
        await broker.claims.claim(key, tick=NOON + MINUTE, owner="a", lease=None)
        assert await other.claims.last_tick(key) == NOON + MINUTE


async def test_a_tick_may_lie_between_seconds(bench: Bench, key: str) -> None:
    tick = NOON + timedelta(milliseconds=250)
    async with bench.broker() as broker:
        await broker.claims.claim(key, tick=NOON, owner="a", lease=None)
        assert isinstance(await broker.claims.claim(key, tick=tick, owner="a", lease=None), Claim)
        assert tick == await broker.claims.last_tick(key)


async def test_keys_are_apart(bench: Bench, key: str) -> None:
    async with bench.broker() as broker:
        await won(broker.claims, key, NOON, "a")
        await won(broker.claims, f"{key}.weekly", NOON, "b")
        await won(broker.claims, f"{key}*", NOON, "c")


async def test_asking_again_gets_the_same_answer(bench: Bench, key: str) -> None:
    async with bench.broker() as broker:
        claim = await won(broker.claims, key, NOON, "a")
        assert claim == await won(broker.claims, key, NOON, "a")
        for _ in range(2):
            skip = await broker.claims.claim(key, tick=NOON + MINUTE, owner="b", lease=LEASE)
            assert Skip("running", by="a") == skip


async def test_a_run_that_goes_on_keeps_others_out(bench: Bench, key: str) -> None:
    async with bench.broker() as broker:
        await won(broker.claims, key, NOON, "a")
        skip = await broker.claims.claim(key, tick=NOON + MINUTE, owner="b", lease=LEASE)
    assert Skip("running", by="a") == skip


async def test_a_tick_that_met_a_running_one_is_decided(bench: Bench, key: str) -> None:
    async with bench.broker() as broker:
        claim = await won(broker.claims, key, NOON, "a")
        await broker.claims.claim(key, tick=NOON + MINUTE, owner="b", lease=LEASE)
        await broker.claims.release(claim)
        late = await broker.claims.claim(key, tick=NOON + MINUTE, owner="c", lease=LEASE)
        assert Skip("taken", by="b") == late
        assert await broker.claims.last_tick(key) == NOON + MINUTE


async def test_release_lets_the_next_run_begin(bench: Bench, key: str) -> None:
    async with bench.broker() as broker:
        claim = await won(broker.claims, key, NOON, "a")
        await broker.claims.release(claim)
        await won(broker.claims, key, NOON + MINUTE, "b")


async def test_release_does_not_free_the_tick(bench: Bench, key: str) -> None:
    async with bench.broker() as broker:
        claim = await won(broker.claims, key, NOON, "a")
        await broker.claims.release(claim)
        late = await broker.claims.claim(key, tick=NOON, owner="b", lease=LEASE)
    assert Skip("taken", by="a") == late


async def test_a_lease_that_nobody_renews_ends(bench: Bench, key: str) -> None:
    async with bench.broker() as broker:
        await won(broker.claims, key, NOON, "dead")
        await bench.pass_time(LEASE + 0.2)
        await won(broker.claims, key, NOON + MINUTE, "b")


async def test_extend_keeps_the_lease(bench: Bench, key: str) -> None:
    async with bench.broker() as broker:
        claim = await won(broker.claims, key, NOON, "a")
        for _ in range(3):
            await bench.pass_time(0.5)
            assert "held" == await broker.claims.extend(claim)
        skip = await broker.claims.claim(key, tick=NOON + MINUTE, owner="b", lease=LEASE)
    assert Skip("running", by="a") == skip


async def test_a_late_extend_holds_when_nobody_came(bench: Bench, key: str) -> None:
    async with bench.broker() as broker:
        claim = await won(broker.claims, key, NOON, "a")
        await bench.pass_time(LEASE + 0.2)
        assert "held" == await broker.claims.extend(claim)
        skip = await broker.claims.claim(key, tick=NOON + MINUTE, owner="b", lease=LEASE)
    assert Skip("running", by="a") == skip


async def test_a_holder_that_was_overtaken_is_told(bench: Bench, key: str) -> None:
    async with bench.broker() as broker:
        overtaken = await won(broker.claims, key, NOON, "a")
        await bench.pass_time(LEASE + 0.2)
        claim = await won(broker.claims, key, NOON + MINUTE, "b")
        assert "lost" == await broker.claims.extend(overtaken)
        await broker.claims.release(overtaken)
        assert "held" == await broker.claims.extend(claim)


async def test_the_fence_grows(bench: Bench, key: str) -> None:
    fences = []
    async with bench.broker() as broker, bench.second_broker(broker) as other:
        for number, store in enumerate([broker.claims, other.claims] * 2):
            claim = await won(store, key, NOON + number * MINUTE, f"owner-{number}")
            await store.release(claim)
            fences.append(claim.fence)
    assert sorted(set(fences)) == fences


async def test_a_manual_run_needs_the_lease_alone(bench: Bench, key: str) -> None:
    async with bench.broker() as broker:
        await broker.claims.claim(key, tick=NOON, owner="a", lease=None)
        manual = await won(broker.claims, key, None, "me")
        assert manual.tick is None
        assert await broker.claims.last_tick(key) == NOON
        skip = await broker.claims.claim(key, tick=NOON + MINUTE, owner="b", lease=LEASE)
        assert Skip("running", by="me") == skip


async def test_a_manual_run_waits_for_no_other(bench: Bench, key: str) -> None:
    async with bench.broker() as broker:
        await won(broker.claims, key, NOON, "a")
        skip = await broker.claims.claim(key, tick=None, owner="me", lease=LEASE)
    assert Skip("running", by="a") == skip
