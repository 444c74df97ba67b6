"""Progress of a task in a worker process, carried as a frame of its own."""

from __future__ import annotations

from collections.abc import Callable

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
