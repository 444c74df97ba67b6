"""One job's run, from its delivery to exactly one answer, whatever the handler does."""

from __future__ import annotations

import base64
import json
import math
from datetime import timedelta
from typing import Any

import anyio
import pytest
from anyio import from_thread

from mega.context import JobContext
from mega.events import JobDeadLettered, JobRetried
from mega.runtime.execution import Execution
from mega.testing import EPOCH
from tests.unit.runtime.stage import AWAY, Handed, Stage, declare


class Unprintable(Exception):
    """An error of a library whose `__str__` is broken."""

    def __str__(self) -> str:
        raise AttributeError("no response")


class Panic(BaseException):
    """What extensions written in Rust raise."""


ERRORS = [
    ValueError("no"),
    SystemExit(1),
    KeyboardInterrupt(),
    StopAsyncIteration(),
    ExceptionGroup("many", [ValueError("one"), ValueError("two")]),
    BaseExceptionGroup("many", [SystemExit(1), ValueError("two")]),
    Panic(),
    Unprintable(),
    OSError("caf\udce9.txt is not there"),
    ValueError("x" * 100_000),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_whatever_a_handler_raises_is_a_failed_run(
    stage: Stage, error: BaseException
) -> None:
    async def broken() -> None:
        raise error

    async with stage.serving(declare(broken, retries=1)):
        await stage.publish()
        await stage.clock.advance(10)
        assert ["job.start", "job.retry", "job.start", "job.fail", "job.dlq"] == stage.kinds
        (letter,) = stage.letters
        record = await stage.record("1")

    kind = type(error)
    assert f"{kind.__module__}.{kind.__qualname__}" == letter["error_type"]
    assert (record.state, 2) == ("failed", record.attempt)
    assert record.error is not None
    assert record.error.startswith(f"{kind.__name__}:")


@pytest.mark.parametrize("error", [SystemExit(1), StopIteration(), ValueError("no")])
async def test_whatever_a_thread_raises_is_a_failed_run(stage: Stage, error: BaseException) -> None:
    ended = anyio.Event()

    def broken() -> None:
        raise error

    stage.around.hub.subscribe(JobDeadLettered, lambda event: from_thread.run_sync(ended.set))
    async with stage.serving(declare(broken, retries=0)):
        await stage.publish()
        await ended.wait()

    assert 1 == len(stage.letters)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancellation_that_nobody_asked_for_is_a_failed_run(
    stage: Stage, anyio_backend: str
) -> None:
    import asyncio

    async def broken() -> None:
        task = asyncio.ensure_future(asyncio.sleep(math.inf))
        task.cancel()
        await task

    async with stage.serving(declare(broken, retries=0)):
        await stage.publish()
        await stage.clock.advance(0)
        assert 1 == len(stage.letters)


async def test_a_plain_function_that_returns_a_coroutine_is_told_what_to_write(
    stage: Stage,
) -> None:
    async def send() -> None: ...

    def forgetful() -> Any:
        return send()

    ended = anyio.Event()
    stage.around.hub.subscribe(JobDeadLettered, lambda event: from_thread.run_sync(ended.set))
    async with stage.serving(declare(forgetful, retries=0)):
        await stage.publish()
        await ended.wait()

    (letter,) = stage.letters
    assert "'forgetful' returned an awaitable that nobody awaits" in letter["error"]
    assert "Write async def" in letter["error"]


async def test_a_bare_message_of_another_program_is_a_job(stage: Stage) -> None:
    told = []

    async def send(to: str, ctx: JobContext) -> None:
        told.append((to, ctx.id, ctx.attempt, dict(ctx.headers), ctx.enqueued_at))

    job = declare(send)
    await stage.provide(job)
    async with stage.serving(job):
        await stage.broker.publish_raw("email.send", b'"ada@example.org"')
        await stage.clock.advance(0)

    assert [("ada@example.org", "email.send.1", 1, {}, EPOCH)] == told


async def test_a_bare_message_is_retried_under_the_same_id(stage: Stage) -> None:
    told = []

    async def send(ctx: JobContext) -> None:
        told.append((ctx.id, ctx.attempt, ctx.enqueued_at))
        raise ValueError("no")

    job = declare(send, retries=1)
    await stage.provide(job)
    async with stage.serving(job):
        await stage.broker.publish_raw("email.send", b"null")
        await stage.clock.advance(10)

    assert [("email.send.1", 1, EPOCH), ("email.send.1", 2, EPOCH)] == told


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b'{"to": 5}', b"1" * 30, b""])
async def test_a_payload_that_does_not_fit_is_a_dead_letter_at_once(
    stage: Stage, body: bytes
) -> None:
    ran = []

    async def send(to: str) -> None:
        ran.append(to)

    job = declare(send)
    await stage.provide(job)
    async with stage.serving(job):
        await stage.broker.publish_raw("email.send", body)
        await stage.clock.advance(0)
        assert ["job.fail", "job.dlq"] == stage.kinds
        (letter,) = stage.letters

    assert [] == ran
    assert "payload" == letter["reason"]
    if "raw" in letter:
        assert body == base64.b64decode(letter["raw"])
    else:
        assert json.loads(body) == letter["payload"]


HEADERS = [
    {"Mega-Attempt": "two"},
    {"Mega-Attempt": "0"},
    {"Mega-Attempt": "9" * 30},
    {"Mega-Retries": "-1"},
    {"Mega-Retries": "9" * 30},
    {"Mega-Backoff": "{"},
    {"Mega-Backoff": "[" * 100_000},
    {"Mega-Backoff": '{"min": 5}'},
    {"Mega-Backoff": '{"initial": -5}'},
    {"Mega-Enqueued-At": "yesterday"},
    {"Mega-Enqueued-At": "2030-01-01T00:00:00"},
    {"Mega-Enqueued-At": "0001-01-01T00:00:00+14:00"},
    {"Mega-Format": "2"},
]


@pytest.mark.parametrize("headers", HEADERS, ids=lambda h: " ".join(*h.items())[:40])
async def test_headers_that_can_not_be_read_make_a_dead_letter_that_says_so(
    stage: Stage, headers: dict[str, str]
) -> None:
    ran = []

    async def send() -> None:
        ran.append(1)

    delivery = Handed(headers=headers)
    await Execution(declare(send).spec, stage.around).run(delivery)
    await stage.clock.advance(0)

    assert [] == ran
    (letter,) = delivery.letters
    assert "malformed" == letter["reason"]
    assert next(iter(headers)) in letter["error"]
    assert ["job.fail", "job.dlq"] == stage.kinds


@pytest.mark.parametrize("is_tracked", [True, False])
async def test_only_a_tracked_job_leaves_records(stage: Stage, is_tracked: bool) -> None:
    async def send() -> None: ...

    async with stage.serving(declare(send, track=is_tracked)):
        await stage.publish()
        await stage.clock.advance(0)

    assert is_tracked == bool(stage.broker.state.records())
    assert ["job.start", "job.done"] == stage.kinds


async def test_the_record_tells_when_where_and_what(stage: Stage) -> None:
    async def send() -> list[int]:
        await stage.clock.sleep(3)
        return [1, 2]

    async with stage.serving(declare(send)):
        await stage.publish()
        await stage.clock.advance(3)
        record = await stage.record("1")

    assert ("done", 1, "host:1") == (record.state, record.attempt, record.worker)
    assert record.enqueued_at is not None
    assert record.started_at is not None
    assert record.ended_at is not None
    assert 3 == (record.ended_at - record.started_at).total_seconds()
    assert b"[1,2]" == bytes(record.result)
    assert record.is_final


async def test_a_job_whose_worker_died_runs_again_as_the_next_attempt(stage: Stage) -> None:
    told = []

    async def send(ctx: JobContext) -> None:
        told.append((ctx.attempt, ctx.attempts_made))

    delivery = Handed(starts=3)
    await Execution(declare(send).spec, stage.around).run(delivery)
    assert [(3, 2)] == told
    assert ["ack"] == delivery.answers


async def test_a_crash_and_an_error_both_count_as_attempts(stage: Stage) -> None:
    async def send() -> None:
        raise ValueError("no")

    delivery = Handed(starts=2, headers={"Mega-Id": "1", "Mega-Attempt": "2"})
    await Execution(declare(send, retries=3).spec, stage.around).run(delivery)
    assert ["retry after 10 s"] == delivery.answers
    assert [4] == [copy.attempt for copy in delivery.copies]


async def test_a_job_that_is_done_already_is_acknowledged_without_a_run(stage: Stage) -> None:
    ran = []

    async def send() -> None:
        ran.append(1)

    execution = Execution(declare(send).spec, stage.around)
    await execution.run(Handed())
    again = Handed(starts=2)
    await execution.run(again)
    assert [1] == ran
    assert ["ack"] == again.answers


async def test_a_done_job_of_the_same_id_is_another_one(stage: Stage) -> None:
    ran = []

    async def send() -> None:
        ran.append(1)

    execution = Execution(declare(send).spec, stage.around)
    await execution.run(Handed())
    later = Handed(starts=2)
    later.stored_at += timedelta(hours=1)
    await execution.run(later)
    assert [1, 1] == ran


async def test_a_retry_while_the_broker_is_away_leaves_the_job_where_it_is(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async def send() -> None:
        raise ValueError("no")

    delivery = Handed(refusal=AWAY)
    await Execution(declare(send).spec, stage.around).run(delivery)
    await stage.clock.advance(0)
    assert [] == delivery.answers
    assert JobRetried not in [type(event) for event in stage.events]
    assert f"{AWAY}; the job comes back by itself" in caplog.text


async def test_a_copy_for_a_retry_keeps_all_that_the_enqueue_said(stage: Stage) -> None:
    async def send() -> None:
        raise ValueError("no")

    headers = {
        "Mega-Id": "7",
        "Mega-Retries": "9",
        "Mega-Backoff": '{"initial":5,"max":5,"factor":1,"jitter":false}',
        "Mega-Enqueued-At": "2029-12-31T00:00:00+00:00",
        "Tenant": "acme",
    }
    delivery = Handed(headers=headers)
    await Execution(declare(send, retries=0).spec, stage.around).run(delivery)
    assert ["retry after 5 s"] == delivery.answers
    (copy,) = delivery.copies
    assert ("7", 2, 9, {"Tenant": "acme"}) == (copy.id, copy.attempt, copy.retries, copy.headers)
    assert "2029-12-31T00:00:00+00:00" == str(copy.enqueued_at).replace(" ", "T")
