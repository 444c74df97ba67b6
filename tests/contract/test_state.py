"""What every store of job records does."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import msgspec
import pytest

from mega.ports import Kept, StateStore
from mega.wire.message import new_id
from mega.wire.record import JobRecord, JobState
from tests.contract.bench import Bench, eventually

TTL = 60.0


def record(job_id: str, state: JobState, **fields: object) -> JobRecord:
    return JobRecord(id=job_id, subject="email.send", state=state, **fields)  # type: ignore[arg-type]


async def read_to_the_end(records: AsyncIterator[JobRecord]) -> list[JobRecord]:
    seen = []
    async for each in records:
        seen.append(each)
        if each.is_final:
            break
    return seen


async def test_an_unknown_job_has_no_record(bench: Bench) -> None:
    async with bench.broker() as broker:
        assert await broker.state.get(new_id()) is None


async def test_a_record_comes_back_as_it_was_written(bench: Bench) -> None:
    job_id = new_id()
    done = record(
        job_id,
        "done",
        attempt=3,
        error="ValueError: \N{SNOWMAN}",
        result=msgspec.Raw(b'{"sum":1.5}'),
        enqueued_at=bench.now(),
        ended_at=bench.now(),
        worker="here:1",
    )
    async with bench.broker() as broker:
        await broker.state.write(done, ttl=TTL)
        assert done == await broker.state.get(job_id)


async def test_a_process_sees_its_own_writes_at_once(bench: Bench) -> None:
    async with bench.broker() as broker:
        for number in range(20):
            written = record(f"{new_id()}-{number}", "waiting")
            await broker.state.create(written, ttl=TTL)
            assert written == await broker.state.get(written.id)
            written = record(written.id, "running")
            await broker.state.write(written, ttl=TTL)
            assert written == await broker.state.get(written.id)


@pytest.mark.parametrize("job_id", ["order.7", "50%", "a*b>c", "$x/y\\z", "x" * 128])
async def test_any_job_id_can_be_a_key(bench: Bench, job_id: str) -> None:
    unique = f"{job_id[:100]}{new_id()}"
    async with bench.broker() as broker:
        await broker.state.write(record(unique, "running"), ttl=TTL)
        await eventually(lambda: state_of(broker.state, unique), "running")


async def test_other_processes_see_a_record(bench: Bench) -> None:
    job_id = new_id()
    async with bench.broker() as broker, bench.second_broker(broker) as other:
        await broker.state.write(record(job_id, "running"), ttl=TTL)
        await eventually(lambda: state_of(other.state, job_id), "running")


async def test_create_does_not_replace_a_record(bench: Bench) -> None:
    job_id = new_id()
    async with bench.broker() as broker, bench.second_broker(broker) as other:
        await broker.state.write(record(job_id, "running"), ttl=TTL)
        await eventually(lambda: state_of(other.state, job_id), "running")
        await other.state.create(record(job_id, "waiting"), ttl=TTL)
        await bench.pass_time(0.1)
        assert "running" == await state_of(other.state, job_id)
        assert "running" == await state_of(broker.state, job_id)


async def test_write_replaces_a_record(bench: Bench) -> None:
    job_id = new_id()
    async with bench.broker() as broker:
        await broker.state.create(record(job_id, "waiting"), ttl=TTL)
        await broker.state.write(record(job_id, "running"), ttl=TTL)
        await broker.state.write(record(job_id, "done"), ttl=TTL)
        assert "done" == await state_of(broker.state, job_id)


async def test_a_record_goes_when_its_time_is_over(bench: Bench) -> None:
    short, long = new_id(), new_id()
    async with bench.broker() as broker:
        await broker.state.write(record(short, "done"), ttl=1)
        await broker.state.write(record(long, "done"), ttl=TTL)
        await bench.pass_time(1)
        await eventually(lambda: state_of(broker.state, short), None)
        assert "done" == await state_of(broker.state, long)


async def test_a_later_write_sets_the_time_anew(bench: Bench) -> None:
    job_id = new_id()
    async with bench.broker() as broker:
        await broker.state.write(record(job_id, "running"), ttl=1)
        await broker.state.write(record(job_id, "done"), ttl=TTL)
        await bench.pass_time(2)
        assert "done" == await state_of(broker.state, job_id)


async def test_an_expired_record_can_be_created_again(bench: Bench) -> None:
    job_id = new_id()
    async with bench.broker() as broker:
        await broker.state.write(record(job_id, "done"), ttl=1)
        await bench.pass_time(1)
        await eventually(lambda: state_of(broker.state, job_id), None)
        await broker.state.create(record(job_id, "waiting"), ttl=TTL)
        await eventually(lambda: state_of(broker.state, job_id), "waiting")


async def test_follow_begins_with_the_present_record(bench: Bench) -> None:
    job_id = new_id()
    async with bench.broker() as broker:
        await broker.state.write(record(job_id, "done"), ttl=TTL)
        async with broker.state.follow(job_id) as records:
            assert [record(job_id, "done")] == await read_to_the_end(records)


async def test_follow_yields_what_comes_later(bench: Bench) -> None:
    job_id = new_id()
    states: list[JobState] = ["waiting", "running", "retrying", "running", "done"]
    async with (
        bench.broker() as broker,
        bench.second_broker(broker) as worker,
        broker.state.follow(job_id) as records,
    ):
        for state in states:
            await worker.state.write(record(job_id, state), ttl=TTL)
        seen = await read_to_the_end(records)
    assert record(job_id, "done") == seen[-1]


async def test_follow_waits_for_each_record(bench: Bench) -> None:
    job_id = new_id()
    async with bench.broker() as broker, broker.state.follow(job_id) as records:
        await broker.state.write(record(job_id, "waiting"), ttl=TTL)
        assert "waiting" == (await anext(records)).state
        await broker.state.write(record(job_id, "running"), ttl=TTL)
        assert "running" == (await anext(records)).state
        with anyio.move_on_after(0.1) as quiet:
            await anext(records)
        assert quiet.cancelled_caught


async def test_followers_of_one_job_do_not_see_another(bench: Bench) -> None:
    mine, other = new_id(), new_id()
    async with (
        bench.broker() as broker,
        broker.state.follow(mine) as records,
        broker.state.follow(mine) as again,
    ):
        await broker.state.write(record(other, "done"), ttl=TTL)
        await broker.state.write(record(mine, "done"), ttl=TTL)
        assert [record(mine, "done")] == await read_to_the_end(records)
        assert [record(mine, "done")] == await read_to_the_end(again)


async def test_a_record_is_replaced_by_its_version(bench: Bench) -> None:
    job_id = new_id()
    async with bench.broker() as broker:
        store = broker.state
        assert Kept(None, 0, is_vacant=True) == await store.look(job_id)
        await store.write(record(job_id, "done"), ttl=TTL)
        assert "done" == await state_of(store, job_id)
        found = await store.look(job_id)
        assert record(job_id, "done") == found.record
        waiting = record(job_id, "waiting")
        assert await store.replace(job_id, waiting, version=found.version, ttl=TTL)
        assert not await store.replace(job_id, found.record, version=found.version, ttl=TTL)
        assert "waiting" == await state_of(store, job_id)


async def test_a_record_is_removed_by_its_version(bench: Bench) -> None:
    job_id = new_id()
    async with bench.broker() as broker:
        store = broker.state
        await store.write(record(job_id, "waiting"), ttl=TTL)
        assert "waiting" == await state_of(store, job_id)
        found = await store.look(job_id)
        await store.write(record(job_id, "running"), ttl=TTL)
        assert "running" == await state_of(store, job_id)
        assert not await store.replace(job_id, None, version=found.version, ttl=TTL)
        found = await store.look(job_id)
        assert await store.replace(job_id, None, version=found.version, ttl=TTL)
        assert await store.get(job_id) is None
        gone = await store.look(job_id)
        assert (None, True) == (gone.record, gone.is_vacant)
        waiting = record(job_id, "waiting")
        assert await store.replace(job_id, waiting, version=gone.version, ttl=TTL)
        assert "waiting" == await state_of(store, job_id)


async def test_nothing_is_replaced_by_a_first_record_once(bench: Bench) -> None:
    job_id = new_id()
    async with bench.broker() as broker, bench.second_broker(broker) as other:
        waiting = record(job_id, "waiting")
        assert await broker.state.replace(job_id, waiting, version=0, ttl=TTL)
        assert not await other.state.replace(job_id, waiting, version=0, ttl=TTL)


async def state_of(store: StateStore, job_id: str) -> str | None:
    found = await store.get(job_id)
    return found.state if found else None


async def test_what_is_flushed_has_left_the_process(bench: Bench) -> None:
    job_id = new_id()
    async with bench.broker() as broker, bench.second_broker(broker) as other:
        await broker.state.write(record(job_id, "running"), ttl=TTL)
        await broker.state.flush()

        async def look() -> str | None:
            found = await other.state.get(job_id)
            return found.state if found else None

        await eventually(look, "running")
