"""The first worker: it finds every task, or says which one it didn't and why."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from mega.adapters.pool.parent import WorkerPool
from mega.errors import CpuPoolBroken, CpuStartError
from mega.pool_options import PoolOptions
from tests.unit.adapters.pool.processes import call, children, is_alive, open_descriptors, pid_in

NewPool = Callable[..., WorkerPool]
Events = list[tuple[str, dict[str, Any]]]


async def test_the_first_worker_stays(new_pool: NewPool) -> None:
    before = children()
    async with new_pool("add", "process") as pool:
        await pool.start()
        (pid,) = children() - before
        await pool.start()
        assert await call(pool, "process") == pid
        assert children() - before == {pid}


async def test_a_missing_task_is_named(new_pool: NewPool) -> None:
    before = open_descriptors()
    async with new_pool("add", "absent") as pool:
        with pytest.raises(CpuStartError, match=r'no task "pool_tasks:absent" \(AttributeError'):
            await pool.start()
    assert open_descriptors() <= before


async def test_a_missing_module_is_named() -> None:
    async with pool_of("no_such_module:task") as pool:
        with pytest.raises(CpuStartError, match="No module named 'no_such_module'") as caught:
            await pool.start()
    assert len(str(caught.value).splitlines()) <= 5


async def test_a_main_program_that_is_no_file() -> None:
    async with pool_of("__main__:render") as pool:
        with pytest.raises(CpuStartError, match=r'"__main__:render" .* is not a file \(stdin'):
            await pool.start()


@pytest.mark.usefixtures("hanging")
async def test_a_module_that_hangs() -> None:
    async with pool_of("hanging:task", start_timeout=4.0) as pool:
        with pytest.raises(CpuStartError, match=r"was still importing after 4\.0 s") as caught:
            await pool.start()
    assert "hanging.py" in str(caught.value.__cause__)


async def test_a_module_that_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending.py").write_text("import os\nos._exit(5)\n")
    monkeypatch.syspath_prepend(tmp_path)
    async with pool_of("ending:task") as pool:
        with pytest.raises(CpuStartError, match="died while starting: it exited with status 5"):
            await pool.start()


async def test_a_module_that_exits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exiting.py").write_text("raise SystemExit(4)\n")
    monkeypatch.syspath_prepend(tmp_path)
    async with pool_of("exiting:task") as pool:
        with pytest.raises(CpuStartError, match="SystemExit: 4"):
            await pool.start()


async def test_no_descriptors_to_start_with(new_pool: NewPool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with new_pool("add") as pool:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(CpuStartError, match='the pool "test" can\'t start a process'):
                await pool.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await pool.start()
        assert 1 == await call(pool, "add", 1)


async def test_starts_that_fail_break_the_pool(new_pool: NewPool, events: Events) -> None:
    async with new_pool("absent", max_restarts=1) as pool:
        for _ in range(2):
            with pytest.raises(CpuStartError):
                await call(pool, "add", 1)
        with pytest.raises(CpuPoolBroken, match=r'because .* no task "pool_tasks:absent"'):
            await call(pool, "add", 1)
    assert [1, 2] == [facts["recent"] for kind, facts in events if kind == "cpu.crash"]


async def test_a_cancelled_start_is_no_crash(
    new_pool: NewPool, events: Events, hanging: Path
) -> None:
    async with new_pool("hanging:task") as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(pool.start)
        await pid_in(hanging)
        tasks.cancel_scope.cancel()
    assert ["cpu.stopped"] == [kind for kind, _ in events]


async def test_a_system_without_process_groups(
    new_pool: NewPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "killpg")
    async with new_pool("add") as pool:
        with pytest.raises(CpuStartError, match="on Windows, inside WSL"):
            await pool.start()


async def test_cancelled_start_leaves_no_process(new_pool: NewPool, hanging: Path) -> None:
    async with new_pool("hanging:task") as pool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.start)
            pid = await pid_in(hanging)
            tasks.cancel_scope.cancel()
        assert not is_alive(pid)


def pool_of(task: str, **options: float) -> WorkerPool:
    return WorkerPool("test", PoolOptions(**options), [task], emit=lambda kind, facts: None)  # type: ignore[arg-type]
