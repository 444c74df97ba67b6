"""The pools of an app, and calls that are in hand when the app is left."""

from __future__ import annotations

from pathlib import Path

import anyio

from mega import App
from mega.errors import CpuStopped
from tests.waiting import until


def spin(mark: str) -> None:
    """Say that it runs, and never end."""
    Path(mark).touch()
    while True:
        pass


async def test_an_app_that_is_left_by_a_cancellation_is_closed_all_the_same(
    tmp_path: Path,
) -> None:
    app, mark, ended = App("shop", broker="memory:"), tmp_path / "mark", []
    task = app.cpu_task()(spin)

    async def call() -> None:
        try:
            await task.run(str(mark))
        except CpuStopped:
            ended.append("stopped")

    async with anyio.create_task_group() as outside:
        with anyio.CancelScope() as scope:
            async with app:
                outside.start_soon(call)
                await until(mark.exists, within=30, what="the task to run")
                scope.cancel()
                await anyio.sleep_forever()

    assert ["stopped"] == ended
    async with app:
        assert app.broker_line.startswith("memory:")
