"""At most so many runs at once, in the order in which they asked."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint

from mega.runtime.turns import Turns


async def settle() -> None:
    await anyio.wait_all_tasks_blocked()


async def test_turns_are_limited_and_given_in_the_order_of_asking() -> None:
    turns, begun, may_end = Turns(2), [], [anyio.Event() for _ in range(5)]

    async def run(number: int) -> None:
        assert await turns.take()
        begun.append(number)
        await may_end[number].wait()
        turns.give()

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(run, number)
            await settle()
        assert [0, 1] == begun
        for number in (1, 0, 2):
            may_end[number].set()
            await settle()
        assert [0, 1, 2, 3, 4] == begun
        for number in (3, 4):
            may_end[number].set()


async def test_who_asks_later_does_not_overtake() -> None:
    turns, order = Turns(1), []

    async def wait(name: str) -> None:
        await turns.take()
        order.append(name)

    assert await turns.take()
    async with anyio.create_task_group() as group:
        group.start_soon(wait, "first")
        await settle()
        turns.give()
        group.start_soon(wait, "second")
        await settle()
        turns.give()
    assert ["first", "second"] == order


async def test_a_cancelled_one_leaves_the_row() -> None:
    turns, order = Turns(1), []

    async def wait() -> None:
        await turns.take()
        order.append("second")

    assert await turns.take()
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as first:
                first.start_soon(turns.take)
                await settle()
                group.start_soon(wait)
                await settle()
                scope.cancel()
        turns.give()
    assert ["second"] == order


async def test_a_turn_that_comes_together_with_a_cancellation_goes_on_to_the_next() -> None:
    turns = Turns(1)

    async def run() -> None:
        await turns.take()
        turns.give()

    assert await turns.take()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await settle()
            turns.give()
            scope.cancel()
    with anyio.fail_after(1):
        assert await turns.take()


async def test_closing_sends_away_who_waits_and_who_comes() -> None:
    turns, answers = Turns(1), []

    async def wait() -> None:
        answers.append(await turns.take())

    assert await turns.take()
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(wait)
        await settle()
        turns.close()
    turns.give()
    assert [False] * 3 == answers
    assert not await turns.take()


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_the_limit_is_reached_and_not_passed(limit: int) -> None:
    turns, at_once, most = Turns(limit), 0, 0

    async def run() -> None:
        nonlocal at_once, most
        await turns.take()
        at_once += 1
        most = max(most, at_once)
        await checkpoint()
        await checkpoint()
        at_once -= 1
        turns.give()

    async with anyio.create_task_group() as group:
        for _ in range(3 * limit):
            group.start_soon(run)
    assert (limit, 0) == (most, at_once)
