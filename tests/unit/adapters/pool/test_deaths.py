"""Worker processes that die or are killed: what the caller hears, and how the pool heals."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from mega.adapters.pool.parent import WorkerPool
from mega.errors import CpuCrashed, CpuPoolBroken, CpuTimeout
from tests.unit.adapters.pool.processes import (
    call,
    is_alive,
    open_descriptors,
    pid_in,
)
from tests.waiting import until

NewPool = Callable[..., WorkerPool]
Events = list[tuple[str, dict[str, Any]]]


@pytest.mark.parametrize(
    ("task", "args", "returncode", "text"),
    [
        ("exit_at_once", (3,), 3, "it exited with status 3"),
        ("segfault", (), -signal.SIGSEGV, "it was killed by SIGSEGV"),
        ("kill_itself", (), -signal.SIGKILL, "perhaps by the kernel for want of memory"),
        ("fork_then_die", (), 7, "it exited with status 7"),
    ],
)
async def test_a_crash_fails_its_own_call_only(
    new_pool: NewPool,
    events: Events,
    tmp_path: Path,
    task: str,
    args: tuple[Any, ...],
    returncode: int,
    text: str,
) -> None:
    neighbour = []

    async def wait() -> None:
        neighbour.append(await call(pool, "wait_for", str(tmp_path / "pid"), str(tmp_path / "go")))

    async with new_pool() as pool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await pid_in(tmp_path / "pid")
            with pytest.raises(CpuCrashed, match=text) as caught:
                await call(pool, task, *args)
            (tmp_path / "go").touch()
        assert 1 == await call(pool, "add", 1)
    assert ["went"] == neighbour
    assert (caught.value.returncode, caught.value.started) == (returncode, True)
    crash = dict(events)["cpu.crash"]
    assert (crash["task"], crash["returncode"]) == (f"pool_tasks:{task}", returncode)
    assert (1, {"pool", "task", "pid", "returncode", "recent"}) == (crash["recent"], set(crash))


async def test_a_segfault_leaves_its_stack(new_pool: NewPool) -> None:
    async with new_pool() as pool:
        with pytest.raises(CpuCrashed) as caught:
            await call(pool, "segfault")
    assert "in segfault" in caught.value.stack


async def test_a_daemon_that_holds_the_connection_does_not_hide_the_crash(
    new_pool: NewPool, tmp_path: Path
) -> None:
    try:
        async with new_pool() as pool:
            with pytest.raises(CpuCrashed, match="exited with status 7"):
                await call(pool, "daemon_holds_the_connection", str(tmp_path / "daemon"))
    finally:
        os.kill(await pid_in(tmp_path / "daemon"), signal.SIGKILL)


async def test_a_fork_that_returns_does_not_answer(new_pool: NewPool) -> None:
    async with new_pool(size=1) as pool:
        for _ in range(3):
            assert await call(pool, "fork_and_return") > 0
        assert 1 == await call(pool, "add", 1)


async def test_a_worker_that_hangs_up_is_killed(new_pool: NewPool, events: Events) -> None:
    async with new_pool() as pool:
        with pytest.raises(CpuCrashed, match="it had closed its connection to the pool"):
            await call(pool, "close_all_descriptors")
        assert 1 == await call(pool, "add", 1)
    assert "cpu.crash" in dict(events)


@pytest.mark.parametrize("task", ["spin", "spin_in_c"])
async def test_a_timeout_kills_and_says_where_the_task_stood(
    new_pool: NewPool, events: Events, tmp_path: Path, task: str
) -> None:
    async with new_pool("add") as pool:
        await pool.start()
        with pytest.raises(
            CpuTimeout, match=rf'"pool_tasks:{task}" ran longer than 1.0 s'
        ) as caught:
            await call(pool, task, str(tmp_path / "pid"), timeout=1.0)
        assert not is_alive(await pid_in(tmp_path / "pid"))
        assert 1 == await call(pool, "add", 1)
    assert f"in {task}" in caught.value.stack
    assert "cpu.crash" not in dict(events)
    assert dict(events)["cpu.fail"]["error"] is caught.value


async def test_a_timeout_does_not_count_the_wait_for_a_process(
    new_pool: NewPool, tmp_path: Path
) -> None:
    async def add() -> None:
        results.append(await call(pool, "add", 1, timeout=5.0))

    results: list[int] = []
    go = tmp_path / "go"
    async with new_pool(size=1) as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(call, pool, "wait_for", str(tmp_path / "pid"), str(go))
        await pid_in(tmp_path / "pid")
        tasks.start_soon(add)
        go.touch()
    assert [1] == results


async def test_cancel_kills_the_process_before_it_returns(
    new_pool: NewPool, events: Events, tmp_path: Path
) -> None:
    async with new_pool() as pool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, pool, "spin", str(tmp_path / "pid"))
            pid = await pid_in(tmp_path / "pid")
            tasks.cancel_scope.cancel()
        assert not is_alive(pid)
        assert 1 == await call(pool, "add", 1)
    assert "cpu.crash" not in dict(events)
    assert "cpu.fail" in dict(events)


async def test_a_grandchild_dies_with_the_killed_worker(new_pool: NewPool, tmp_path: Path) -> None:
    pid, grandchild = tmp_path / "pid", tmp_path / "grandchild"
    async with new_pool() as pool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, pool, "spin_with_grandchild", str(pid), str(grandchild))
            await pid_in(pid)
            tasks.cancel_scope.cancel()
        started = await pid_in(grandchild)
        await until(lambda: not is_alive(started), what="the grandchild is gone")


async def test_a_worker_killed_before_the_call_is_replaced_silently(
    new_pool: NewPool, events: Events
) -> None:
    async with new_pool(size=1, max_restarts=100) as pool:
        for number in range(10):
            os.kill(await call(pool, "process"), signal.SIGKILL)
            assert await call(pool, "add", number) == number
    kinds = [kind for kind, _ in events]
    assert [10, 0] == [kinds.count("cpu.crash"), kinds.count("cpu.fail")]
    assert kinds.count("cpu.dispatch") == kinds.count("cpu.done") == 20


async def test_a_call_that_kills_three_workers_before_it_begins_is_given_up(
    new_pool: NewPool, events: Events
) -> None:
    async with new_pool() as pool:
        with pytest.raises(CpuCrashed, match="It had not begun") as caught:
            await call(pool, "add", DiesWhenRebuilt())
    assert caught.value.started is False
    assert 3 == [kind for kind, _ in events].count("cpu.crash")


async def test_twenty_kills_leave_nothing(new_pool: NewPool) -> None:
    async with new_pool(max_restarts=100) as pool:
        await call(pool, "add", 1)
        before = open_descriptors()
        for _ in range(20):
            with pytest.raises(CpuCrashed):
                await call(pool, "kill_itself")
        await call(pool, "add", 1)
        assert open_descriptors() == before


async def test_death_is_noticed_without_pidfd(
    new_pool: NewPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delattr(os, "memfd_create")
    async with new_pool() as pool:
        with pytest.raises(CpuCrashed) as caught:
            await call(pool, "segfault")
        assert "in segfault" in caught.value.stack
        with pytest.raises(CpuTimeout):
            await call(pool, "spin", str(tmp_path / "pid"), timeout=0.1)
        assert 1 == await call(pool, "add", 1)


async def test_too_many_crashes_break_the_pool_for_a_while(
    new_pool: NewPool, events: Events, tmp_path: Path
) -> None:
    refused: list[CpuPoolBroken] = []

    async def refused_call() -> None:
        with pytest.raises(CpuPoolBroken) as caught:
            await call(pool, "add", 1)
        refused.append(caught.value)

    async with new_pool(size=2, max_restarts=1) as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(call, pool, "wait_for", str(tmp_path / "pid"), str(tmp_path / "go"))
        await pid_in(tmp_path / "pid")
        with pytest.raises(CpuCrashed):
            await call(pool, "kill_itself")
        assert 0 == pool.retry_after
        with pytest.raises(CpuCrashed):
            await call(pool, "kill_itself")
        await refused_call()
        assert 0 < refused[0].retry_after <= 60
        assert 0 < pool.retry_after <= 60
        (tmp_path / "go").touch()  # a call in hand goes on
    assert 'the pool "test" refuses calls: 2 of its processes crashed' in str(refused[0])
    assert [1, 2] == [facts["recent"] for kind, facts in events if kind == "cpu.crash"]


async def test_breaking_turns_waiting_calls_away(new_pool: NewPool, tmp_path: Path) -> None:
    async def crash() -> None:
        with pytest.raises(CpuCrashed):
            await call(pool, "wait_for", str(tmp_path / "pid"), str(tmp_path / "never"))

    async def wait() -> None:
        with pytest.raises(CpuPoolBroken, match="after a restart of the program"):
            await call(pool, "add", 1)

    options = {"size": 1, "max_restarts": 0, "restart_window": None}
    async with new_pool(**options) as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(crash)
        pid = await pid_in(tmp_path / "pid")
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        os.kill(pid, signal.SIGKILL)


async def test_a_broken_pool_takes_calls_again(new_pool: NewPool) -> None:
    async with new_pool(size=1, max_restarts=0, restart_window=0.2) as pool:
        with pytest.raises(CpuCrashed):
            await call(pool, "kill_itself")
        await until(lambda: pool.retry_after == 0, what="the window has passed")
        assert 1 == await call(pool, "add", 1)


class DiesWhenRebuilt:
    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (9,)
