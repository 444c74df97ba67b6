"""Calls that go well, and what travels to a worker process and back."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import pytest

from mega.adapters.pool import parent
from mega.adapters.pool.parent import WorkerPool
from mega.errors import CpuArgumentError, CpuQueueFull, CpuResultError, CpuStopped
from tests.unit.adapters.pool.processes import call, is_alive, open_descriptors, pid_in
from tests.waiting import until

NewPool = Callable[..., WorkerPool]
Events = list[tuple[str, dict[str, Any]]]


async def test_call_returns_what_the_task_returns(new_pool: NewPool) -> None:
    async with new_pool() as pool:
        assert 3 == await call(pool, "add", 1, second=2)
        assert await call(pool, "process") != os.getpid()


async def test_the_function_of_a_handle_is_called(new_pool: NewPool) -> None:
    async with new_pool("handled") as pool:
        assert 3 == await call(pool, "handled", 1, second=2)


async def test_workers_start_lazily_and_are_used_again(new_pool: NewPool) -> None:
    async with new_pool() as pool:
        first = await call(pool, "process")
        assert await call(pool, "process") == first


async def test_calls_run_at_once_up_to_the_size(new_pool: NewPool, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with new_pool() as pool, anyio.create_task_group() as tasks:
        for name in ("a", "b"):
            tasks.start_soon(call, pool, "wait_for", str(tmp_path / name), str(go))
        assert await pid_in(tmp_path / "a") != await pid_in(tmp_path / "b")
        go.touch()


async def test_many_calls_all_return(new_pool: NewPool) -> None:
    results = []

    async def add(number: int) -> None:
        results.append(await call(pool, "add", number, 1))

    async with new_pool() as pool, anyio.create_task_group() as tasks:
        for number in range(300):
            tasks.start_soon(add, number)
    assert sorted(results) == list(range(1, 301))


async def test_large_values_travel_both_ways(new_pool: NewPool) -> None:
    async with new_pool() as pool:
        assert await call(pool, "ones", 50_000_000) == b"\x01" * 50_000_000
        argument = os.urandom(5_000_000)
        assert await call(pool, "same", argument) == argument


async def test_the_loop_turns_while_a_large_result_arrives(new_pool: NewPool) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with new_pool("ones") as pool, anyio.create_task_group() as tasks:
        await pool.start()
        tasks.start_soon(turn)
        await call(pool, "ones", 50_000_000)
        tasks.cancel_scope.cancel()
    assert turns > 40


async def test_buffers_travel_beside_the_pickle(new_pool: NewPool) -> None:
    content = bytearray(os.urandom(3_000_000))
    async with new_pool() as pool:
        back = await call(pool, "same", [pickle.PickleBuffer(content), b"", 1])
        buffers = [pickle.PickleBuffer(bytearray(b"%d" % number)) for number in range(200)]
        many = await call(pool, "same", buffers)
    assert [bytes(back[0]), back[1], back[2]] == [bytes(content), b"", 1]
    assert [bytes(buffer) for buffer in many] == [b"%d" % number for number in range(200)]


async def test_an_argument_that_cannot_travel_raises_at_the_call(new_pool: NewPool) -> None:
    async with new_pool() as pool:
        with pytest.raises(CpuArgumentError, match=r'an argument of "pool_tasks:same" can\'t be'):
            await call(pool, "same", lambda: None)


async def test_also_while_the_pool_is_busy(new_pool: NewPool, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with new_pool(size=1) as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(call, pool, "wait_for", str(tmp_path / "pid"), str(go))
        await pid_in(tmp_path / "pid")
        with pytest.raises(CpuArgumentError):
            await call(pool, "same", lambda: None)
        go.touch()


async def test_an_argument_that_only_pickles_is_refused_by_the_worker(new_pool: NewPool) -> None:
    async with new_pool() as pool:
        with pytest.raises(CpuArgumentError, match="rebuilt in the worker process: ValueError: no"):
            await call(pool, "same", PicklesOnly())
        assert 1 == await call(pool, "add", 1)


async def test_a_result_that_cannot_travel_names_its_type(new_pool: NewPool) -> None:
    async with new_pool() as pool:
        with pytest.raises(
            CpuResultError, match=r"can't be sent back: _thread\.lock: cannot pickle"
        ):
            await call(pool, "return_lock")
        assert 1 == await call(pool, "add", 1)


async def test_a_result_above_the_limit_is_refused(
    new_pool: NewPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent, "RESULT_LIMIT", 1000)
    async with new_pool() as pool:
        with pytest.raises(CpuResultError, match="bytes, the limit is 1000"):
            await call(pool, "ones", 2000)
        assert b"\x01\x01\x01" == await call(pool, "ones", 3)


async def test_a_task_may_write_to_stdout(
    new_pool: NewPool, capfd: pytest.CaptureFixture[str]
) -> None:
    async with new_pool() as pool:
        await call(pool, "write_to_stdout", "hello")
        assert 1 == await call(pool, "add", 1)
    assert 3 == capfd.readouterr().out.count("hello")


async def test_max_queue(new_pool: NewPool, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with new_pool(size=1, max_queue=1) as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(call, pool, "wait_for", str(tmp_path / "first"), str(go))
        await pid_in(tmp_path / "first")
        tasks.start_soon(call, pool, "add", 1)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(CpuQueueFull, match="1 calls wait"):
            await call(pool, "add", 2)
        go.touch()


async def test_a_cancelled_call_leaves_the_queue(new_pool: NewPool, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with new_pool(size=1, max_queue=1) as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(call, pool, "wait_for", str(tmp_path / "first"), str(go))
        await pid_in(tmp_path / "first")
        with anyio.move_on_after(0):
            await call(pool, "add", 1)
        tasks.start_soon(call, pool, "add", 1)  # has the only place in the queue
        go.touch()


async def test_recycle_after(new_pool: NewPool) -> None:
    async with new_pool(size=1, recycle_after=2) as pool:
        pids = [await call(pool, "process") for _ in range(4)]
        assert [True, False, True] == [pids[0] == pids[1], pids[1] == pids[2], pids[2] == pids[3]]
        await until(lambda: not is_alive(pids[0]), what="the recycled process leaves")


async def test_recycle_rss(new_pool: NewPool, events: Events) -> None:
    async with new_pool(size=1, recycle_rss=1) as pool:
        assert await call(pool, "process") != await call(pool, "process")
    assert "cpu.crash" not in [kind for kind, _ in events]


async def test_a_recycled_worker_runs_its_exit_handlers(new_pool: NewPool, tmp_path: Path) -> None:
    async with new_pool(size=1, recycle_after=1) as pool:
        await call(pool, "write_at_exit", str(tmp_path / "left"))
    assert "left" == (tmp_path / "left").read_text()


async def test_events(new_pool: NewPool, events: Events) -> None:
    async with new_pool() as pool:
        pid = await call(pool, "process")
        with pytest.raises(ValueError, match="three"):
            await call(pool, "raise_value_error")
    assert [kind for kind, _ in events] == [
        "cpu.dispatch",
        "cpu.done",
        "cpu.dispatch",
        "cpu.fail",
        "cpu.stopped",
    ]
    assert events[0][1] == {"pool": "test", "task": "pool_tasks:process", "pid": pid}
    assert {"pool", "task", "pid", "seconds"} == set(events[1][1])
    assert "ValueError('three')" == repr(events[3][1]["error"])


async def test_a_pool_that_is_not_open_refuses(new_pool: NewPool) -> None:
    pool = new_pool()
    with pytest.raises(CpuStopped, match='the pool "test" is not open'):
        await call(pool, "add", 1)
    async with pool:
        pass
    with pytest.raises(CpuStopped, match='the pool "test" is stopped'):
        await call(pool, "add", 1)


async def test_two_pools_are_apart(new_pool: NewPool) -> None:
    async with new_pool() as one, new_pool() as other:
        assert await call(one, "process") != await call(other, "process")


async def test_no_descriptor_is_left(new_pool: NewPool) -> None:
    before = open_descriptors()
    async with new_pool() as pool:
        await call(pool, "add", 1)
        opened = open_descriptors()
    assert open_descriptors() <= before < opened


class PicklesOnly:
    def __reduce__(self) -> tuple[Any, ...]:
        return import_module("pool_tasks").refuse, ()
