"""A parent that is killed, or told to stop by the terminal."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.unit.adapters.pool.processes import is_alive, pid_in_sync, start_app
from tests.waiting import until_sync


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_killed_parent_takes_busy_worker_and_grandchild_along(
    tmp_path: Path, backend: str
) -> None:
    paths = tmp_path / "pid", tmp_path / "grandchild"
    with start_app(tmp_path, backend, "spin_with_grandchild", *paths) as parent:
        pids = [pid_in_sync(path, within=20) for path in paths]
        parent.kill()
        until_sync(lambda: not any(map(is_alive, pids)), what="worker and grandchild are gone")


def test_also_while_c_code_holds_the_gil(tmp_path: Path, backend: str) -> None:
    with start_app(tmp_path, backend, "spin_in_c", tmp_path / "pid") as parent:
        pid = pid_in_sync(tmp_path / "pid", within=20)
        parent.kill()
        until_sync(lambda: not is_alive(pid), what="the worker is gone")


def test_ctrl_c_does_not_reach_the_worker(tmp_path: Path, backend: str) -> None:
    paths = tmp_path / "pid", tmp_path / "go"
    with start_app(tmp_path, backend, "wait_for", *paths) as parent:
        pid_in_sync(paths[0], within=20)
        os.killpg(parent.pid, signal.SIGINT)
        paths[1].touch()
        assert "went\n" == parent.communicate(timeout=20)[0]
