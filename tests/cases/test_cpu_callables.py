"""What can be a CPU task, what can't, and when that is said."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mega import App
from mega.errors import BadHandler
from mega.events import JobFailed
from tests.apps.program import run_to_end, write_app
from tests.cases.served import serving


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The memory broker runs on both."""
    return str(request.param)


def double(number: int) -> int:
    return 2 * number


def nested() -> Callable[[int], int]:
    def inside(number: int) -> int:
        return 2 * number

    return inside


class Doubler:
    def method(self, number: int) -> int:
        return 2 * number

    @classmethod
    def of_class(cls, number: int) -> int:
        return 2 * number

    @staticmethod
    def static(number: int) -> int:
        return 2 * number

    def __call__(self, number: int) -> int:
        return 2 * number


def generator() -> Iterator[int]:
    yield 1


async def asynchronous() -> int:
    return 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


REFUSED: dict[str, tuple[Any, str]] = {
    "a lambda": (lambda number: 2 * number, "it is a lambda"),
    "a partial": (functools.partial(double, 2), "it is not a function"),
    "a bound method": (Doubler().method, "it is not a function"),
    "a class method": (Doubler.of_class, "it is not a function"),
    "a static method": (Doubler.static, "defined inside another function or class"),
    "a nested function": (nested(), "defined inside another function or class"),
    "an object": (Doubler(), "it is not a function"),
    "a class": (Doubler, "it is not a function"),
    "a builtin": (len, "it is not a function"),
    "a handle": (App("other").cpu_task()(double), "it takes a function"),
    "a generator": (generator, "it must be a plain function"),
    "an async function": (asynchronous, "it must be a plain function"),
    "an async generator": (async_generator, "it must be a plain function"),
}


@pytest.mark.parametrize(("fn", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_a_worker_process_could_not_find_or_run(fn: Any, reason: str) -> None:
    """callable-01, callable-03: it is refused where it is declared, with its name and why."""
    with pytest.raises(BadHandler, match=reason) as caught:
        App("shop").cpu_task()(fn)
    assert (getattr(fn, "__name__", None) or repr(fn)) in str(caught.value)


ACCEPTED = """
    import functools, json, sys
    import anyio
    from mega import App
    from mega.errors import CpuResultError
    app = App("shop", broker="memory:")

    def shout(fn):
        @functools.wraps(fn)
        def shouting(text: str) -> str:
            return fn(text).upper()
        return shouting

    @app.cpu_task()
    def plain(text: str) -> str:
        return text
    @app.cpu_task()
    @shout
    def wrapped(text: str) -> str:
        return text
    def kept(text: str) -> str:
        return text
    under_another_name = app.cpu_task()(kept)
    @app.cpu_task()
    def forgot_to_await(text: str):
        async def inside() -> str:
            return text
        return inside()

    async def main() -> None:
        async with app:
            results = [await task.run("ada") for task in (plain, wrapped, under_another_name)]
            try:
                await forgot_to_await.run("ada")
            except CpuResultError as error:
                results.append(str(error).partition(":")[2].split(":")[0].strip())
            print(json.dumps(results))

    anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_what_a_worker_process_finds(tmp_path: Path, home: Path, backend: str) -> None:
    """callable-01, callable-03: what is accepted runs; a coroutine as a result is an error."""
    program = run_to_end(write_app(tmp_path, ACCEPTED), backend, home=home)
    assert ["ada", "ADA", "ada", "builtins.coroutine"] == json.loads(program.output)


async def test_a_job_that_returns_what_nobody_awaits() -> None:
    """callable-03: that is a failed run, no success."""
    app = App("shop", broker="memory:")

    @app.job("work", retries=0)
    def work() -> Any:
        return asynchronous()

    async with serving(app) as served:
        await work.enqueue()
        (failed,) = await served.wait_for(JobFailed)
    assert "returned an awaitable that nobody awaits" in str(failed.error)
