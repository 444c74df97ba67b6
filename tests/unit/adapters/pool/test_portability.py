"""The pool where the kernel knows neither pidfd, nor memfd, nor a signal at the end of a pipe.

It stands in for macOS, where nothing was run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from mega.adapters.pool.parent import WorkerPool
from mega.errors import CpuCrashed, CpuTimeout
from tests.unit.adapters.pool.processes import (
    call,
    is_alive,
    open_descriptors,
    pid_in,
    pid_in_sync,
    plain_system,
    start_app,
)
from tests.waiting import until, until_sync

NewPool = Callable[..., WorkerPool]
Events = list[tuple[str, dict[str, Any]]]


@pytest.fixture(autouse=True)
def _plain_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", plain_system(tmp_path / "plain"))
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delattr(os, "memfd_create")


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_crash_and_a_timeout(new_pool: NewPool, events: Events, tmp_path: Path) -> None:
    async with new_pool() as pool:
        assert not await call(pool, "has_signal_of_a_pipe")
        with pytest.raises(CpuCrashed) as crashed:
            await call(pool, "segfault")
        with pytest.raises(CpuTimeout) as timed_out:
            await call(pool, "spin", str(tmp_path / "pid"), timeout=1.0)
        assert 1 == await call(pool, "add", 1)
    assert "in segfault" in crashed.value.stack
    assert "in spin" in timed_out.value.stack
    assert 1 == [kind for kind, _ in events].count("cpu.crash")


async def test_a_cancelled_call_takes_its_grandchild_along(
    new_pool: NewPool, tmp_path: Path
) -> None:
    paths = tmp_path / "pid", tmp_path / "grandchild"
    async with new_pool() as pool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, pool, "spin_with_grandchild", *map(str, paths))
            pids = [await pid_in(path) for path in paths]
            tasks.cancel_scope.cancel()
        assert not is_alive(pids[0])
        await until(lambda: not is_alive(pids[1]), what="the grandchild is gone")


async def test_twenty_kills_leave_nothing(new_pool: NewPool) -> None:
    async with new_pool(max_restarts=100) as pool:
        await call(pool, "add", 1)
        before = open_descriptors()
        for _ in range(20):
            with pytest.raises(CpuCrashed):
                await call(pool, "kill_itself")
        await call(pool, "add", 1)
        assert open_descriptors() == before


def test_a_killed_parent_takes_busy_worker_and_grandchild_along(
    tmp_path: Path, backend: str
) -> None:
    paths = tmp_path / "pid", tmp_path / "grandchild"
    with start_app(tmp_path, backend, "spin_with_grandchild", *paths) as parent:
        pids = [pid_in_sync(path, within=20) for path in paths]
        parent.kill()
        until_sync(lambda: not any(map(is_alive, pids)), what="worker and grandchild are gone")


def test_a_killed_parent_takes_a_sleeping_worker_along(tmp_path: Path, backend: str) -> None:
    paths = tmp_path / "pid", tmp_path / "go"
    with start_app(tmp_path, backend, "wait_for", *paths) as parent:
        pid = pid_in_sync(paths[0], within=20)
        parent.kill()
        until_sync(lambda: not is_alive(pid), what="the worker is gone")
