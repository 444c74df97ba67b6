"""Items for many takers, with few wakes."""

from __future__ import annotations

import asyncio
import time

import pytest

from mega.adapters.nats.handoff import LONGEST_SLICE, Handoff, TimeSlice
from tests.waiting import until


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_items_come_in_order() -> None:
    handoff: Handoff[int] = Handoff(TimeSlice())
    for number in range(3):
        handoff.put(number)

    assert [0, 1, 2] == [await handoff.take() for _ in range(3)]


async def test_every_taker_gets_up_when_all_of_them_wait_in_their_work() -> None:
    handoff: Handoff[int] = Handoff(TimeSlice())
    started: list[int] = []
    everyone = asyncio.Event()

    async def work() -> None:
        started.append(await handoff.take())
        if len(started) == 100:
            everyone.set()
        await everyone.wait()

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        for _ in range(100):
            tasks.create_task(work())
        await asyncio.sleep(0)
        for number in range(100):
            handoff.put(number)

    assert list(range(100)) == sorted(started)


async def test_short_work_is_done_by_one_taker_in_a_row() -> None:
    handoff: Handoff[int] = Handoff(TimeSlice())
    by: list[int] = []

    async def work(me: int) -> None:
        while await handoff.take() >= 0:
            by.append(me)

    tasks = [asyncio.create_task(work(me)) for me in range(20)]
    await asyncio.sleep(0)
    for number in range(20):
        handoff.put(number)
    await until(lambda: len(by) == 20, what="all items")
    for task in tasks:
        task.cancel()

    assert 1 == len(set(by))


async def test_a_taker_that_gave_up_is_passed_over() -> None:
    handoff: Handoff[int] = Handoff(TimeSlice())
    gone, here = (asyncio.create_task(handoff.take()) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    handoff.put(7)

    async with asyncio.timeout(10):
        assert 7 == await here


async def take_slowly(handoff: Handoff[int], name: str, log: list[str]) -> None:
    """Do work that never waits, and lasts as long as a slice."""
    while True:
        await handoff.take()
        log.append(name)
        time.sleep(LONGEST_SLICE)  # noqa: ASYNC251  # holding the loop is what is tested


async def test_takers_that_never_wait_leave_the_loop_to_others() -> None:
    handoff: Handoff[int] = Handoff(TimeSlice())
    log: list[str] = []
    takers = [asyncio.create_task(take_slowly(handoff, "job", log)) for _ in range(5)]
    await asyncio.sleep(0)
    for number in range(20):
        handoff.put(number)
    for _ in range(40):
        await asyncio.sleep(0)
        log.append("loop")
    for taker in takers:
        taker.cancel()

    runs = "".join(entry[0] for entry in log).split("l")
    assert 20 == sum(len(run) for run in runs)
    assert 1 == max(len(run) for run in runs)


async def test_one_queue_does_not_wait_for_the_end_of_another() -> None:
    time_slice, log = TimeSlice(), list[str]()
    flooded, quiet = Handoff[int](time_slice), Handoff[int](time_slice)
    takers = [asyncio.create_task(take_slowly(flooded, "flooded", log)) for _ in range(5)]
    takers += [asyncio.create_task(take_slowly(quiet, "quiet", log))]
    await asyncio.sleep(0)
    for number in range(50):
        flooded.put(number)
    for number in range(5):
        quiet.put(number)
    await until(lambda: log.count("quiet") == 5, what="the quiet queue's items")
    for taker in takers:
        taker.cancel()

    assert log.count("flooded") < 20
