"""Dead letters: refused ones are kept in hand, floods are bounded, and they can be sent back."""

from __future__ import annotations

import os
from typing import Any

import pytest
from nats.js.api import DiscardPolicy, StreamConfig

from mega import App, DeadLetter, JobContext
from mega.dead_letters import DeadLetters, Letter
from mega.events import JobDeadLettered, JobFailed, JobStarted
from tests.cases.onlooker import Onlooker, stream_of
from tests.cases.served import Served, serving
from tests.unit.adapters.nats.asking import until_answer
from tests.waiting import until


def refusing(subject: str) -> StreamConfig:
    """A stream of dead letters in which none fits."""
    return StreamConfig(
        name=f"{stream_of(subject)}_DLQ",
        subjects=[f"{subject}.dlq"],
        max_bytes=1,
        discard=DiscardPolicy.NEW,
    )


def refusals(served: Served) -> list[JobFailed]:
    return [event for event in served.those(JobFailed) if event.phase == "dead_letter"]


def declare(broker: str, subject: str, *, provision: bool = True, **options: Any) -> App[None]:
    app = App("cases", broker=broker, provision=provision)

    @app.job(subject, retries=0, **options)
    async def fail(number: int) -> None:
        raise ConnectionError("the mail server is away")

    return app


@pytest.mark.parametrize("is_tracked", [True, False])
async def test_a_letter_that_is_refused(
    broker: str, subject: str, onlooker: Onlooker, is_tracked: bool
) -> None:
    """dlq-01: the job stays until its letter is stored, once, with the error of its run."""
    app = declare(broker, subject, track=is_tracked)
    manager = onlooker.client.jsm()
    await manager.add_stream(refusing(subject))
    async with serving(app) as served:
        await app.enqueue(subject, 1)
        await until(lambda: len(refusals(served)) >= 2, what="two refusals")
        assert [] == await onlooker.letters(subject)
        assert 1 == len(await onlooker.jobs(subject))

        await manager.update_stream(StreamConfig(**vars(refusing(subject)) | {"max_bytes": -1}))
        await served.wait_for(JobDeadLettered)
        (letter,) = await onlooker.wait_for_dead_letters(subject)
        await onlooker.wait_until_empty(subject)

    assert 1 == len(served.those(JobStarted))
    assert ("retries", "the mail server is away") == (letter["reason"], letter["error"])


async def test_a_stream_of_letters_that_nobody_may_create(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """dlq-01: without provision the missing stream is waited for."""
    async with declare(broker, subject) as producer:
        await producer.enqueue(subject, 1)
    async with serving(declare(broker, subject, provision=False)) as served:
        await until(lambda: refusals(served), what="a refusal")
        created = StreamConfig(name=f"{stream_of(subject)}_DLQ", subjects=[f"{subject}.dlq"])
        await onlooker.client.jsm().add_stream(created)
        (letter,) = await onlooker.wait_for_dead_letters(subject)
        await onlooker.wait_until_empty(subject)

    assert "retries" == letter["reason"]


async def test_a_worker_that_leaves_while_its_letter_is_refused(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """dlq-01: a refusal does not hold up a drain, and the next worker's letter has the error."""
    app, manager = declare(broker, subject), onlooker.client.jsm()
    await manager.add_stream(refusing(subject))
    async with serving(app, drain_timeout=60) as served:
        await app.enqueue(subject, 1)
        await until(lambda: refusals(served), what="a refusal")
    assert 1 == len(await onlooker.jobs(subject))

    await manager.delete_stream(f"{stream_of(subject)}_DLQ")
    async with serving(app) as served:
        (letter,) = await onlooker.wait_for_dead_letters(subject)
        await onlooker.wait_until_empty(subject)
    assert [] == served.those(JobStarted)
    assert ("retries", 1) == (letter["reason"], letter["attempts"])
    assert "ConnectionError: the mail server is away" == letter["error"]


async def test_the_server_never_gives_up_a_message(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """dlq-04: the consumer has no limit of its own, and a letter is made of the delivered job."""
    async with serving(declare(broker, subject)):
        consumer = await onlooker.client.jsm().consumer_info(stream_of(subject), "workers")
    assert -1 == consumer.config.max_deliver


async def test_a_flood_of_dead_letters(broker: str, subject: str, onlooker: Onlooker) -> None:
    """dlqgrow-01: over the limit the oldest letters go, and the queue is not held up."""
    app, count, limit = App("cases", broker=broker), 300, 64 * 1024

    @app.job(subject, retries=0, concurrency=20, dead_letter=DeadLetter(max_bytes=limit))
    async def fail(text: str) -> None:
        raise ValueError("no")

    async with serving(app) as served:
        for number in range(count):
            await fail.enqueue(f"{number} " + "x" * 1000)
        await served.wait_for(JobDeadLettered, count, within=30)
        await onlooker.wait_until_empty(subject)
        info = await onlooker.client.jsm().stream_info(f"{stream_of(subject)}_DLQ")

    assert 0 < info.state.messages < count
    assert info.state.bytes <= limit
    assert [] == refusals(served)


async def test_the_record_of_a_dead_job(broker: str, subject: str, onlooker: Onlooker) -> None:
    """dlqgrow-03: with its dead letter a job's record is `failed`, with the error."""
    app = declare(broker, subject)
    async with serving(app):
        job = await app.enqueue(subject, 1)
        record = await job.wait(timeout=10)
        # Whoever learns that a job has failed finds the letter.
        assert 1 == len(await onlooker.letters(subject))

    assert ("failed", 1) == (record.state, record.attempt)
    assert "ConnectionError: the mail server is away" == record.error


@pytest.mark.parametrize("size", [1024 * 1024 - 1024, 1024 * 1024])
async def test_a_body_of_noise_that_fills_a_message(
    broker: str, subject: str, onlooker: Onlooker, size: int
) -> None:
    """dlq-01: a letter that fits into no message is stored in parts; no byte of it is lost."""
    app, body = declare(broker, subject), os.urandom(size)
    async with serving(app) as served:
        await onlooker.publish(subject, body)
        await served.wait_for(JobDeadLettered)
        await onlooker.wait_until_empty(subject)
        (letter,) = await app.dead_letters(subject).list()
        assert body == letter.envelope.body
        assert "payload" == letter.envelope.reason

        if size < 1024 * 1024 - 1000:  # a job that is sent back needs room for headers
            assert await app.dead_letters(subject).requeue(letter)
            await served.wait_for(JobDeadLettered, 2)
            (again,) = await app.dead_letters(subject).list()
            assert body == again.envelope.body
        await app.dead_letters(subject).purge()
        assert [] == await onlooker.letters(subject)


async def the_only(letters: DeadLetters) -> Letter:
    async def look() -> list[Letter]:
        return await letters.list()

    (letter,) = await until_answer(look, lambda found: len(found) == 1, what="one dead letter")
    return letter


async def test_a_job_that_is_sent_back_three_times(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """requeue-01, requeue-02: the same job with all its retries, and each death is remembered."""
    app, seen, job_id = App("cases", broker=broker), [], subject.replace(".", "-")

    @app.job(subject, retries=2, backoff=0)
    async def fail(payload: dict[str, Any], ctx: JobContext) -> None:
        seen.append((ctx.id, ctx.attempt, dict(ctx.headers), ctx.enqueued_at))
        raise ConnectionError("the mail server is away")

    async with serving(app) as served:
        await app.enqueue(subject, {"to": "ada", "n": [1, 2]}, id=job_id, headers={"Tenant": "a"})
        letters = app.dead_letters(fail)
        bodies = []
        for round_number in (1, 2, 3):
            await served.wait_for(JobDeadLettered, round_number)
            letter = await the_only(letters)
            bodies.append(letter.envelope.body)
            assert round_number == len(letter.envelope.deaths)
            if round_number < 3:
                assert await letters.requeue(letter)
                assert not await letters.requeue(letter)
        await onlooker.wait_until_empty(subject)
        record = await onlooker.record(job_id)

    assert [1, 2, 3] * 3 == [attempt for _, attempt, _, _ in seen]
    assert {(job_id, "a")} == {(its_id, headers["Tenant"]) for its_id, _, headers, _ in seen}
    assert 1 == len({enqueued_at for _, _, _, enqueued_at in seen})
    assert 1 == len(set(bodies))
    assert ["retries"] * 3 == [death.reason for death in letter.envelope.deaths]
    assert [3] * 3 == [death.attempts for death in letter.envelope.deaths]
    assert record is not None
    assert ("failed", 2) == (record["state"], len(record["earlier_deaths"]))


async def test_a_job_that_is_sent_back_and_succeeds(broker: str, subject: str) -> None:
    """requeue-02: sent back, it is a job like any other, and its record goes on from there."""
    app, is_mended = App("cases", broker=broker), False

    @app.job(subject, retries=0)
    async def work(number: int) -> int:
        if not is_mended:
            raise ConnectionError
        return 2 * number

    async with serving(app) as served:
        job = await work.enqueue(21)
        await served.wait_for(JobDeadLettered)
        is_mended = True
        assert await app.dead_letters(work).requeue(await the_only(app.dead_letters(work)))
        assert 42 == await job.result(timeout=10)
        assert [] == await app.dead_letters(work).list()


async def test_what_is_no_letter_is_left_alone(
    broker: str, subject: str, onlooker: Onlooker, caplog: pytest.LogCaptureFixture
) -> None:
    """requeue-01: what somebody else put among the letters is neither shown nor lost."""
    app = declare(broker, subject)
    async with serving(app):
        await app.enqueue(subject, 1)
        letter = await the_only(app.dead_letters(subject))
        await onlooker.publish(f"{subject}.dlq", b"what is this")
        assert [letter] == await app.dead_letters(subject).list()
    assert 2 == len(await onlooker.letters(subject))
    assert "what lies at 2 among the dead letters is none" in caplog.text
