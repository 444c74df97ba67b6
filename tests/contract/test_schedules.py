"""What every store of schedules does: pauses that all processes see, and the last runs."""

from __future__ import annotations

from datetime import UTC, datetime

import anyio
import pytest

from mega.wire.message import new_id
from mega.wire.schedule_record import ScheduleRecord
from tests.contract.bench import Bench

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.fixture
def name() -> str:
    return f"nightly {new_id()}"


def record(name: str, **fields: object) -> ScheduleRecord:
    known = {"timetable": "0 12 * * *", "started_at": NOON, "seconds": 1.5, "worker": "a"}
    return ScheduleRecord(name=name, **known | fields)  # type: ignore[arg-type]


async def test_a_pause_is_seen_by_all_until_it_is_taken_back(bench: Bench, name: str) -> None:
    async with bench.broker() as broker, bench.second_broker(broker) as other:
        assert name not in await other.schedules.paused()
        await broker.schedules.pause(name, by="a")
        assert "a" == (await other.schedules.paused())[name]
        await other.schedules.resume(name)
        assert name not in await broker.schedules.paused()


async def test_who_paused_first_stays_noted(bench: Bench, name: str) -> None:
    async with bench.broker() as broker:
        await broker.schedules.pause(name, by="a")
        await broker.schedules.pause(name, by="b")
        assert "a" == (await broker.schedules.paused())[name]


async def test_a_resume_without_a_pause_does_nothing(bench: Bench, name: str) -> None:
    async with bench.broker() as broker:
        await broker.schedules.pause(name, by="a")
        await broker.schedules.resume(f"{name}.other")
        assert "a" == (await broker.schedules.paused())[name]


async def test_pauses_of_many_at_once_lose_none(bench: Bench, name: str) -> None:
    names = [f"{name}.{number}" for number in range(10)]
    async with bench.broker() as broker, bench.second_broker(broker) as other:
        async with anyio.create_task_group() as tasks:
            for number, each in enumerate(names):
                store = (broker, other)[number % 2].schedules
                tasks.start_soon(lambda store=store, each=each: store.pause(each, by="a"))
        assert set(names) <= set(await broker.schedules.paused())


async def test_the_last_run_is_kept(bench: Bench, name: str) -> None:
    failed = record(name, tick=NOON, error="ValueError: no", timezone="UTC", next_at=NOON)
    async with bench.broker() as broker, bench.second_broker(broker) as other:
        assert await broker.schedules.last_run(name) is None
        await broker.schedules.keep(record(name))
        await broker.schedules.keep(failed)
        assert failed == await other.schedules.last_run(name)


@pytest.mark.parametrize("ending", ["a.b", "a b", "50%", "a*b>c", "ü\N{SNOWMAN}\n\0", "%paused"])
async def test_a_name_may_be_any_text(bench: Bench, name: str, ending: str) -> None:
    first, second = f"{name}{ending}", f"{name}{ending}."
    async with bench.broker() as broker:
        await broker.schedules.pause(first, by="a")
        await broker.schedules.keep(record(first))
        assert {first} == {each for each in await broker.schedules.paused() if name in each}
        assert record(first) == await broker.schedules.last_run(first)
        assert await broker.schedules.last_run(second) is None
