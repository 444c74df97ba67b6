"""Progress of a task in a worker process, carried as a frame of its own."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from weakref import ref

import pytest

from mega.adapters.pool.parent import WorkerPool
from mega.errors import CpuCrashed
from tests.unit.adapters.pool.processes import call

NewPool = Callable[..., WorkerPool]


async def test_each_report_is_told_before_the_result(new_pool: NewPool) -> None:
    reports: list[tuple[float, str]] = []

    def note(fraction: float, text: str) -> None:
        reports.append((fraction, text))

    async with new_pool(size=1) as pool:
        told = (0.25, "one", 1, "two")
        await pool.call("pool_tasks:report", told, {}, timeout=None, on_progress=note)
        assert [(0.25, "one"), (1.0, "two")] == reports
        await call(pool, "report", 0.5, "to nobody")
    assert 2 == len(reports)


async def test_reports_before_a_segfault_are_told(new_pool: NewPool) -> None:
    reports: list[tuple[float, str]] = []
    async with new_pool(size=1) as pool:
        with pytest.raises(CpuCrashed):
            await pool.call(
                "pool_tasks:report_then_segfault",
                (),
                {},
                timeout=None,
                on_progress=lambda *report: reports.append(report),
            )
    assert [(0.5, "last words")] == reports


async def test_a_thread_that_a_call_left_behind_reports_to_no_other_call(
    new_pool: NewPool, tmp_path: Path
) -> None:
    reports: list[tuple[float, str]] = []
    go, done = tmp_path / "go", tmp_path / "done"
    async with new_pool(size=1) as pool:
        await call(pool, "report_later", str(go), str(done))
        await pool.call(
            "pool_tasks:let_report",
            (str(go), str(done)),
            {},
            timeout=None,
            on_progress=lambda *report: reports.append(report),
        )
    assert [(1.0, "mine")] == reports


async def test_an_idle_worker_keeps_no_listener(new_pool: NewPool) -> None:
    def listen(fraction: float, note: str) -> None: ...

    heard = ref(listen)
    async with new_pool(size=1) as pool:
        await pool.call("pool_tasks:report", (0.5, ""), {}, timeout=None, on_progress=listen)
        del listen
        gc.collect()
        assert heard() is None
