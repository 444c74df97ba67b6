"""Each run has context variables of its own, and knows which job it is, wherever its code runs."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
from anyio import from_thread, to_thread

from mega import App, JobContext, ScheduleContext, current_job
from mega.context import current_run

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


def job_id() -> str:
    job = current_job()
    return job.id if job else ""


async def async_job_id() -> str:
    return job_id()


async def test_outside_of_a_job_there_is_none() -> None:
    assert None is current_job()


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
async def test_what_one_run_sets_the_next_one_does_not_see(is_async: bool) -> None:
    app, seen = App("shop"), []

    def work(name: str) -> None:
        seen.append(TENANT.get())
        TENANT.set(name)

    async def work_async(name: str) -> None:
        work(name)

    handle = app.job("work")(work_async if is_async else work)
    async with app.test() as t:
        for name in ("ada", "grace", "joan"):
            await handle.enqueue(name)
        await t.drain()

    assert ["nobody"] * 3 == seen
    assert "nobody" == TENANT.get()


async def test_it_sees_nothing_of_a_run_that_failed() -> None:
    app, seen = App("shop"), []

    @app.job("work", retries=1, backoff=0)
    async def work() -> None:
        seen.append(TENANT.get())
        TENANT.set("ada")
        raise ConnectionError

    async with app.test() as t:
        await work.enqueue()
        await t.advance(1)
        await t.drain()

    assert ["nobody"] * 2 == seen


async def test_runs_at_once_do_not_see_each_other() -> None:
    app, seen = App("shop"), {}

    @app.job("work", concurrency=20)
    async def work(number: int, ctx: JobContext) -> None:
        TENANT.set(str(number))
        await anyio.lowlevel.checkpoint()
        seen[number] = TENANT.get(), job_id() == ctx.id

    async with app.test() as t:
        for number in range(20):
            await work.enqueue(number)
        await t.drain()

    assert {number: (str(number), True) for number in range(20)} == seen


async def test_what_the_lifespan_sets_all_runs_see() -> None:
    seen = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        TENANT.set("the shop")
        yield

    app = App("shop", lifespan=lifespan)

    @app.job("work")
    async def work() -> None:
        seen.append(TENANT.get())

    @app.schedule(every=60)
    async def minutely() -> None:
        seen.append(TENANT.get())

    async with app.test() as t:
        await work.enqueue()
        await t.advance(60)

    assert ["the shop", "the shop"] == seen


async def test_what_the_enqueuing_code_has_set_does_not_travel() -> None:
    app, seen = App("shop"), []

    @app.job("work")
    async def work() -> None:
        seen.append(TENANT.get())

    async with app.test() as t:
        TENANT.set("ada")
        await work.enqueue()
        await t.drain()

    assert ["nobody"] == seen


async def test_the_job_is_known_wherever_its_code_runs() -> None:
    app, seen = App("shop"), {}

    @app.job("work")
    async def work(ctx: JobContext) -> None:
        async def child() -> None:
            seen["child task"] = job_id()

        def in_own_thread() -> None:
            seen["own thread"] = job_id()

        seen["handler"] = job_id()
        async with anyio.create_task_group() as group:
            group.start_soon(child)
        seen["to_thread"] = await to_thread.run_sync(job_id)
        seen["and back"] = await to_thread.run_sync(from_thread.run, async_job_id)
        copy = contextvars.copy_context()
        thread = threading.Thread(target=lambda: copy.run(in_own_thread))
        thread.start()
        await to_thread.run_sync(thread.join)

    async with app.test() as t:
        job = await work.enqueue()
        await t.drain()

    places = ["handler", "child task", "to_thread", "and back", "own thread"]
    assert dict.fromkeys(places, job.id) == seen


async def test_the_job_is_known_in_a_plain_handler_and_what_it_calls_back() -> None:
    app, seen = App("shop"), []

    @app.job("work")
    def work() -> None:
        seen.append(job_id())
        seen.append(from_thread.run(async_job_id))

    async with app.test() as t:
        job = await work.enqueue()
        await t.drain()

    assert [job.id, job.id] == seen


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_job_is_known_in_tasks_of_asyncio(anyio_backend: str) -> None:
    import asyncio

    app, seen = App("shop"), []

    @app.job("work")
    async def work() -> None:
        seen.append(await asyncio.create_task(async_job_id()))
        seen.append(await asyncio.to_thread(job_id))
        async with asyncio.timeout(5):
            seen.append(await asyncio.wait_for(async_job_id(), 5))

    async with app.test() as t:
        job = await work.enqueue()
        await t.drain()

    assert [job.id] * 3 == seen


async def test_a_schedule_is_no_job_and_keeps_its_variables_to_itself() -> None:
    app, seen = App("shop"), []

    @app.schedule(every=60)
    async def minutely(ctx: ScheduleContext) -> None:
        seen.append((TENANT.get(), current_job(), current_run.get() is ctx))
        TENANT.set("ada")

    async with app.test() as t:
        await t.advance(120)
        await minutely.run_now()
        assert ("nobody", None) == (TENANT.get(), current_run.get())

    assert [("nobody", None, True)] * 3 == seen


async def test_a_variable_can_be_reset_where_it_was_set() -> None:
    app, done = App("shop"), []

    @app.middleware
    async def tenant(ctx: JobContext, call_next: Any) -> Any:
        token = TENANT.set("ada")
        try:
            return await call_next()
        finally:
            TENANT.reset(token)

    @app.job("work")
    async def work() -> None:
        await anyio.lowlevel.checkpoint()
        done.append(TENANT.get())

    async with app.test() as t:
        await work.enqueue()
        await t.drain()

    assert ["ada"] == done
