"""Plain handlers run in threads; one that does not end is left behind, counted and told of."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from secrets import token_hex
from typing import Any

import anyio
import pytest

from mega.runtime.threads import Threads
from mega.testing import job_context
from tests.waiting import until


class Stage:
    """Threads, with a gate that holds their calls up.

    The id of their run tells its lines from those of threads that other tests have left.
    """

    def __init__(self) -> None:
        self.context = job_context(subject="crawl", id=token_hex(4))
        self.threads = Threads()
        self.gate = threading.Event()
        self.told = 0

    async def run(self, call: Callable[..., Any]) -> Any:
        def note() -> None:
            self.told += 1

        return await self.threads.run(call, "payload", self.context, on_left=note)

    async def leave(self, call: Callable[..., Any]) -> None:
        """Call, and cancel when the call has begun."""
        begun = threading.Event()

        def work(payload: Any, context: Any) -> Any:
            begun.set()
            self.gate.wait()
            return call()

        async with anyio.create_task_group() as group:
            group.start_soon(self.run, work)
            await until(begun.is_set, what="the call has begun")
            group.cancel_scope.cancel()


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    stage.gate.set()


async def test_a_call_returns_what_it_returns_and_raises_what_it_raises(stage: Stage) -> None:
    def fail(payload: Any, context: Any) -> None:
        raise ValueError(payload)

    assert ("payload", stage.context) == await stage.run(
        lambda payload, context: (payload, context)
    )
    with pytest.raises(ValueError, match="payload"):
        await stage.run(fail)
    assert (0, 0) == (stage.threads.left, stage.told)


async def test_an_error_leaves_no_variable_of_the_handler_alive(stage: Stage) -> None:
    class Large: ...

    alive: list[weakref.ref[Any]] = []

    def fail(payload: Any, context: Any) -> None:
        large = Large()
        alive.append(weakref.ref(large))
        raise ValueError

    gc.disable()
    try:
        for _ in range(3):
            with suppress(ValueError):
                await stage.run(fail)
        assert [None] * 3 == [ref() for ref in alive]
    finally:
        gc.enable()


async def test_a_hundred_calls_at_once_need_not_wait_for_each_other(stage: Stage) -> None:
    barrier = threading.Barrier(100)
    async with anyio.create_task_group() as group:
        for _ in range(100):
            group.start_soon(stage.run, lambda payload, context: barrier.wait(20))


async def test_a_cancelled_call_is_left_behind_until_its_thread_ends(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mega.job")
    await stage.leave(lambda: None)
    await stage.leave(lambda: None)
    assert (2, 2) == (stage.threads.left, stage.told)
    run = str(stage.context)
    records = [record for record in caplog.records if record.getMessage().startswith(run)]
    text = f"{run}: its thread can't be stopped and goes on without it"
    expected = [f"{text}; {n} now" for n in ("1 such thread runs", "2 such threads run")]
    assert expected == [record.getMessage() for record in records]
    assert [""] * 2 == [vars(record)["run"] for record in records]

    stage.gate.set()
    await until(lambda: stage.threads.left == 0, what="both threads have ended")
    end = f"{run}: its thread returned after"
    await until(lambda: caplog.text.count(end) == 2, what="two lines")


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt()])
async def test_what_a_thread_that_was_left_raises_harms_nobody(
    stage: Stage, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    caplog.set_level(logging.INFO, "mega.job")
    await stage.leave(fail)
    stage.gate.set()
    await until(lambda: "its thread raised " in caplog.text, what="it is told of")
    assert f"its thread raised {type(error).__name__}" in caplog.text
    assert "payload" == await stage.run(lambda payload, context: payload)


async def test_a_call_that_is_cancelled_before_its_thread_has_begun_leaves_none(
    stage: Stage,
) -> None:
    calls = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        await stage.run(lambda payload, context: calls.append(payload))
    assert (0, 0, []) == (stage.threads.left, stage.told, calls)


async def test_threads_that_are_left_take_no_place_of_others(stage: Stage) -> None:
    for _ in range(50):
        await stage.leave(lambda: None)
    assert 50 == stage.threads.left
    with anyio.fail_after(20):
        assert "payload" == await stage.run(lambda payload, context: payload)
