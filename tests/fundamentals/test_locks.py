"""A lock keeps runs of one schedule apart, in whatever store it is kept."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from mega import App, Group, Lock
from mega.errors import UnknownLock
from mega.events import LockLost, ScheduleDone, ScheduleSkipped

LOCKS = {
    "main": "redis://shop.example:6379/0",
    "vault": [f"redis://lock{number}.example" for number in range(3)],
    "scratch": "memory:",
}


@pytest.mark.parametrize(
    "lock", [True, "default", "main", "vault", "scratch", Lock(ttl=60, store="main")]
)
async def test_a_run_that_goes_on_keeps_others_out(lock: Any) -> None:
    app, runs = App("shop", locks=LOCKS), []

    @app.schedule("0 3 * * *", timezone="UTC", lock=lock)
    async def nightly() -> None:
        runs.append("begins")
        await t.clock.sleep(600)  # longer than any ttl here: the lease is renewed
        runs.append("ends")

    # A test needs no server: `app.test()` keeps all locks in memory.
    async with app.test() as t, anyio.create_task_group() as tasks:
        tasks.start_soon(nightly.run_now)
        await t.advance(300)
        await nightly.run_now()
        await t.advance(300)
        kinds = {type(event) for event in t.events}

    assert ["begins", "ends"] == runs
    assert {ScheduleSkipped, ScheduleDone} < kinds
    assert LockLost not in kinds


async def test_a_lock_that_two_schedules_share_is_known_by_its_key_and_store() -> None:
    app, runs = App("shop", locks=LOCKS), []

    def declare(name: str, lock: Lock) -> Any:
        @app.schedule("0 3 * * *", timezone="UTC", lock=lock, name=name)
        async def run() -> None:
            runs.append(name)
            await t.clock.sleep(60)

        return run

    first = declare("first", Lock(store="main", key="archive"))
    shared = declare("shared", Lock(store="main", key="archive"))
    elsewhere = declare("elsewhere", Lock(store="vault", key="archive"))

    async with app.test() as t, anyio.create_task_group() as tasks:
        for schedule in (first, shared, elsewhere):
            tasks.start_soon(schedule.run_now)
            await t.advance(1)
        await t.advance(60)

    assert ["first", "elsewhere"] == runs


def test_a_store_that_is_not_there_is_refused_on_the_line() -> None:
    app = App("shop", locks=LOCKS)
    with pytest.raises(UnknownLock) as refused:

        @app.schedule("0 3 * * *", timezone="UTC", lock="vualt")
        async def nightly() -> None: ...

    assert 'Did you mean "vault"?' in refused.value.hint


def test_the_store_of_a_group_is_looked_for_when_it_is_included() -> None:
    reports = Group()

    @reports.schedule("0 3 * * *", timezone="UTC", lock="main")
    async def nightly() -> None: ...

    with pytest.raises(UnknownLock):
        App("bare").include(reports)
    App("shop", locks=LOCKS).include(reports)
