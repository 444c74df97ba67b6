"""A coroutine in a context of its own is awaited like any other, and what it sets stays there."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar, copy_context
from typing import Any

import anyio
import pytest
from anyio import from_thread, to_thread
from anyio.lowlevel import checkpoint

from mega.runtime.isolation import isolated

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


async def set_and_wait(name: str) -> str:
    TENANT.set(name)
    await checkpoint()
    await checkpoint()
    return TENANT.get()


async def test_a_result_comes_out_and_a_variable_does_not() -> None:
    assert "ada" == await isolated(copy_context(), set_and_wait("ada"))
    assert "nobody" == TENANT.get()


async def test_what_was_set_before_is_seen() -> None:
    context = copy_context()
    context.run(TENANT.set, "ada")

    async def look() -> str:
        await checkpoint()
        return TENANT.get()

    assert "ada" == await isolated(context.copy(), look())
    assert "nobody" == TENANT.get()


async def test_one_after_the_other_starts_clean() -> None:
    start, seen = copy_context(), []

    async def look(name: str) -> None:
        seen.append(TENANT.get())
        await set_and_wait(name)

    for name in ("ada", "grace", "joan"):
        await isolated(start.copy(), look(name))
    assert ["nobody"] * 3 == seen


async def test_those_that_run_at_once_do_not_see_each_other() -> None:
    start, seen = copy_context(), {}

    async def run(name: str) -> None:
        seen[name] = await isolated(start.copy(), set_and_wait(name))

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(run, str(number))
    assert {str(number): str(number) for number in range(50)} == seen


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(1), KeyboardInterrupt(), StopAsyncIteration()]
)
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a wait"])
async def test_an_error_comes_out_as_it_was_raised(error: BaseException, waits: bool) -> None:
    async def fail() -> None:
        TENANT.set("ada")
        if waits:
            await checkpoint()
        raise error

    with pytest.raises(type(error)) as raised:
        await isolated(copy_context(), fail())
    assert error is raised.value
    assert "nobody" == TENANT.get()


async def test_a_stop_iteration_becomes_a_runtime_error_as_in_any_coroutine() -> None:
    async def fail() -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        await isolated(copy_context(), fail())


async def test_a_scope_around_it_cancels_it_inside() -> None:
    seen = []

    async def wait() -> None:
        TENANT.set("ada")
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(TENANT.get())
            with anyio.CancelScope(shield=True):
                await checkpoint()
                seen.append(TENANT.get())

    with anyio.move_on_after(0.01) as scope:
        await isolated(copy_context(), wait())
    assert scope.cancelled_caught
    assert ["ada", "ada"] == seen
    assert "nobody" == TENANT.get()


async def test_a_scope_inside_ends_there() -> None:
    async def wait() -> str:
        with anyio.move_on_after(0.01):
            await anyio.sleep_forever()
        await checkpoint()
        return await set_and_wait("ada")

    assert "ada" == await isolated(copy_context(), wait())


async def test_a_timeout_inside_is_an_error_outside() -> None:
    async def wait() -> None:
        with anyio.fail_after(0.01):
            await anyio.sleep_forever()

    with pytest.raises(TimeoutError):
        await isolated(copy_context(), wait())


async def test_a_task_group_inside_hands_its_context_down_and_its_errors_up() -> None:
    seen = []

    async def child() -> None:
        await checkpoint()
        seen.append(TENANT.get())
        TENANT.set("grace")

    async def fail() -> None:
        raise ValueError("no")

    async def parent() -> None:
        TENANT.set("ada")
        async with anyio.create_task_group() as group:
            group.start_soon(child)
        seen.append(TENANT.get())
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            group.start_soon(fail)

    with pytest.raises(ExceptionGroup) as raised:
        await isolated(copy_context(), parent())
    assert ["no"] == [str(error) for error in raised.value.exceptions]
    assert ["ada", "ada"] == seen


async def test_threads_see_it_too_and_so_does_what_they_call_back() -> None:
    async def look() -> str:
        return TENANT.get()

    def work() -> tuple[str, str]:
        return TENANT.get(), from_thread.run(look)

    async def run() -> tuple[str, str]:
        TENANT.set("ada")
        return await to_thread.run_sync(work)

    assert ("ada", "ada") == await isolated(copy_context(), run())


async def test_async_generators_and_context_managers_work_inside() -> None:
    ended = []

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(3):
                await checkpoint()
                yield number
        finally:
            ended.append(TENANT.get())

    @asynccontextmanager
    async def tenant(name: str) -> AsyncIterator[None]:
        token = TENANT.set(name)
        try:
            await checkpoint()
            yield
        finally:
            TENANT.reset(token)  # refused in another context than that of the `set`

    async def run() -> list[int]:
        async with tenant("ada"):
            return [number async for number in numbers()]

    assert [0, 1, 2] == await isolated(copy_context(), run())
    assert ["ada"] == ended


async def test_one_inside_of_another() -> None:
    async def outer() -> tuple[str, str]:
        TENANT.set("ada")
        inner = await isolated(copy_context(), set_and_wait("grace"))
        return inner, TENANT.get()

    assert ("grace", "ada") == await isolated(copy_context(), outer())


def test_closing_it_closes_what_it_awaits_in_its_context() -> None:
    seen = []

    async def wait() -> None:
        TENANT.set("ada")
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(TENANT.get())

    async def run() -> None:
        await isolated(copy_context(), wait())

    async def main() -> None:
        coroutine = run()
        coroutine.send(None)
        coroutine.close()

    anyio.run(main)
    assert ["ada"] == seen
    assert "nobody" == TENANT.get()


async def test_an_error_leaves_no_frame_alive() -> None:
    class Large: ...

    alive: list[weakref.ref[Any]] = []

    async def fail() -> None:
        large = Large()
        alive.append(weakref.ref(large))
        with anyio.fail_after(0):
            await anyio.sleep_forever()

    gc.disable()
    try:
        for _ in range(3):
            with suppress(TimeoutError):
                await isolated(copy_context(), fail())
        await checkpoint()  # the loop itself holds the last one until it turns
        assert [None] * 3 == [ref() for ref in alive]
    finally:
        gc.enable()
