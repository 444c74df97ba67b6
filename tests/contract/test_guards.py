"""What every store of unique guards does."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from mega.ports import Guard, GuardStore
from mega.wire.message import new_id
from tests.contract.bench import Bench, eventually

TTL = 60.0


def guard(key: str = "order-7", **fields: object) -> Guard:
    """Return the guard of another job, on a subject that no other test has."""
    known = {"subject": f"contract.{new_id()}", "key": key, "job_id": new_id(), "ttl": TTL}
    return Guard(**known | fields)  # type: ignore[arg-type]


def rival(first: Guard) -> Guard:
    """Return the guard of another job for the same key."""
    return replace(first, job_id=new_id())


async def taker(store: GuardStore, guard: Guard) -> str:
    """Return the id of the job that has the key once `guard` has tried to take it."""
    return (await store.take(guard)).job_id


async def holder(store: GuardStore, first: Guard) -> str:
    """Return the id of the job that has the key."""
    return await taker(store, rival(first))


async def test_a_free_key_is_taken(bench: Bench) -> None:
    first = guard()
    async with bench.broker() as broker:
        taken = await broker.guards.take(first)
    assert first == replace(taken, version=0, age=0.0)
    assert taken.version > 0


async def test_a_key_is_taken_once(bench: Bench) -> None:
    first = guard(is_timed=True)
    async with bench.broker() as broker, bench.second_broker(broker) as other:
        taken = await broker.guards.take(first)
        found = await other.guards.take(rival(first))
    assert taken == replace(found, age=0.0)
    assert 0 <= found.age < TTL


async def test_of_many_at_once_one_takes_the_key(bench: Bench) -> None:
    first, answers = guard(), []

    async def take(store: GuardStore) -> None:
        answers.append(await store.take(rival(first)))

    async with (
        bench.broker() as broker,
        bench.second_broker(broker) as other,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(20):
            tasks.start_soon(take, broker.guards)
            tasks.start_soon(take, other.guards)
    assert 40 == len(answers)
    assert 1 == len({answer.job_id for answer in answers})


async def test_each_subject_has_its_own_keys(bench: Bench) -> None:
    first, second = guard(), guard()
    async with bench.broker() as broker:
        await broker.guards.take(first)
        assert second.job_id == (await broker.guards.take(second)).job_id


@pytest.mark.parametrize("key", ["a.b", "a b", "50%", "a*b>c", "ü\N{SNOWMAN}\n\0", "x" * 256])
async def test_any_text_can_be_a_key(bench: Bench, key: str) -> None:
    first = guard(key)
    async with bench.broker() as broker:
        await broker.guards.take(first)
        other = await broker.guards.take(replace(rival(first), key=key[::-1] + "."))
        assert other.job_id != first.job_id
        assert first.job_id == await holder(broker.guards, first)


async def test_a_confirmed_guard_says_so(bench: Bench) -> None:
    first = guard()
    async with bench.broker() as broker:
        taken = await broker.guards.take(first)
        assert not (await broker.guards.take(rival(first))).is_stored
        await broker.guards.confirm(taken)
        found = await broker.guards.take(rival(first))
    assert found.is_stored
    assert first.job_id == found.job_id


async def test_a_guard_that_changed_hands_is_not_confirmed(bench: Bench) -> None:
    first = guard()
    async with bench.broker() as broker:
        taken = await broker.guards.take(first)
        await broker.guards.free(first.subject, first.key, job_id=first.job_id)
        await broker.guards.confirm(taken)
        second = await broker.guards.take(rival(first))
        assert second.job_id != first.job_id
        await broker.guards.confirm(taken)
        assert not (await broker.guards.take(rival(first))).is_stored


async def test_a_freed_key_can_be_taken_at_once_and_again(bench: Bench) -> None:
    first = guard()
    async with bench.broker() as broker:
        for _ in range(3):
            taken = await broker.guards.take(rival(first))
            await broker.guards.free(first.subject, first.key, job_id=taken.job_id)
        assert first.job_id == (await broker.guards.take(first)).job_id


async def test_only_its_job_frees_a_key(bench: Bench) -> None:
    first = guard()
    async with bench.broker() as broker:
        await broker.guards.free(first.subject, first.key, job_id=first.job_id)
        await broker.guards.take(first)
        await broker.guards.free(first.subject, first.key, job_id=new_id())
        assert first.job_id == await holder(broker.guards, first)


async def test_a_guard_is_taken_over_by_its_version(bench: Bench) -> None:
    first = guard()
    second, third = rival(first), rival(first)
    async with bench.broker() as broker, bench.second_broker(broker) as other:
        await broker.guards.take(first)
        found = await other.guards.take(second)
        assert second.job_id == (await other.guards.take(second, over=found)).job_id
        assert second.job_id == (await broker.guards.take(third, over=found)).job_id


async def test_a_guard_goes_when_its_time_is_over(bench: Bench) -> None:
    first, second = guard(ttl=1.0), guard(ttl=TTL)
    async with bench.broker() as broker:
        await broker.guards.confirm(await broker.guards.take(first))
        await broker.guards.take(second)
        await bench.pass_time(1.5)
        later = replace(first, job_id=new_id(), ttl=TTL)
        await eventually(lambda: taker(broker.guards, later), later.job_id)
        assert second.job_id == await holder(broker.guards, second)


async def test_a_guard_grows_older(bench: Bench) -> None:
    first = guard()
    async with bench.broker() as broker:
        await broker.guards.take(first)
        await bench.pass_time(1)
        assert 0.9 < (await broker.guards.take(rival(first))).age < 30
