"""What a task raises, and how it reaches the caller."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import pytest

from mega.adapters.pool.failures import RemoteTraceback
from mega.adapters.pool.parent import WorkerPool
from mega.errors import CpuCrashed, CpuRemoteError
from tests.unit.adapters.pool.processes import call

NewPool = Callable[..., WorkerPool]


async def test_an_exception_arrives_as_itself_with_its_remote_traceback(new_pool: NewPool) -> None:
    async with new_pool() as pool:
        with pytest.raises(ValueError, match="three") as caught:
            await call(pool, "raise_value_error")
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in raise_value_error" in str(caught.value.__cause__)
    assert "child.py" not in str(caught.value.__cause__)


async def test_an_init_with_its_own_arguments(new_pool: NewPool) -> None:
    two_arguments = import_module("pool_tasks").TwoArguments
    async with new_pool() as pool:
        with pytest.raises(two_arguments, match="404: absent") as caught:
            await call(pool, "raise_two_arguments")
    assert (404, "absent") == (caught.value.code, caught.value.reason)


async def test_an_exception_that_holds_a_lock(new_pool: NewPool) -> None:
    async with new_pool() as pool:
        with pytest.raises(CpuRemoteError, match=r"raised pool_tasks\.HoldsLock: held") as caught:
            await call(pool, "raise_holds_lock")
        assert 1 == await call(pool, "add", 1)
    assert "in raise_holds_lock" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ("sys_exit", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt"),
        ("stop_iteration", "StopIteration"),
    ],
)
async def test_what_would_end_the_caller_is_wrapped(
    new_pool: NewPool, task: str, text: str
) -> None:
    async with new_pool() as pool:
        with pytest.raises(CpuRemoteError, match=f'"pool_tasks:{task}" raised {text}'):
            await call(pool, task)
        assert 1 == await call(pool, "add", 1)


async def test_a_crash_error_of_the_task_is_not_taken_for_a_crash(new_pool: NewPool) -> None:
    async with new_pool() as pool:
        with pytest.raises(CpuCrashed, match="of my own"):
            await call(pool, "raise_crash_of_its_own")
        assert 1 == await call(pool, "add", 1)


async def test_an_unknown_task(new_pool: NewPool) -> None:
    async with new_pool() as pool:
        with pytest.raises(Exception, match="no attribute 'absent'"):
            await call(pool, "absent")


async def test_memory_limit(new_pool: NewPool) -> None:
    async with new_pool(size=1, memory_limit=512 << 20) as pool:
        pid = await call(pool, "process")
        with pytest.raises(MemoryError):
            await call(pool, "allocate_without_end")
        assert await call(pool, "process") == pid
