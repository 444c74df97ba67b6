"""A dead letter that is refused: kept in hand, tried again, and never in the way of a drain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from mega.events import JobFailed
from mega.runtime.execution import Execution
from tests.unit.runtime.stage import AWAY, TOO_LARGE, Handed, Stage, declare


async def broken() -> None:
    raise ValueError("no")


@asynccontextmanager
async def burying(
    stage: Stage, delivery: Handed, *, draining: anyio.Event | None = None, **options: bool
) -> AsyncIterator[anyio.Event]:
    """Run the delivery of a job that fails at once; yield what is set when the run is over."""
    execution, over = (
        Execution(declare(broken, retries=0, **options).spec, stage.around),
        anyio.Event(),
    )
    if draining is not None:
        execution.heed(draining)

    async def run() -> None:
        await execution.run(delivery)
        over.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await stage.clock.advance(0)
        yield over
        tasks.cancel_scope.cancel()


def refusals(stage: Stage) -> int:
    failed = [event for event in stage.events if isinstance(event, JobFailed)]
    return len([event for event in failed if event.phase == "dead_letter"])


@pytest.mark.parametrize("refusal", [AWAY, TOO_LARGE])
async def test_it_is_tried_again_with_growing_waits_until_it_is_stored(
    stage: Stage, refusal: Exception
) -> None:
    delivery = Handed(refusal=refusal)
    async with burying(stage, delivery) as over:
        tries = [refusals(stage)]
        for seconds in (1, 2, 4, 8, 16, 30, 30):
            await stage.clock.advance(seconds)
            tries.append(refusals(stage))
        assert [1, 2, 3, 4, 5, 6, 7, 8] == tries
        assert not over.is_set()

        delivery.refusal = None
        await stage.clock.advance(30)
        assert over.is_set()

    assert ["dead letter"] == delivery.answers
    assert [("retries", "no")] == [(each["reason"], each["error"]) for each in delivery.letters]
    assert "failed" == (await stage.record("1")).state
    assert ["job.fail", "job.dlq"] == stage.kinds[-2:]


async def test_each_refusal_is_an_event_with_its_error(stage: Stage) -> None:
    async with burying(stage, Handed(refusal=AWAY)):
        (failed,) = [event for event in stage.events if isinstance(event, JobFailed)]
    assert ("dead_letter", AWAY) == (failed.phase, failed.error)


async def test_the_record_has_the_error_before_the_letter_is_stored(stage: Stage) -> None:
    async with burying(stage, Handed(refusal=AWAY)):
        record = await stage.record("1")
    assert ("running", "ValueError: no") == (record.state, record.error)
    assert not record.is_final


@pytest.mark.parametrize("is_tracked", [True, False])
async def test_a_worker_that_drains_lets_go_of_it_at_once(stage: Stage, is_tracked: bool) -> None:
    delivery, draining = Handed(refusal=AWAY), anyio.Event()
    async with burying(stage, delivery, draining=draining, track=is_tracked) as over:
        await stage.clock.advance(0.5)
        assert not over.is_set()
        draining.set()
        await stage.clock.advance(0)
        assert over.is_set()
    assert [] == delivery.answers


async def test_a_cancelled_worker_lets_go_of_it_and_the_next_one_tells_the_error(
    stage: Stage,
) -> None:
    async with burying(stage, Handed(refusal=AWAY)):
        pass
    again = Handed(starts=2)
    await Execution(declare(broken, retries=0).spec, stage.around).run(again)
    assert [("retries", "ValueError: no")] == [
        (each["reason"], each["error"]) for each in again.letters
    ]
