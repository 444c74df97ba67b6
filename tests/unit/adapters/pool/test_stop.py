"""How a pool ends: calls in hand, calls that wait, processes, and errors of the body."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from mega.adapters.pool.parent import WorkerPool
from mega.errors import CpuStopped
from tests.unit.adapters.pool.processes import call, children, is_alive, pid_in

NewPool = Callable[..., WorkerPool]
Events = list[tuple[str, dict[str, Any]]]


async def test_leaving_waits_for_calls_in_hand(new_pool: NewPool, tmp_path: Path) -> None:
    results = []

    async def wait() -> None:
        results.append(await call(pool, "wait_for", str(tmp_path / "pid"), str(tmp_path / "go")))

    async def go_when_refused() -> None:
        with pytest.raises(CpuStopped, match="is stopping"):
            await call_until_refused()
        (tmp_path / "go").touch()

    async def call_until_refused() -> None:
        while True:
            await call(pool, "add", 1)

    async with anyio.create_task_group() as tasks, new_pool() as pool:
        tasks.start_soon(wait)
        await pid_in(tmp_path / "pid")
        tasks.start_soon(go_when_refused)
    assert ["went"] == results


async def test_stop_turns_away_who_waits(new_pool: NewPool, events: Events, tmp_path: Path) -> None:
    turned_away: list[CpuStopped] = []

    async def wait() -> None:
        with pytest.raises(CpuStopped) as caught:
            await call(pool, "add", 1)
        turned_away.append(caught.value)

    async with new_pool(size=1) as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(call, pool, "wait_for", str(tmp_path / "pid"), str(tmp_path / "go"))
        await pid_in(tmp_path / "pid")
        for _ in range(1000):
            tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        (tmp_path / "go").touch()
        await pool.stop(math.inf)
    assert len(turned_away) == len(set(map(id, turned_away))) == 1000
    assert ["cpu.dispatch", "cpu.done", "cpu.stopped"] == [kind for kind, _ in events]


async def test_stop_kills_what_outlasts_the_grace(
    new_pool: NewPool, events: Events, tmp_path: Path
) -> None:
    async def spin() -> None:
        with pytest.raises(CpuStopped, match='the pool "test" is'):
            await call(pool, "spin", str(tmp_path / "pid"))

    async with new_pool() as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(spin)
        pid = await pid_in(tmp_path / "pid")
        await pool.stop(0.05)
        assert not is_alive(pid)
        await pool.stop(0)
    kinds = [kind for kind, _ in events]
    assert (1, False) == (kinds.count("cpu.stopped"), "cpu.crash" in kinds)


async def test_a_second_stop_cuts_the_grace_short(new_pool: NewPool, tmp_path: Path) -> None:
    async def spin() -> None:
        with pytest.raises(CpuStopped):
            await call(pool, "spin", str(tmp_path / "pid"))

    async with new_pool() as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(spin)
        await pid_in(tmp_path / "pid")
        tasks.start_soon(pool.stop, math.inf)
        await anyio.wait_all_tasks_blocked()
        await pool.stop(0)


async def test_stop_while_a_worker_boots(new_pool: NewPool, hanging: Path) -> None:
    async def add() -> None:
        with pytest.raises(CpuStopped):
            await call(pool, "add", 1)

    async with new_pool("hanging:task") as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(add)
        pid = await pid_in(hanging)
        await pool.stop(0)
        assert not is_alive(pid)


async def test_an_idle_worker_runs_its_exit_handlers(new_pool: NewPool, tmp_path: Path) -> None:
    async with new_pool() as pool:
        await call(pool, "write_at_exit", str(tmp_path / "left"))
    assert "left" == (tmp_path / "left").read_text()


async def test_an_idle_worker_that_does_not_leave_is_killed(new_pool: NewPool) -> None:
    async with new_pool() as pool:
        pid = await call(pool, "start_thread_without_end")
    assert not is_alive(pid)


async def test_an_error_in_the_body_comes_out_as_it_is(new_pool: NewPool, tmp_path: Path) -> None:
    async def spin() -> None:
        with pytest.raises(CpuStopped):
            await call(pool, "spin", str(tmp_path / "pid"))

    async def fail_while_it_spins() -> None:
        async with pool:
            tasks.start_soon(spin)
            await pid_in(tmp_path / "pid")
            raise ValueError("mine")

    pool = new_pool()
    async with anyio.create_task_group() as tasks:
        with pytest.raises(ValueError, match="mine"):
            await fail_while_it_spins()
    assert not is_alive(await pid_in(tmp_path / "pid"))


async def test_cancelling_the_body_stops_the_pool(new_pool: NewPool, tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        async with new_pool() as pool:
            idle = await call(pool, "write_at_exit", str(tmp_path / "left"))
            scope.cancel()
            await anyio.sleep_forever()
    assert not is_alive(idle)
    assert (tmp_path / "left").exists()


async def test_a_pool_without_calls_starts_nothing(new_pool: NewPool, events: Events) -> None:
    before = children()
    async with new_pool() as pool:
        await pool.start()
        assert children() == before
    assert ["cpu.stopped"] == [kind for kind, _ in events]
