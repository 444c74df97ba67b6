"""What a worker process is like from the inside."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from mega.adapters.pool.child import Channel
from mega.adapters.pool.parent import WorkerPool
from tests.unit.adapters.pool.processes import call, is_alive, pid_in

NewPool = Callable[..., WorkerPool]


async def test_it_does_not_import_mega(new_pool: NewPool) -> None:
    rooms = ("child", "failures", "frames", "guards", "logs", "mainfile")
    async with new_pool() as pool:
        loaded = await call(pool, "loaded_modules")
    assert [*(f"mega.adapters.pool.{room}" for room in rooms), "mega.cpu"] == [
        name for name in loaded if name.startswith("mega")
    ]


async def test_its_modules_stay_the_same_when_mega_is_imported(new_pool: NewPool) -> None:
    async with new_pool() as pool:
        assert all(await call(pool, "child_module_identities"))
        assert 1 == await call(pool, "add", 1)


async def test_stop_signals_do_not_reach_the_task(new_pool: NewPool, tmp_path: Path) -> None:
    results = []

    async def wait() -> None:
        results.append(await call(pool, "wait_for", str(tmp_path / "pid"), str(tmp_path / "go")))

    async with new_pool() as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        pid = await pid_in(tmp_path / "pid")
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        (tmp_path / "go").touch()
    assert ["went"] == results
    assert not is_alive(pid)


async def test_a_program_of_the_task_does_not_ignore_them(new_pool: NewPool) -> None:
    async with new_pool() as pool:
        assert ["False", "False"] == (await call(pool, "ignored_signals_of_a_program")).split()


async def test_a_program_of_the_task_gets_no_descriptor_of_the_pool(new_pool: NewPool) -> None:
    async with new_pool() as pool:
        assert not any(await call(pool, "inheritable_descriptors"))


async def test_its_own_session_and_out_of_memory_score(new_pool: NewPool) -> None:
    async with new_pool() as pool:
        pid = await call(pool, "process")
        assert os.getsid(pid) == os.getpgid(pid) == pid
        assert "500" == await call(pool, "oom_score")


async def test_nice(new_pool: NewPool) -> None:
    async with new_pool(nice=3) as pool:
        assert await call(pool, "niceness") == min(os.nice(0) + 3, 19)  # 19 is the most


async def test_libraries_of_a_worker_start_no_threads_of_their_own(
    new_pool: NewPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    async with new_pool() as pool:
        assert "1" == await call(pool, "variable", "OMP_NUM_THREADS")
    assert "OMP_NUM_THREADS" not in os.environ


async def test_the_users_number_of_threads_holds(
    new_pool: NewPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    async with new_pool() as pool:
        assert "3" == await call(pool, "variable", "OMP_NUM_THREADS")


def test_a_finalizer_that_logs_while_a_frame_is_sent() -> None:
    channel: Channel
    sent: list[bytes] = []

    class Connection(socket.socket):
        def sendall(self, part: Any, flags: int = 0) -> None:
            sent.append(bytes(part))
            if part == b"first part":
                channel.send([b"from a finalizer"])

    with Connection() as connection:
        channel = Channel(connection)
        channel.send([b"first part", b"x" * (1 << 17)])
    assert [part[:16] for part in sent] == [b"first part", b"x" * 16, b"from a finalizer"]
