"""CPU tasks, one idea at a time. They run in processes of their own, or in threads."""

from __future__ import annotations

import logging
import os
from typing import Literal

import pytest

from mega import App, cpu
from mega.context import RunFilter
from mega.errors import BadOption

MODES = ("process", "thread")
Mode = Literal["process", "thread"]


def add(first: int, second: int) -> int:
    return first + second


def abs_of(number: int) -> int:
    return abs(number)


def count_to(number: int) -> int:
    for reached in range(1, number + 1):
        cpu.progress(reached / number, f"at {reached}")
    return os.getpid()


def say(text: str) -> None:
    logging.getLogger("library").warning(text)


def new_app(mode: Mode) -> App:
    app = App("shop", broker="memory:")
    app.pool("default", mode=mode, size=1)
    return app


@pytest.mark.parametrize("mode", MODES)
async def test_a_task_is_called_by_run_or_with_many_items_by_map(mode: Mode) -> None:
    app = new_app(mode)
    task = app.cpu_task()(add)
    count = app.cpu_task()(count_to)
    async with app:
        assert 5 == await task.run(2, second=3)
        pids = [pid async for pid in count.map([1, 2, 3])]
    assert (mode == "thread") == (set(pids) == {os.getpid()})


@pytest.mark.parametrize("mode", MODES)
async def test_progress_goes_to_a_function_of_the_caller(mode: Mode) -> None:
    app = new_app(mode)
    task = app.cpu_task()(count_to)
    heard: list[tuple[float, str]] = []

    async def hear(fraction: float, note: str) -> None:
        heard.append((fraction, note))

    async with app:
        await task.options(on_progress=hear).run(4)
    assert (1.0, "at 4") == heard[-1]
    assert sorted(heard) == heard


async def test_an_error_of_the_function_that_hears_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = new_app("thread")
    task = app.cpu_task()(count_to)

    def refuse(fraction: float, note: str) -> None:
        raise ValueError("deaf")

    async with app:
        assert os.getpid() == await task.options(on_progress=refuse).run(1)
    assert "on_progress raised ValueError: deaf" in caplog.text


@pytest.mark.parametrize("mode", MODES)
async def test_log_lines_of_a_task_have_the_id_of_the_job(
    mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    app = new_app(mode)
    task = app.cpu_task()(say)

    @app.job("greet")
    async def greet(text: str) -> None:
        await task.run(text)

    caplog.handler.addFilter(RunFilter())
    async with app.test() as t:
        job = await greet.enqueue("hello")
        await t.drain()
    caplog.handler.filters.clear()
    (record,) = [record for record in caplog.records if record.name == "library"]
    facts = vars(record)
    assert (job.id, "greet", 1) == (facts["job_id"], facts["subject"], facts["attempt"])


def test_threads_have_no_options_of_processes() -> None:
    app = App("shop", broker="memory:")
    with pytest.raises(BadOption, match="no memory_limit="):
        app.pool("reports", mode="thread", memory_limit=2**30)
    with pytest.raises(BadOption, match="no start_timeout="):
        app.pool("reports", mode="thread", start_timeout=5)
    with pytest.raises(BadOption, match="mode='fiber' is none of"):
        app.pool("reports", mode="fiber")


def test_an_option_of_a_call_that_is_not_there() -> None:
    task = App("shop", broker="memory:").cpu_task()(add)
    with pytest.raises(BadOption, match="a CPU call has no option 'timout'"):
        task.options(timout=3)  # type: ignore[call-arg]
    with pytest.raises(BadOption, match="on_progress=3 is not a function"):
        task.options(on_progress=3)  # type: ignore[arg-type]


async def test_map_takes_something_to_iterate_over() -> None:
    app = App("shop", broker="memory:")
    task = app.cpu_task()(abs_of)
    async with app:
        with pytest.raises(BadOption, match=r"map\(3\) has nothing to iterate over"):
            task.map(3)  # type: ignore[arg-type]
