"""Calls into worker processes that end badly: each ends alone, and the pool goes on."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from mega.adapters.pool.parent import WorkerPool
from mega.errors import (
    CpuArgumentError,
    CpuCrashed,
    CpuPoolBroken,
    CpuResultError,
    CpuStartError,
    CpuStopped,
    CpuTimeout,
)
from mega.pool_options import PoolOptions
from tests.unit.adapters.pool.processes import HERE as TASKS
from tests.unit.adapters.pool.processes import call, children, is_alive, pid_in
from tests.waiting import until

NewPool = Callable[..., WorkerPool]

AT_ONCE = 10.0


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """A pool needs no broker."""
    return str(request.param)


@pytest.fixture
def new_pool(monkeypatch: pytest.MonkeyPatch) -> NewPool:
    """Make pools whose workers find `pool_tasks`, and no main file: that is pytest here."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setitem(sys.modules, "__mp_main__", main)
    monkeypatch.syspath_prepend(TASKS)

    def make(*tasks: str, **options: Any) -> WorkerPool:
        options = {"size": 2, "max_restarts": 1000, **options}
        return WorkerPool("test", PoolOptions(**options), tasks, emit=lambda kind, facts: None)

    return make


async def at_once(work: Callable[[int], Awaitable[Any]], count: int) -> list[Any]:
    """Start so many calls at once; return their results and errors."""
    ends: list[Any] = []

    async def one(number: int) -> None:
        try:
            ends.append(await work(number))
        except Exception as error:
            ends.append(error)

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(one, number)
    return ends


@pytest.mark.parametrize(
    "what", ["a lambda", "an open file", "raises when taken", "raises when rebuilt"]
)
async def test_a_result_that_fails_on_its_way(new_pool: NewPool, what: str) -> None:
    """pickle-01: it is named as the result's fault, in its own call alone."""
    with anyio.fail_after(AT_ONCE):
        async with new_pool() as pool:
            with pytest.raises(CpuResultError, match='the result of "pool_tasks:return_what'):
                await call(pool, "return_what_cannot_travel", what)
            assert list(range(10)) == [await call(pool, "same", number) for number in range(10)]


@pytest.mark.parametrize("fails", ["here", "there"])
async def test_an_argument_that_fails_on_its_way(new_pool: NewPool, fails: str) -> None:
    """pickle-01: it is named as the argument's fault, in its own call alone."""
    argument = (lambda: None) if fails == "here" else RaisesThere()
    with anyio.fail_after(AT_ONCE):
        async with new_pool() as pool:
            with pytest.raises(CpuArgumentError, match='"pool_tasks:same"'):
                await call(pool, "same", argument)
            assert list(range(10)) == [await call(pool, "same", number) for number in range(10)]


class RaisesThere:
    def __reduce__(self) -> tuple[Any, ...]:
        return import_module("pool_tasks").refuse, ()


async def test_a_stop_while_calls_that_cannot_travel_come_in(new_pool: NewPool) -> None:
    """pickle-02: each of them has its error, and the stop takes no longer than another."""
    ends = []

    async def one(pool: WorkerPool) -> None:
        try:
            await call(pool, "same", lambda: None)
        except (CpuArgumentError, CpuStopped) as error:
            ends.append(error)

    with anyio.fail_after(AT_ONCE):
        async with anyio.create_task_group() as tasks, new_pool() as pool:
            for _ in range(10):
                tasks.start_soon(one, pool)
    assert 10 == len(ends)


async def test_processes_are_renewed_under_a_backlog(new_pool: NewPool) -> None:
    """pickle-04: a process leaves after so many calls, and those that wait get the next one."""
    async with new_pool(size=1, recycle_after=2) as pool:
        pids = await at_once(lambda number: call(pool, "process"), 20)
    assert [2] * 10 == [pids.count(pid) for pid in dict.fromkeys(pids)]


async def test_calls_cancelled_out_of_order(new_pool: NewPool, tmp_path: Path) -> None:
    """pickle-06: who waits is cancelled, then who runs: the third one runs."""
    third = []

    async def run_the_third() -> None:
        third.append(await call(pool, "add", 3))

    first, second = anyio.CancelScope(), anyio.CancelScope()

    async def run(scope: anyio.CancelScope, name: str) -> None:
        with scope:
            await call(pool, "spin", str(tmp_path / name))

    async with new_pool(size=1) as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(run, first, "first")
        await pid_in(tmp_path / "first")
        tasks.start_soon(run, second, "second")
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(run_the_third)
        await anyio.wait_all_tasks_blocked()
        second.cancel()
        first.cancel()
    assert ([3], False) == (third, (tmp_path / "second").exists())


async def test_calls_cancelled_in_any_order(new_pool: NewPool, tmp_path: Path) -> None:
    """pickle-06: in whatever order calls are cancelled, the pool has its places again."""
    random = Random(6)

    async def run(scope: anyio.CancelScope, path: Path) -> None:
        with scope:
            await call(pool, "wait_for", str(path), str(tmp_path / "never"))

    async with new_pool() as pool:
        for round_ in range(8):
            scopes = [anyio.CancelScope() for _ in range(5)]
            async with anyio.create_task_group() as tasks:
                for number, scope in enumerate(scopes):
                    tasks.start_soon(run, scope, tmp_path / f"{round_}-{number}")
                for scope in random.sample(scopes, len(scopes)):
                    for _ in range(random.randrange(20)):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()
        assert [0, 1, 2, 3] == sorted(await at_once(lambda n: call(pool, "add", n), 4))


async def test_an_exception_with_arguments_of_its_own(new_pool: NewPool) -> None:
    """exc-01: it arrives as itself, though its `__init__` takes others than it keeps."""
    async with new_pool() as pool:
        with pytest.raises(import_module("pool_tasks").TwoArguments, match="404: absent"):
            await call(pool, "raise_two_arguments")
        assert 1 == await call(pool, "add", 1)


async def test_exceptions_of_libraries(new_pool: NewPool) -> None:
    """exc-03: an `except` of the caller finds them, with what they carry."""
    async with new_pool() as pool:
        with pytest.raises(json.JSONDecodeError, match="m: line 1 column 4") as decoded:
            await call(pool, "raise_of_a_library", "json")
        with pytest.raises(UnicodeDecodeError) as unicode:
            await call(pool, "raise_of_a_library", "unicode")
        with pytest.raises(FileNotFoundError) as absent:
            await call(pool, "raise_of_a_library", "os")
    assert ("doc", 3) == (decoded.value.doc, decoded.value.pos)
    assert ("utf-8", "r") == (unicode.value.encoding, unicode.value.reason)
    assert (2, "path") == (absent.value.errno, absent.value.filename)


async def test_a_call_over_its_time_and_what_it_started(new_pool: NewPool, tmp_path: Path) -> None:
    """cputime-01: the process is killed with all that it has started, and there is a new one."""
    paths = [tmp_path / "pid", tmp_path / "grandchild"]
    async with new_pool("pool_tasks:add") as pool:
        await pool.start()
        with pytest.raises(CpuTimeout, match=r"longer than 1\.0 s"):
            await call(pool, "spin_with_grandchild", *map(str, paths), timeout=1.0)
        pids = [await pid_in(path) for path in paths]
        await until(lambda: not any(map(is_alive, pids)), what="both are gone")
        assert [0, 1] == sorted(await at_once(lambda n: call(pool, "add", n), 2))


async def test_a_process_that_was_stuck_is_not_used_again(
    new_pool: NewPool, tmp_path: Path
) -> None:
    """cputime-03: the calls behind one that took too long have a process that isn't stuck."""

    async def spin() -> None:
        with pytest.raises(CpuTimeout):
            await call(pool, "spin", str(tmp_path / "pid"), timeout=0.5)

    async with new_pool(size=1) as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(spin)
        await anyio.wait_all_tasks_blocked()
        ends = await at_once(lambda n: call(pool, "add", n, timeout=AT_ONCE), 20)
    assert list(range(20)) == sorted(ends)


async def test_processes_that_start_while_a_thread_holds_a_lock(
    new_pool: NewPool, caplog: pytest.LogCaptureFixture
) -> None:
    """fork-01: a worker inherits no lock: it is a program of its own, not a fork."""
    is_over = threading.Event()

    def hold_it_mostly() -> None:
        lock = caplog.handler.lock
        assert lock is not None
        while not is_over.is_set():
            with lock:
                time.sleep(0.001)

    thread = threading.Thread(target=hold_it_mostly)
    thread.start()
    try:
        async with new_pool(recycle_after=1) as pool:
            said = await at_once(lambda number: call(pool, "log_and_say", number), 20)
    finally:
        is_over.set()
        thread.join()
    assert list(range(20)) == sorted(said)
    assert 20 == len([record for record in caplog.records if record.name == "pool_tasks"])


async def test_processes_that_are_killed_among_others(new_pool: NewPool) -> None:
    """broken-01: a kill fails its own call, with the signal's name; all others go on."""

    async def one(number: int) -> Any:
        return await (call(pool, "kill_itself") if number % 8 == 0 else call(pool, "add", number))

    async with new_pool() as pool:
        ends = await at_once(one, 23)
        assert [0, 1] == sorted(await at_once(lambda n: call(pool, "add", n), 2))
    errors = [end for end in ends if isinstance(end, Exception)]
    assert [CpuCrashed] * 3 == [type(error) for error in errors]
    assert all("SIGKILL" in str(error) for error in errors)
    assert [n for n in range(23) if n % 8] == sorted(end for end in ends if type(end) is int)


async def test_a_crash_before_a_long_queue(new_pool: NewPool) -> None:
    """broken-02: those that wait are not touched by it."""

    async def one(number: int) -> Any:
        return await (call(pool, "add", number) if number else call(pool, "segfault"))

    async with new_pool() as pool:
        ends = await at_once(one, 31)
    assert [CpuCrashed] == [type(end) for end in ends if isinstance(end, Exception)]


async def test_a_module_that_cannot_be_imported(
    new_pool: NewPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """broken-04: after so many starts in vain calls fail at once, with the reason."""
    (tmp_path / "bad.py").write_text("raise RuntimeError('not today')\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = children()
    async with new_pool("bad:task", size=1, max_restarts=2) as pool:
        ends = await at_once(lambda number: pool.call("bad:task", (), {}, timeout=None), 6)
        assert 0 < pool.retry_after <= 60
        assert children() == before
    assert {CpuStartError: 3, CpuPoolBroken: 3} == Counter(type(end) for end in ends)
    assert all("RuntimeError: not today" in str(end) for end in ends)


async def test_dead_processes_are_buried(new_pool: NewPool, tmp_path: Path) -> None:
    """orphan-04: crashes, timeouts and renewals leave no zombie in a pool that goes on."""

    async def one(number: int) -> Any:
        path = str(tmp_path / str(number))
        ends = [
            lambda: call(pool, "kill_itself"),
            lambda: call(pool, "spin", path, timeout=0.1),
            lambda: call(pool, "process"),
        ]
        return await ends[number % 3]()

    before = children()
    async with new_pool(recycle_after=1) as pool:
        await at_once(one, 24)
        await until(lambda: children() == before, what="no process, and no zombie")
        pid = await call(pool, "process")
    assert os.getpid() != pid


async def test_a_process_that_dies_while_it_waits(new_pool: NewPool) -> None:
    """broken-01: the next call doesn't even hear of it."""
    async with new_pool(size=1) as pool:
        os.kill(await call(pool, "process"), signal.SIGKILL)
        assert 1 == await call(pool, "add", 1)
