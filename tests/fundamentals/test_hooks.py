"""Hooks are called when a process starts to serve and when it ends, around all of its work."""

from __future__ import annotations

import anyio
import pytest

from mega import App, Group
from mega.errors import DeclarationError


async def test_hooks_stand_around_all_work() -> None:
    app, order = App("shop"), []

    @app.on_startup
    async def open_shop() -> None:
        order.append("open")
        await greet.enqueue()

    @app.on_shutdown
    def close_shop() -> None:
        order.append("close")

    @app.job("greet")
    async def greet() -> None:
        order.append("greet")

    async with app.test() as t:
        await t.drain()

    assert ["open", "greet", "close"] == order


async def test_hooks_are_called_one_after_the_other_those_of_groups_where_they_are_included() -> (
    None
):
    app, mail, order = App("shop"), Group(), []

    def declare(group: Group, name: str) -> None:
        @group.on_startup
        async def note() -> None:
            await anyio.lowlevel.checkpoint()
            order.append(name)

    declare(app, "first")
    declare(mail, "second")
    app.include(mail)
    declare(app, "third")
    async with app.test():
        assert ["first", "second", "third"] == order


async def test_a_hook_that_runs_once_is_called_at_each_boot_of_a_single_process() -> None:
    app, calls = App("shop"), []

    @app.on_startup(once=True)
    async def migrate() -> None:
        calls.append("migrate")

    for _ in range(2):
        async with app.test():
            pass

    assert ["migrate"] * 2 == calls


async def test_a_shutdown_hook_may_still_enqueue() -> None:
    app, ids = App("shop"), []

    @app.job("greet")
    async def greet() -> None: ...

    @app.on_shutdown
    async def leave_a_note() -> None:
        ids.append((await greet.enqueue()).id)

    async with app.test():
        pass

    assert 1 == len(ids)


async def test_it_is_too_late_for_hooks_once_the_app_has_started() -> None:
    app = App("shop")
    async with app.test():
        for declare in (app.on_startup, app.on_shutdown, app.on("job.done")):
            with pytest.raises(DeclarationError, match="has started already"):
                declare(lambda *event: None)
