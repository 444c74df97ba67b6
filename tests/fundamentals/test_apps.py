"""An app is put together from groups, and holds what all of its handlers share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from mega import App, Group, JobContext, NotConnected, ScheduleContext
from mega.errors import BadHandler, DeclarationError, DuplicateName, PayloadInvalid


@dataclass
class Mailbox:
    sent: list[str] = field(default_factory=list)
    is_open: bool = True


@asynccontextmanager
async def mailbox() -> AsyncIterator[Mailbox]:
    box = Mailbox()
    yield box
    box.is_open = False


async def test_what_the_lifespan_yields_is_the_state_of_all_handlers() -> None:
    app = App("shop", lifespan=mailbox)

    @app.job("email.send")
    async def send_email(to: str, ctx: JobContext[Mailbox]) -> None:
        ctx.state.sent.append(to)

    @app.schedule(every=60)
    async def remind(ctx: ScheduleContext[Mailbox]) -> None:
        ctx.state.sent.append("everybody")

    async with app.test() as t:
        await send_email.enqueue("ada@example.org")
        await t.advance(60)
        assert ["ada@example.org", "everybody"] == app.state.sent
        assert app.state.is_open

    assert not app.state.is_open


async def test_startup_comes_before_all_work_and_shutdown_after_it() -> None:
    app, order = App("shop", lifespan=mailbox), []

    @app.on_startup
    async def open_shop() -> None:
        order.append("startup")
        await send_email.enqueue()

    @app.on_shutdown
    def close_shop() -> None:
        order.append(f"shutdown, mailbox open: {app.state.is_open}")

    @app.job("email.send")
    async def send_email() -> None:
        order.append("job")

    async with app.test() as t:
        await t.drain()

    assert ["startup", "job", "shutdown, mailbox open: True"] == order


async def test_a_group_declares_for_an_app_that_includes_it() -> None:
    mail, ran = Group(), []

    @mail.job("email.send")
    async def send_email(to: str) -> None:
        ran.append(to)

    @mail.schedule(every=60)
    async def remind() -> None:
        ran.append("everybody")

    app = App("shop")
    app.include(mail)
    async with app.test() as t:
        await send_email.enqueue("ada@example.org")
        await t.advance(60)

    assert ["ada@example.org", "everybody"] == ran


async def test_groups_can_include_groups() -> None:
    inner, outer, app, ran = Group(), Group(), App("shop"), []

    @inner.job("email.send")
    async def send_email() -> None:
        ran.append("inner")

    outer.include(inner)
    app.include(outer)
    async with app.test() as t:
        await send_email.enqueue()
        await t.drain()

    assert ["inner"] == ran


async def test_the_events_startup_and_shutdown_of_a_group_are_those_of_the_app() -> None:
    mail, order = Group(), []

    @mail.job("email.send")
    async def send_email() -> None:
        order.append("job")

    @mail.on("job.done")
    async def note(event: object) -> None:
        order.append("done")

    mail.on_startup(lambda: order.append("startup"))
    mail.on_shutdown(lambda: order.append("shutdown"))

    app = App("shop")
    app.include(mail)
    async with app.test() as t:
        await send_email.enqueue()
        await t.drain()

    assert ["startup", "job", "done", "shutdown"] == order


async def test_a_job_of_a_group_without_an_app_can_not_be_enqueued() -> None:
    mail = Group()

    @mail.job("email.send")
    async def send_email() -> str:
        return "sent"

    assert "sent" == await send_email()
    with pytest.raises(NotConnected, match="a group that no app includes") as refused:
        await send_email.enqueue()
    assert "app.include(group)" in refused.value.hint


def test_a_schedule_over_a_job_of_a_group_without_an_app_is_refused_at_the_start() -> None:
    mail, app = Group(), App("shop")

    @mail.job("email.send")
    async def send_email() -> None: ...

    app.schedule(every=60, name="often")(send_email)
    with pytest.raises(BadHandler, match=r'"often" enqueues the job "email\.send"') as refused:
        app.check()
    assert "app.include(group)" in refused.value.hint
    assert "test_apps.py" in refused.value.where

    app.include(mail)
    app.check()


def test_two_jobs_of_one_subject_are_refused_with_both_places() -> None:
    mail, app = Group(), App("shop")

    @mail.job("email.send")
    async def send_email() -> None: ...

    @app.job("email.send")
    async def send_mail() -> None: ...

    with pytest.raises(DuplicateName, match=r'two jobs .* "email\.send"') as refused:
        app.include(mail)
    assert "test_apps.py" in refused.value.where
    assert "send_email" in refused.value.where
    assert "send_mail" in refused.value.where


async def test_nothing_can_be_declared_once_the_app_has_started() -> None:
    app = App("shop")
    async with app.test():
        with pytest.raises(DeclarationError, match="has started already"):

            @app.job("email.send")
            async def send_email() -> None: ...


async def test_a_script_enters_the_app_to_enqueue() -> None:
    app, received = App("shop", broker="memory:"), []

    @app.job("email.send")
    async def send_email(to: str) -> None:
        received.append(to)

    async with app:
        job = await send_email.enqueue("ada@example.org")
        assert "waiting" == (await job.state()).state

    with pytest.raises(NotConnected):
        await send_email.enqueue("ada@example.org")
    assert [] == received


async def test_an_error_leaves_the_app_as_it_was_raised() -> None:
    app = App("shop", broker="memory:")

    @app.job("email.send")
    async def send_email(to: str) -> None: ...

    with pytest.raises(PayloadInvalid):
        async with app:
            await app.enqueue("email.send", 5)


async def test_an_error_of_the_lifespan_comes_out_of_serve_as_it_was_raised() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise LookupError("no database")
        yield

    app = App("shop", broker="memory:", lifespan=broken)
    with pytest.raises(LookupError, match="no database"):
        await app.serve()


async def test_shutdown_handlers_run_also_when_a_startup_handler_raised() -> None:
    app, ran = App("shop", broker="memory:"), []

    @app.on_startup
    def fail() -> None:
        raise LookupError("no database")

    @app.on_shutdown
    def clean_up() -> None:
        ran.append("clean")

    with pytest.raises(LookupError):
        await app.serve()
    assert ["clean"] == ran


async def test_an_outcome_of_pytest_leaves_a_test_app_as_it_was_raised() -> None:
    with pytest.raises(pytest.fail.Exception):
        async with App("shop").test():
            pytest.fail("as a failed pytest.raises does")
