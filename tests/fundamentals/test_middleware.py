"""Middleware stands around each run of a job: for logs, tenants, timing, errors of one kind."""

from __future__ import annotations

import functools
import time
from contextvars import ContextVar
from typing import Any

import pytest

from mega import App, Group, JobContext, Reject, Retry, Snooze
from mega.errors import BadHandler, DeclarationError
from mega.events import JobDeadLettered, JobRetried
from mega.testing import TestApp

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


async def only_record(t: TestApp) -> Any:
    await t.drain()
    (record,) = t.jobs
    return record


async def test_middleware_runs_before_and_after_the_handler() -> None:
    app, order = App("shop"), []

    @app.middleware
    async def note(ctx: JobContext, call_next: Any) -> Any:
        order.append(f"before {ctx.subject} attempt {ctx.attempt}")
        result = await call_next()
        order.append("after")
        return result

    @app.job("email.send")
    async def send_email(to: str) -> str:
        order.append(f"to {to}")
        return "sent"

    async with app.test() as t:
        job = await send_email.enqueue("ada@example.org")
        await t.drain()
        assert "sent" == await job.result()

    assert ["before email.send attempt 1", "to ada@example.org", "after"] == order


async def test_what_was_declared_first_is_outermost() -> None:
    app, order = App("shop"), []

    def declare(name: str) -> None:
        @app.middleware
        async def note(ctx: JobContext, call_next: Any) -> Any:
            order.append(f"{name} in")
            try:
                return await call_next()
            finally:
                order.append(f"{name} out")

    declare("first")
    declare("second")

    @app.job("email.send")
    async def send_email() -> None:
        order.append("handler")

    async with app.test() as t:
        await send_email.enqueue()
        await t.drain()

    assert ["first in", "second in", "handler", "second out", "first out"] == order


async def test_what_middleware_returns_is_the_result() -> None:
    app = App("shop")

    @app.middleware
    async def shout(ctx: JobContext, call_next: Any) -> Any:
        return (await call_next()).upper()

    @app.job("greet")
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with app.test() as t:
        job = await greet.enqueue("ada")
        await t.drain()
        assert "HELLO ADA" == await job.result()


async def test_middleware_that_does_not_call_on_answers_for_the_handler() -> None:
    app, ran = App("shop"), []

    @app.middleware
    async def only_on_weekdays(ctx: JobContext, call_next: Any) -> Any:
        return "not today"

    @app.job("greet")
    async def greet() -> str:
        ran.append("handler")
        return "hello"

    async with app.test() as t:
        job = await greet.enqueue()
        await t.drain()
        assert "not today" == await job.result()

    assert [] == ran


async def test_an_error_of_middleware_is_an_error_of_the_run() -> None:
    app = App("shop")

    @app.middleware
    async def check(ctx: JobContext, call_next: Any) -> Any:
        raise PermissionError("no such tenant")

    @app.job("greet", retries=1, backoff=10)
    async def greet() -> None: ...

    async with app.test() as t:
        await greet.enqueue()
        await t.advance(10)
        assert "PermissionError: no such tenant" == (await only_record(t)).error
        assert ["job.retry", "job.dlq"] == [
            event.kind for event in t.events if isinstance(event, JobRetried | JobDeadLettered)
        ]


async def test_middleware_can_swallow_an_error() -> None:
    app = App("shop")

    @app.middleware
    async def forgive(ctx: JobContext, call_next: Any) -> Any:
        try:
            return await call_next()
        except FileNotFoundError:
            return "it was gone already"

    @app.job("remove")
    async def remove() -> str:
        raise FileNotFoundError

    async with app.test() as t:
        job = await remove.enqueue()
        await t.drain()
        assert "it was gone already" == await job.result()


async def test_middleware_can_turn_one_error_into_another() -> None:
    app = App("shop")

    @app.middleware
    async def reject_bad_input(ctx: JobContext, call_next: Any) -> Any:
        try:
            return await call_next()
        except ValueError as error:
            raise Reject(str(error)) from error

    @app.job("parse", retries=5)
    async def parse() -> None:
        raise ValueError("not a number")

    async with app.test() as t:
        await parse.enqueue()
        record = await only_record(t)
        assert ("failed", 1) == (record.state, record.attempt)
        (letter,) = t.dead_letters("parse")
        assert ("rejected", 1) == (letter["reason"], letter["attempts"])


@pytest.mark.parametrize(
    ("raised", "state"),
    [(Retry("busy", after=60), "retrying"), (Snooze(60), "waiting"), (Reject("no"), "failed")],
    ids=["Retry", "Snooze", "Reject"],
)
async def test_what_steers_a_job_passes_through(raised: Exception, state: str) -> None:
    app, seen = App("shop"), []

    @app.middleware
    async def note(ctx: JobContext, call_next: Any) -> Any:
        try:
            return await call_next()
        except Exception as error:
            seen.append(type(error))
            raise

    @app.job("work")
    async def work() -> None:
        raise raised

    async with app.test() as t:
        await work.enqueue()
        assert state == (await only_record(t)).state

    assert [type(raised)] == seen


async def test_a_plain_handler_sees_what_middleware_has_set() -> None:
    app, seen = App("shop"), []

    @app.middleware
    async def enter_tenant(ctx: JobContext, call_next: Any) -> Any:
        TENANT.set(ctx.headers.get("tenant", "nobody"))
        return await call_next()

    @app.job("work")
    def work() -> None:
        seen.append(TENANT.get())

    async with app.test() as t:
        await work.enqueue(headers={"tenant": "ada"})
        await t.drain()
        await work.enqueue()
        await t.drain()

    assert ["ada", "nobody"] == seen


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
async def test_the_time_out_holds_for_middleware_and_handler_together(is_async: bool) -> None:
    app, ended = App("shop"), []

    @app.middleware
    async def slow(ctx: JobContext, call_next: Any) -> Any:
        try:
            return await call_next()
        finally:
            ended.append(ctx.attempt)

    async def sleep_async() -> None:
        import anyio

        await anyio.sleep_forever()

    def sleep() -> None:
        time.sleep(0.5)

    work = app.job("work", timeout=0.05, retries=0)(sleep_async if is_async else sleep)

    async with app.test() as t:
        await work.enqueue()
        record = await only_record(t)

    assert ("failed", [1]) == (record.state, ended)
    assert "TimeoutError" in record.error


async def test_calling_on_twice_is_refused() -> None:
    app, ran = App("shop"), []

    @app.middleware
    async def twice(ctx: JobContext, call_next: Any) -> Any:
        await call_next()
        return await call_next()

    @app.job("work", retries=0)
    async def work() -> None:
        ran.append("handler")

    async with app.test() as t:
        await work.enqueue()
        record = await only_record(t)

    assert ["handler"] == ran
    assert "failed" == record.state
    assert "the middleware 'twice' called call_next a second time" in record.error


async def test_middleware_of_a_group_stands_around_all_jobs_inside_of_the_apps() -> None:
    app, mail, order = App("shop"), Group(), []

    @app.middleware
    async def outer(ctx: JobContext, call_next: Any) -> Any:
        order.append("app")
        return await call_next()

    @mail.middleware
    async def inner(ctx: JobContext, call_next: Any) -> Any:
        order.append("group")
        return await call_next()

    @app.job("work")
    async def work() -> None: ...

    @mail.job("email.send")
    async def send_email() -> None: ...

    app.include(mail)
    async with app.test() as t:
        await work.enqueue()
        await send_email.enqueue()
        await t.drain()

    assert ["app", "group"] * 2 == order


async def test_a_schedule_has_no_middleware() -> None:
    app, order = App("shop"), []

    @app.middleware
    async def note(ctx: JobContext, call_next: Any) -> Any:
        order.append("middleware")
        return await call_next()

    @app.schedule(every=60)
    async def minutely() -> None:
        order.append("schedule")

    async with app.test() as t:
        await t.advance(60)

    assert ["schedule"] == order


def test_a_plain_function_is_refused_where_it_is_declared() -> None:
    app = App("shop")
    with pytest.raises(BadHandler, match=r"'note' can't be middleware: it is not async") as refused:

        @app.middleware
        def note(ctx: JobContext, call_next: Any) -> Any: ...  # type: ignore[type-var]

    assert "test_middleware.py" in refused.value.where
    assert "async def" in refused.value.hint


async def test_an_object_with_an_async_call_is_middleware_too() -> None:
    app, seen = App("shop"), []

    class Note:
        async def __call__(self, ctx: JobContext, call_next: Any) -> Any:
            seen.append(ctx.subject)
            return await call_next()

    async def with_word(word: str, ctx: JobContext, call_next: Any) -> Any:
        seen.append(word)
        return await call_next()

    app.middleware(Note())
    app.middleware(functools.partial(with_word, "partial"))

    @app.job("work")
    async def work() -> None: ...

    async with app.test() as t:
        await work.enqueue()
        await t.drain()

    assert ["work", "partial"] == seen


async def test_it_is_too_late_once_the_app_has_started() -> None:
    app, mail = App("shop"), Group()

    async def note(ctx: JobContext, call_next: Any) -> Any: ...

    app.include(mail)
    with pytest.raises(DeclarationError, match="is included already"):
        mail.middleware(note)
    async with app.test():
        with pytest.raises(DeclarationError, match="has started already"):
            app.middleware(note)
