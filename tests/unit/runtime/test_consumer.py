"""Deliveries that wait for their turn, and what becomes of them meanwhile."""

from __future__ import annotations

import anyio
import pytest

from mega.runtime.consumer import Consumer
from mega.runtime.turns import Turns
from tests.unit.runtime.stage import Handed, Stage, declare


class Row:
    """A job that notes its runs, behind another job that has the only turn."""

    def __init__(self, stage: Stage) -> None:
        self.runs: list[str] = []
        self.turns = Turns(1)

        async def run() -> None:
            self.runs.append("run")

        self._run = Consumer(declare(run).spec, stage.around, self.turns)._run

    async def wait_with(self, delivery: Handed) -> None:
        await self._run(delivery)

    async def is_free(self) -> bool:
        with anyio.move_on_after(0):
            return await self.turns.take()
        return False


@pytest.mark.parametrize("is_late", [False, True])
async def test_what_lapsed_before_its_turn_is_left_and_its_turn_given_on(
    stage: Stage, is_late: bool
) -> None:
    row, delivery = Row(stage), Handed()
    await row.turns.take()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(row.wait_with, delivery)
        await stage.clock.advance(0)
        delivery.is_late = is_late
        row.turns.give()
    assert ([] if is_late else ["run"]) == row.runs
    assert ([] if is_late else ["ack"]) == delivery.answers
    assert await row.is_free()


async def test_what_waits_when_its_worker_drains_goes_back_unbegun(stage: Stage) -> None:
    row, delivery = Row(stage), Handed()
    await row.turns.take()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(row.wait_with, delivery)
        await stage.clock.advance(0)
        row.turns.close()
    assert ([], ["give back"]) == (row.runs, delivery.answers)
