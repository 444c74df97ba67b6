"""The pool of threads: the calls of the pool of processes, and honest counts of what is left."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from mega.adapters.pool.threads import ThreadPool
from mega.errors import (
    CpuPoolBroken,
    CpuQueueFull,
    CpuRemoteError,
    CpuStartError,
    CpuStopped,
    CpuTimeout,
)
from mega.pool_options import PoolOptions
from tests.unit.adapters.pool.conftest import Facts
from tests.waiting import until

NewPool = Callable[..., ThreadPool]


class Gate:
    """Holds tasks until it is opened. `entered` counts those that have come."""

    def __init__(self) -> None:
        self.entered = 0
        self._is_open = threading.Event()

    def pass_through(self) -> str:
        self.entered += 1
        assert self._is_open.wait(30)
        return "passed"

    def open(self) -> None:
        self._is_open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def new_pool(events: list[tuple[str, Facts]]) -> NewPool:
    def make(*tasks: str, **options: Any) -> ThreadPool:
        options = PoolOptions(mode="thread", **{"size": 2, **options})
        return ThreadPool("test", options, tasks, emit=lambda *event: events.append(event))

    return make


async def call(pool: ThreadPool, task: str, *args: Any, timeout: float | None = None) -> Any:
    return await pool.call(f"pool_tasks:{task}", args, {}, timeout=timeout, context={"job_id": "j"})


async def leave(pool: ThreadPool, gate: Gate) -> CpuTimeout:
    """Let a call time out when its thread has begun, and return its error."""
    before = pool.left
    while pool.left == before:
        with pytest.raises(CpuTimeout) as caught:
            await call(pool, "run_here", gate.pass_through, timeout=0.2)
    return caught.value


async def test_a_call_runs_in_this_process(new_pool: NewPool) -> None:
    async with new_pool() as pool:
        assert 5 == await call(pool, "add", 2, 3)
        assert 5 == await call(pool, "handled", 2, 3)
        value = object()
        assert value is await call(pool, "same", value)


async def test_it_runs_as_many_calls_as_its_size(new_pool: NewPool, gate: Gate) -> None:
    async with new_pool(size=2) as pool, anyio.create_task_group() as callers:
        for _ in range(3):
            callers.start_soon(call, pool, "run_here", gate.pass_through)
        await until(lambda: gate.entered == 2, what="two calls run")
        await anyio.wait_all_tasks_blocked()
        assert 2 == gate.entered
        gate.open()


async def test_a_time_out_leaves_the_thread_behind_and_says_where_it_stood(
    new_pool: NewPool, gate: Gate, events: list[tuple[str, Facts]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="mega.cpu")
    async with new_pool(size=1) as pool:
        error = await leave(pool, gate)
        assert "its thread can't be stopped and goes on" in str(error).lower()
        assert "pass_through" in error.stack
        assert 1 == pool.left
        assert 5 == await call(pool, "add", 2, 3), "its place is free"
        gate.open()
        await until(lambda: not pool.left, what="the thread to end")
    left = [facts for kind, facts in events if kind == "thread.left"]
    task = "pool_tasks:run_here"
    assert [{"pool": "test", "task": task, "job_id": "j", "left": 1}] == left
    assert ["goes on without its call", "its thread returned"] == [
        text for text in ("goes on without its call", "its thread returned") if text in caplog.text
    ]


async def test_a_cancelled_call_leaves_its_thread_behind_too(new_pool: NewPool, gate: Gate) -> None:
    async with new_pool() as pool:
        async with anyio.create_task_group() as callers:
            callers.start_soon(call, pool, "run_here", gate.pass_through)
            await until(lambda: gate.entered, what="the call runs")
            callers.cancel_scope.cancel()
        assert 1 == pool.left


async def test_it_refuses_calls_while_too_many_threads_are_left(
    new_pool: NewPool, gate: Gate
) -> None:
    async with new_pool(size=1, max_restarts=1) as pool:
        await leave(pool, gate)
        await leave(pool, gate)
        with pytest.raises(CpuPoolBroken, match="2 of its threads were left behind") as caught:
            await call(pool, "add", 2, 3)
        assert caught.value.retry_after > 0
        gate.open()
        await until(lambda: not pool.left, what="the threads to end")
        assert 5 == await call(pool, "add", 2, 3)


async def test_calls_that_wait_are_turned_away_when_it_refuses_calls(
    new_pool: NewPool, gate: Gate
) -> None:
    refused = []

    async def wait_in_vain() -> None:
        with pytest.raises(CpuPoolBroken):
            await call(pool, "add", 2, 3)
        refused.append("second")

    async with new_pool(size=1, max_restarts=0) as pool, anyio.create_task_group() as callers:
        callers.start_soon(leave, pool, gate)
        await until(lambda: gate.entered, what="the call runs")
        callers.start_soon(wait_in_vain)
    assert ["second"] == refused


@pytest.mark.parametrize("task", ["sys_exit", "interrupt", "stop_iteration"])
async def test_what_would_end_the_caller_comes_wrapped(new_pool: NewPool, task: str) -> None:
    async with new_pool() as pool:
        with pytest.raises(CpuRemoteError, match=f'"pool_tasks:{task}" raised'):
            await call(pool, task)


async def test_an_error_comes_as_itself(new_pool: NewPool, events: list[tuple[str, Facts]]) -> None:
    async with new_pool() as pool:
        with pytest.raises(ValueError, match="three") as caught:
            await call(pool, "raise_value_error")
    assert ["cpu.dispatch", "cpu.fail", "cpu.stopped"] == [kind for kind, _ in events]
    assert caught.value is events[1][1]["error"]


async def test_a_task_that_is_not_there_is_told_at_the_start(new_pool: NewPool) -> None:
    async with new_pool("pool_tasks:absent") as pool:
        with pytest.raises(CpuStartError, match='can\'t find the task "pool_tasks:absent"'):
            await pool.start()


async def test_a_full_queue(new_pool: NewPool, gate: Gate) -> None:
    async with new_pool(size=1, max_queue=0) as pool, anyio.create_task_group() as callers:
        callers.start_soon(call, pool, "run_here", gate.pass_through)
        await until(lambda: gate.entered, what="the call runs")
        with pytest.raises(CpuQueueFull):
            await call(pool, "add", 2, 3)
        gate.open()


async def test_leaving_waits_for_the_calls_in_hand(new_pool: NewPool, gate: Gate) -> None:
    results = []

    async def keep() -> None:
        results.append(await call(pool, "run_here", gate.pass_through))

    async with anyio.create_task_group() as callers, new_pool() as pool:
        callers.start_soon(keep)
        await until(lambda: gate.entered, what="the call runs")
        callers.start_soon(anyio.to_thread.run_sync, gate.open)
    assert ["passed"] == results


async def test_a_stop_leaves_what_does_not_end(new_pool: NewPool, gate: Gate) -> None:
    async def be_stopped() -> None:
        with pytest.raises(CpuStopped):
            await call(pool, "run_here", gate.pass_through)

    async with new_pool() as pool, anyio.create_task_group() as callers:
        callers.start_soon(be_stopped)
        await until(lambda: gate.entered, what="the call runs")
        await pool.stop(0)
        assert 1 == pool.left
        with pytest.raises(CpuStopped):
            await call(pool, "add", 2, 3)


async def test_progress_is_told_in_the_event_loop(new_pool: NewPool) -> None:
    reports = []

    def note(fraction: float, note: str) -> None:
        reports.append((fraction, note, threading.get_ident()))

    async with new_pool() as pool:
        await pool.call("pool_tasks:report", (0.4, "half"), {}, timeout=None, on_progress=note)
        await call(pool, "report", 0.4, "to nobody")
    assert [(0.4, "half", threading.get_ident())] == reports
