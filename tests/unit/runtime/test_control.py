"""What a handler raises to steer its job."""

from __future__ import annotations

import anyio
import pytest

from mega.control import Reject, Retry, Snooze
from mega.events import JobRetried, JobSnoozed
from mega.runtime.execution import Execution
from mega.testing import EPOCH
from tests.unit.runtime.stage import Handed, Stage, declare


async def test_retry_puts_the_job_off_as_long_as_it_says(stage: Stage) -> None:
    async def send() -> None:
        raise Retry("the server is busy", after=90)

    delivery = Handed()
    await Execution(declare(send).spec, stage.around).run(delivery)
    await stage.clock.advance(0)

    assert ["retry after 90 s"] == delivery.answers
    assert [2] == [copy.attempt for copy in delivery.copies]
    assert "Retry: the server is busy" == (await stage.record("1")).error
    (retried,) = [event for event in stage.events if isinstance(event, JobRetried)]
    assert 90 == retried.delay


@pytest.mark.parametrize("retries", [0, 3])
async def test_reject_buries_the_job_whatever_its_retries(stage: Stage, retries: int) -> None:
    async def send() -> None:
        raise Reject("no such user")

    delivery = Handed()
    await Execution(declare(send, retries=retries).spec, stage.around).run(delivery)
    await stage.clock.advance(0)

    (letter,) = delivery.letters
    assert ("rejected", "no such user", 1) == (
        letter["reason"],
        letter["error"],
        letter["attempts"],
    )
    assert "mega.control.Reject" == letter["error_type"]
    assert "failed" == (await stage.record("1")).state
    assert ["job.start", "job.fail", "job.dlq"] == stage.kinds


async def test_what_retry_on_leaves_out_is_buried_at_once(stage: Stage) -> None:
    async def send() -> None:
        raise ValueError("no")

    delivery = Handed()
    await Execution(declare(send, retry_on=OSError).spec, stage.around).run(delivery)

    assert ["rejected"] == [letter["reason"] for letter in delivery.letters]


async def test_a_snooze_puts_the_job_off_as_the_same_attempt(stage: Stage) -> None:
    async def send() -> None:
        raise Snooze(60, "the shop is closed")

    delivery = Handed()
    await Execution(declare(send, retries=0).spec, stage.around).run(delivery)
    await stage.clock.advance(0)

    assert ["retry after 60 s"] == delivery.answers
    assert [1] == [copy.attempt for copy in delivery.copies]
    record = await stage.record("1")
    assert ("waiting", 1, None) == (record.state, record.attempt, record.error)
    assert record.due_at is not None
    assert 60 == (record.due_at - EPOCH).total_seconds()
    (event,) = [event for event in stage.events if isinstance(event, JobSnoozed)]
    assert ("job.snooze", 60, "the shop is closed") == (event.kind, event.delay, event.reason)


async def test_a_snooze_neither_loses_nor_doubles_the_crashes_before_it(stage: Stage) -> None:
    async def send() -> None:
        raise Snooze(60)

    delivery = Handed(starts=3)
    execution = Execution(declare(send, retries=3).spec, stage.around)
    await execution.run(delivery)
    (copy,) = delivery.copies
    assert 3 == copy.attempt

    again = Handed(headers={"Mega-Id": "1", "Mega-Attempt": "3"})
    await execution.run(again)
    assert [3] == [copy.attempt for copy in again.copies]


@pytest.mark.parametrize(
    ("control", "answer"),
    [
        (Retry("busy", after=7), "retry after 7 s"),
        (Snooze(60), "retry after 60 s"),
        (Reject("no"), "dead letter"),
    ],
)
async def test_it_counts_inside_a_task_group_too(
    stage: Stage, control: Exception, answer: str
) -> None:
    async def child() -> None:
        raise control

    async def send() -> None:
        async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
            outer.start_soon(anyio.sleep_forever)
            inner.start_soon(child)

    delivery = Handed()
    await Execution(declare(send).spec, stage.around).run(delivery)

    assert [answer] == delivery.answers


async def test_a_plain_function_steers_its_job_too(stage: Stage) -> None:
    def send() -> None:
        raise Snooze(60)

    delivery = Handed()
    await Execution(declare(send).spec, stage.around).run(delivery)

    assert ["retry after 60 s"] == delivery.answers


async def test_a_snoozed_job_runs_when_it_is_due(stage: Stage) -> None:
    runs = []

    async def send() -> str:
        runs.append(stage.clock.monotonic())
        if len(runs) < 3:
            raise Snooze(60)
        return "sent"

    async with stage.serving(declare(send, retries=0)):
        await stage.publish()
        await stage.clock.advance(120)
        record = await stage.record("1")

    assert [0, 60, 120] == runs
    assert ("done", 1) == (record.state, record.attempt)
