"""What is called when a process starts to serve and when it ends, and by how many."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from mega.adapters.memory import MemoryBroker
from mega.declare.registry import Registry
from mega.errors import DuplicateName, LockBackendError
from mega.group import Group
from mega.runtime.hooks import TOGETHER_WITHIN, Hooks
from mega.runtime.hub import Hub
from mega.runtime.surroundings import Surroundings
from mega.testing import VirtualClock


class Cluster:
    """Processes of one app on one broker, which are started and stopped by hand."""

    def __init__(self, registry: Registry, *, app: str = "shop") -> None:
        self.clock = VirtualClock()
        self.broker = MemoryBroker(self.clock)
        self._registry = registry
        self._around = Surroundings(
            app=SimpleNamespace(name=app),
            broker=self.broker,
            hub=Hub([]),
            clock=self.clock,
            worker="host:1",
        )

    async def boot(self, worker: str = "host:1", *, app: str = "shop") -> Hooks:
        around = replace(self._around, worker=worker, app=SimpleNamespace(name=app))
        hooks = Hooks(self._registry, around)
        await hooks.start()
        return hooks


async def test_hooks_are_called_in_order_async_or_not() -> None:
    group, order = Group(), []

    @group.on_startup
    async def first() -> None:
        await anyio.lowlevel.checkpoint()
        order.append("first")

    @group.on_startup
    def second() -> None:
        order.append("second")

    @group.on_startup()
    async def third() -> None:
        order.append("third")

    await Cluster(group.registry).boot()
    assert ["first", "second", "third"] == order


async def test_one_that_raises_ends_the_start_and_says_which_it_was() -> None:
    group, order = Group(), []

    @group.on_startup
    async def connect() -> None:
        raise LookupError("no database")

    group.on_startup(lambda: order.append("never"))
    with pytest.raises(LookupError, match="no database") as raised:
        await Cluster(group.registry).boot()
    (note,) = raised.value.__notes__
    assert "start-up hook test_hooks.py:" in note
    assert note.endswith(" connect.")
    assert [] == order


def once() -> tuple[Registry, list[str]]:
    group, calls = Group(), []

    @group.on_startup(once=True)
    async def migrate() -> None:
        calls.append("migrate")

    return group.registry, calls


async def test_once_is_called_by_one_of_the_processes_that_start_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "mega")
    registry, calls = once()
    cluster = Cluster(registry)
    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(cluster.boot, f"host:{number}")
    assert ["migrate"] == calls
    assert 4 == caplog.text.count("migrate is called by host:")


async def test_once_is_called_again_on_a_later_boot_beside_those_that_run() -> None:
    registry, calls = once()
    cluster = Cluster(registry)
    await cluster.boot("host:1")
    await cluster.clock.advance(TOGETHER_WITHIN / 2)
    await cluster.boot("host:2")
    assert ["migrate"] == calls
    await cluster.clock.advance(TOGETHER_WITHIN)
    await cluster.boot("host:3")
    assert ["migrate"] * 2 == calls


async def test_once_is_called_again_on_a_boot_right_after_the_end() -> None:
    registry, calls = once()
    cluster = Cluster(registry)
    for _ in range(3):
        hooks = await cluster.boot()
        await hooks.end()
    assert ["migrate"] * 3 == calls


async def test_once_is_called_again_after_a_boot_whose_hook_failed() -> None:
    group, calls = Group(), []

    @group.on_startup(once=True)
    async def migrate() -> None:
        calls.append("migrate")
        if len(calls) == 1:
            raise LookupError

    cluster = Cluster(group.registry)
    hooks = Hooks(group.registry, cluster._around)
    with pytest.raises(LookupError):
        await hooks.start()
    await hooks.end()  # as the supervisor does
    await cluster.boot()
    assert ["migrate"] * 2 == calls


async def test_two_apps_on_one_broker_have_hooks_of_their_own() -> None:
    registry, calls = once()
    cluster = Cluster(registry)
    await cluster.boot(app="shop")
    await cluster.boot(app="office")
    assert ["migrate"] * 2 == calls


def test_two_of_one_name_are_refused_with_both_places() -> None:
    app, group = Group(), Group()

    def declare(group: Group, *, is_once: bool) -> None:
        @group.on_startup(once=is_once)
        async def migrate() -> None: ...

    declare(app, is_once=True)
    declare(app, is_once=False)
    declare(group, is_once=True)
    with pytest.raises(DuplicateName, match='are called "migrate"') as refused:
        app.include(group)
    assert 2 == refused.value.where.count("migrate")


async def test_a_store_that_is_away_ends_the_start() -> None:
    registry, calls = once()
    cluster = Cluster(registry)

    async def claim(*args: Any, **kwargs: Any) -> Any:
        raise LockBackendError("it is away.")

    cluster.broker.claims.claim = claim  # type: ignore[method-assign]
    with pytest.raises(LockBackendError):
        await cluster.boot()
    assert [] == calls


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt()])
async def test_a_shutdown_hook_that_raises_keeps_no_other_from_its_call(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    group, order = Group(), []

    @group.on_shutdown
    async def broken() -> None:
        raise error

    @group.on_shutdown
    def close() -> None:
        order.append("closed")

    hooks = await Cluster(group.registry).boot()
    await hooks.end()
    assert ["closed"] == order
    assert "the shutdown hook test_hooks.py:" in caplog.text


async def test_a_shutdown_hook_that_hangs_can_be_cancelled() -> None:
    group = Group()
    group.on_shutdown(anyio.sleep_forever)
    hooks = await Cluster(group.registry).boot()
    with anyio.move_on_after(0.01) as scope:
        await hooks.end()
    assert scope.cancelled_caught
