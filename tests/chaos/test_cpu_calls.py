"""Thousands of calls that go well, crash, hang, are cancelled or can't travel: each ends once.

`CPU_CALLS=10000` for all of them; the default is short.
"""

from __future__ import annotations

import os
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from mega.adapters.pool.parent import WorkerPool
from mega.errors import CpuArgumentError, CpuCrashed, CpuResultError, CpuTimeout
from mega.pool_options import PoolOptions
from tests.unit.adapters.pool.processes import HERE as TASKS
from tests.unit.adapters.pool.processes import call, children, open_descriptors
from tests.waiting import until

CALLS = int(os.environ.get("CPU_CALLS", "400"))
CALLERS = 64
SLACK = 32 << 20
PAYLOAD = os.urandom(5_000_000)

#: Of a hundred calls, how many are of which kind, and how each of them ends.
KINDS: dict[str, tuple[int, Any]] = {
    "fast": (70, "result"),
    "slow": (12, "result"),
    "large": (2, "result"),
    "raising": (4, ValueError),
    "unpicklable argument": (3, CpuArgumentError),
    "unpicklable result": (3, CpuResultError),
    "crashing": (2, CpuCrashed),
    "timing out": (2, CpuTimeout),
    "cancelled": (2, "cancelled"),
}


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> WorkerPool:
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setitem(sys.modules, "__mp_main__", main)
    monkeypatch.syspath_prepend(TASKS)
    options = PoolOptions(size=2, max_restarts=10**6, recycle_after=200)
    return WorkerPool("test", options, ["pool_tasks:add"], emit=lambda kind, facts: None)


def calls() -> list[str]:
    kinds = [kind for kind, (share, _) in KINDS.items() for _ in range(share * CALLS // 100)]
    Random(7).shuffle(kinds)
    return kinds


async def test_each_call_ends_in_one_way_and_nothing_stays(
    pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kinds, ends = calls(), Counter[tuple[str, Any]]()
    before = children(), open_descriptors()
    async with pool:
        await run_all(pool, kinds[: CALLS // 5], ends)
        full = rss()
        await run_all(pool, kinds[CALLS // 5 :], ends)
        growth = rss() - full
        await until(lambda: len(children() - before[0]) <= pool.size, what="no zombie")
    expected = {(kind, end): kinds.count(kind) for kind, (_, end) in KINDS.items()}
    assert expected == ends
    assert before == (children(), open_descriptors())
    assert [] == os.listdir(tmp_path)
    assert growth < SLACK


async def run_all(pool: WorkerPool, kinds: list[str], ends: Counter[tuple[str, Any]]) -> None:
    async def caller() -> None:
        for kind in waiting:
            ends[kind, await end_of(pool, kind)] += 1

    waiting = iter(kinds)
    async with anyio.create_task_group() as tasks:
        for _ in range(CALLERS):
            tasks.start_soon(caller)


async def end_of(pool: WorkerPool, kind: str) -> Any:
    ran: dict[str, Callable[[], Any]] = {
        "fast": lambda: call(pool, "add", 1, 2),
        "slow": lambda: call(pool, "sleep", 0.005),
        "large": lambda: call(pool, "same", PAYLOAD),
        "raising": lambda: call(pool, "raise_value_error"),
        "unpicklable argument": lambda: call(pool, "same", lambda: None),
        "unpicklable result": lambda: call(pool, "return_lock"),
        "crashing": lambda: call(pool, "kill_itself"),
        "timing out": lambda: call(pool, "sleep", 1000, timeout=0.02),
        "cancelled": lambda: call(pool, "sleep", 1000),
    }
    with anyio.move_on_after(0.05 if kind == "cancelled" else None):
        try:
            result = await ran[kind]()
        except Exception as error:
            return type(error)
        return "result" if result in (3, None, PAYLOAD) else result
    return "cancelled"


def rss() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
