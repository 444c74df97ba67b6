"""Apps that share a lock in Redis and nothing else, on either event loop."""

from __future__ import annotations

from typing import Any

import anyio

from mega import App
from mega.events import ScheduleDone, ScheduleRun, ScheduleSkipped
from tests.cases.served import serving
from tests.redis_server import RedisServer
from tests.unit.adapters.redis.asking import kept

KEY = "mega:schedule:nightly"


async def test_two_apps_share_a_lock(server: RedisServer) -> None:
    locks, may_end = {"main": server.url}, anyio.Event()

    def new_app() -> tuple[App[Any], Any]:
        app = App("shop", broker="memory:", locks=locks)

        @app.schedule("0 3 1 1 *", timezone="UTC", lock="main")
        async def nightly() -> None:
            await may_end.wait()

        return app, nightly

    (app, nightly), (other_app, other_nightly) = new_app(), new_app()
    async with (
        serving(app, role="scheduler") as one,
        serving(other_app, role="scheduler") as other,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(nightly.run_now)
        await one.wait_for(ScheduleRun)
        holder = kept(server, KEY)["owner"]
        await other_nightly.run_now()
        (skip,) = await other.wait_for(ScheduleSkipped)
        assert ("running", holder) == (skip.reason, skip.by)

        may_end.set()
        await one.wait_for(ScheduleDone)
        await other_nightly.run_now()
        await other.wait_for(ScheduleDone)
