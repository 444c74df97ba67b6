"""What the tests ask about processes, and how they call a task."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mega.adapters.pool.parent import WorkerPool
from tests.waiting import until, until_sync


async def call(
    pool: WorkerPool,
    task: str,
    *args: Any,
    timeout: float | None = None,
    context: Mapping[str, str] | None = None,
    **kwargs: Any,
) -> Any:
    return await pool.call(f"pool_tasks:{task}", args, kwargs, timeout=timeout, context=context)


def is_alive(pid: int) -> bool:
    """Return whether the process runs. A zombie doesn't: in a container init may not reap it."""
    return _state(pid) not in ("", "Z", "X")


def children() -> set[int]:
    """Return this process's children, zombies included."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return {pid for pid in pids if _parent(pid) == os.getpid()}


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def pid_in(path: Path) -> int:
    await until(path.exists, what=f"a process writes {path.name}")
    return _number(path)


def pid_in_sync(path: Path, *, within: float = 10.0) -> int:
    until_sync(path.exists, within=within, what=f"a process writes {path.name}")
    return _number(path)


def _number(path: Path) -> int:
    return int(path.read_text())


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _state(pid: int) -> str:
    return (_stat(pid) or [""])[0]


def _parent(pid: int) -> int:
    return int((_stat(pid) or ["", "0"])[1])
