"""What the tests ask about processes, and how they call a task."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mega.adapters.pool.parent import WorkerPool
from tests.waiting import until, until_sync

HERE = Path(__file__).parent
APP = """
import signal, sys
import anyio
from mega.adapters.pool.parent import WorkerPool
from mega.pool_options import PoolOptions

async def main():
    pool = WorkerPool("apps", PoolOptions(size=2), [], emit=lambda kind, facts: None)
    async with pool:
        result = await pool.call(sys.argv[2], tuple(sys.argv[3:]), {}, timeout=None)
        print(result)

signal.signal(signal.SIGINT, lambda *_: None)
anyio.run(main, backend=sys.argv[1])
"""
SWITCHED_OFF = """
import fcntl, os
for module, name in (os, "pidfd_open"), (os, "memfd_create"), (fcntl, "F_SETSIG"):
    vars(module).pop(name, None)
"""


async def call(
    pool: WorkerPool,
    task: str,
    *args: Any,
    timeout: float | None = None,
    context: Mapping[str, str] | None = None,
    **kwargs: Any,
) -> Any:
    return await pool.call(f"pool_tasks:{task}", args, kwargs, timeout=timeout, context=context)


def start_app(tmp_path: Path, backend: str, task: str, *args: Path) -> subprocess.Popen[str]:
    """Run one call of a task in a program of its own, in a session of its own."""
    (tmp_path / "app.py").write_text(APP)
    return subprocess.Popen(
        [sys.executable, "app.py", backend, f"pool_tasks:{task}", *map(str, args)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def plain_system(folder: Path) -> str:
    """Return a PYTHONPATH on which Python lacks what only Linux has."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SWITCHED_OFF)
    return str(folder)


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
