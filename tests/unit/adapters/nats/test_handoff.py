"""Items for many takers, with few wakes."""

from __future__ import annotations

import asyncio

import pytest

from mega.adapters.nats.handoff import Handoff
from tests.waiting import until


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_items_come_in_order() -> None:
    handoff: Handoff[int] = Handoff()
    for number in range(3):
        handoff.put(number)

    assert [0, 1, 2] == [await handoff.take() for _ in range(3)]


async def test_every_taker_gets_up_when_all_of_them_wait_in_their_work() -> None:
    handoff: Handoff[int] = Handoff()
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
    handoff: Handoff[int] = Handoff()
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
    handoff: Handoff[int] = Handoff()
    gone, here = (asyncio.create_task(handoff.take()) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    handoff.put(7)

    async with asyncio.timeout(10):
        assert 7 == await here
