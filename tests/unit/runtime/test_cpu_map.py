"""Many calls of one task: order, bounds, errors, and what is left behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import anyio
import pytest

from mega import App
from mega.errors import BadOption, CpuStopped, NotConnected
from tests.waiting import until

running: set[int] = set()
most_running = 0
gate = threading.Event()


def square(number: int) -> int:
    """Wait for the gate at an odd number, and refuse 13."""
    global most_running
    running.add(number)
    most_running = max(most_running, len(running))
    try:
        if number == 13:
            raise ValueError("13")
        if number % 2:
            assert gate.wait(30)
        return number * number
    finally:
        running.discard(number)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    global most_running
    running.clear()
    most_running = 0
    gate.set()
    yield
    gate.set()


@pytest.fixture
def app() -> App:
    app = App("shop", broker="memory:")
    app.pool("default", mode="thread", size=2, max_restarts=100)
    return app


async def test_results_come_in_the_order_of_the_items(app: App) -> None:
    task = app.cpu_task()(square)
    async with app:
        assert [0, 1, 4, 9, 16, 25] == [result async for result in task.map(range(6))]
        assert [] == [result async for result in task.map(())]


async def test_items_may_come_from_an_async_generator_which_is_closed(app: App) -> None:
    task, closed = app.cpu_task()(square), []

    async def items() -> AsyncIterator[int]:
        try:
            for number in range(10):
                await anyio.lowlevel.checkpoint()
                yield number
        finally:
            closed.append("closed")

    async with app:
        async with aclosing(task.map(items())) as results:
            assert 0 == await anext(results)
            assert 1 == await anext(results)
        assert ["closed"] == closed
        assert 10 == len([result async for result in task.map(items())])


async def test_it_takes_few_items_ahead(app: App) -> None:
    task, taken = app.cpu_task()(square), []

    def items() -> Iterator[int]:
        for number in range(0, 100, 2):
            taken.append(number)
            yield number

    async with app, aclosing(task.map(items())) as results:
        assert 0 == await anext(results)
        await anyio.wait_all_tasks_blocked()
        await until(lambda: not running, what="the calls to end")
        await anyio.wait_all_tasks_blocked()
        assert len(taken) <= 1 + 2 + 1


@pytest.mark.parametrize(("limit", "most"), [(None, 2), (1, 1)])
async def test_no_more_than_the_limit_run(app: App, limit: int | None, most: int) -> None:
    task = app.cpu_task()(square)
    gate.clear()
    results = []

    async def collect() -> None:
        results.extend([result async for result in task.map(range(1, 12, 2), limit=limit)])

    async with app, anyio.create_task_group() as tasks:
        tasks.start_soon(collect)
        await until(lambda: len(running) == most, what="calls to run")
        await anyio.wait_all_tasks_blocked()
        gate.set()
    assert [1, 9, 25, 49, 81, 121] == results
    assert most == most_running


async def test_an_error_comes_in_its_place_and_ends_the_rest(app: App) -> None:
    task, results, taken = app.cpu_task()(square), [], []

    def items() -> Iterator[int]:
        for number in (1, 13, 3, 5, 7):
            taken.append(number)
            yield number

    gate.clear()
    async with app, anyio.create_task_group() as tasks:
        iterator = task.map(items())

        async def collect() -> None:
            async for result in iterator:
                results.append(result)

        async def fail() -> None:
            with pytest.raises(ValueError, match="13"):
                await collect()

        tasks.start_soon(fail)
        await until(lambda: {1} == running or 3 in running, what="the error")
        gate.set()
    assert [1] == results
    assert 7 not in taken


async def test_an_error_of_the_items_comes_in_its_place(app: App) -> None:
    task, results = app.cpu_task()(square), []

    def items() -> Iterator[int]:
        yield 2
        raise LookupError("no more")

    async with app, aclosing(task.map(items())) as iterator:
        results.append(await anext(iterator))
        with pytest.raises(LookupError, match="no more"):
            await anext(iterator)
    assert [4] == results


@pytest.mark.parametrize("how", ["break", "cancel"])
async def test_nothing_goes_on_when_the_consumer_stops(app: App, how: str) -> None:
    task, taken = app.cpu_task()(square), []

    def items() -> Iterator[int]:
        for number in (0, 1, 1, 1, 1):
            taken.append(number)
            yield number

    async def consume(scope: anyio.CancelScope) -> None:
        with scope:
            async for result in task.map(items()):
                assert 0 == result
                await until(lambda: 1 in running, what="a call to run")
                if how == "break":
                    break

    gate.clear()
    scope = anyio.CancelScope()
    async with app:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume, scope)
            if how == "cancel":
                await until(lambda: 1 in running, what="a call to run")
                scope.cancel()
        gc.collect()
        gate.set()
        await until(lambda: not running, what="the thread to end")
        await anyio.wait_all_tasks_blocked()
        assert len(taken) <= 4


async def test_a_map_that_is_never_begun_leaves_nothing(app: App) -> None:
    task = app.cpu_task()(square)
    async with app:
        results = task.map(range(3))
        await results.aclose()
        assert [] == [result async for result in results]
        del results
        gc.collect()


async def test_a_map_outside_of_the_app(app: App) -> None:
    task = app.cpu_task()(square)
    with pytest.raises(NotConnected):
        task.map(range(3))
    async with app:
        with pytest.raises(BadOption, match="limit=0"):
            task.map(range(3), limit=0)
        begun, not_begun = task.map(range(0, 100, 2)), task.map(range(3))
        assert 0 == await anext(begun)
    with pytest.raises(CpuStopped):
        _ = [result async for result in begun]
    with pytest.raises(CpuStopped, match="had not begun"):
        await anext(not_begun)
