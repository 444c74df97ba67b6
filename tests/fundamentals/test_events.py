"""Events tell what happened. Whoever listens, the work goes on as if nobody did."""

from __future__ import annotations

import anyio
import pytest

from mega import App
from mega.errors import UnknownEvent
from mega.events import (
    Event,
    JobDeadLettered,
    JobDone,
    JobEvent,
    JobStarted,
    ScheduleDone,
    ScheduleRun,
)
from tests.waiting import until


async def test_an_event_is_subscribed_to_by_its_class() -> None:
    app, done = App("shop"), []

    @app.job("email.send")
    async def send_email() -> None: ...

    @app.on(JobDone)
    async def note(event: JobDone) -> None:
        done.append((event.job_id, event.subject, event.attempt))

    async with app.test() as t:
        job = await send_email.enqueue()
        await t.drain()

    assert [(job.id, "email.send", 1)] == done


async def test_an_event_is_subscribed_to_by_its_name() -> None:
    app, dead = App("shop"), []

    @app.job("email.send", retries=0)
    async def send_email() -> None:
        raise ConnectionError("the mail server is away")

    @app.on("job.dlq")
    async def note(event: JobDeadLettered) -> None:
        dead.append(str(event.error))

    async with app.test() as t:
        await send_email.enqueue()
        await t.drain()

    assert ["the mail server is away"] == dead


async def test_a_base_class_stands_for_all_that_derive_from_it() -> None:
    app, jobs, everything = App("shop"), [], []

    @app.job("email.send")
    async def send_email() -> None: ...

    @app.schedule(every=60)
    async def minutely() -> None: ...

    @app.on(JobEvent)
    async def note_job(event: JobEvent) -> None:
        jobs.append(event.kind)

    @app.on(Event)
    async def note(event: Event) -> None:
        everything.append(type(event))

    async with app.test() as t:
        await send_email.enqueue()
        await t.advance(60)

    assert ["job.dispatch", "job.start", "job.done"] == jobs
    assert {JobStarted, JobDone, ScheduleRun, ScheduleDone} < set(everything)


async def test_a_plain_function_can_subscribe() -> None:
    app, done = App("shop"), []

    @app.job("email.send")
    async def send_email() -> None: ...

    @app.on(JobDone)
    def note(event: JobDone) -> None:
        done.append(event.subject)

    async with app.test() as t:
        await send_email.enqueue()
        await t.drain()
        await until(lambda: done, what="the subscriber was called in its thread")

    assert ["email.send"] == done


@pytest.mark.parametrize("name", ["job.dead", "job.Done", "", "*"])
def test_an_unknown_name_is_refused_where_it_is_written(name: str) -> None:
    app = App("shop")
    with pytest.raises(ValueError, match="there is no event") as refused:
        app.on(name)
    assert UnknownEvent is type(refused.value)


def test_an_unknown_name_is_told_with_what_was_meant() -> None:
    app = App("shop")
    with pytest.raises(UnknownEvent) as refused:
        app.on("job.failed")
    assert 'Did you mean "job.fail"?' == refused.value.hint


async def test_a_subscriber_that_raises_harms_nobody() -> None:
    app, done = App("shop"), []

    @app.job("email.send")
    async def send_email(number: int) -> None: ...

    @app.on(JobDone)
    async def broken(event: JobDone) -> None:
        raise ValueError("I am broken")

    @app.on(JobDone)
    async def note(event: JobDone) -> None:
        done.append(event.job_id)

    async with app.test() as t:
        jobs = [await send_email.enqueue(number) for number in range(2)]
        await t.drain()
        assert ["done", "done"] == [record.state for record in t.jobs]

    assert [job.id for job in jobs] == done


async def test_a_subscriber_that_is_slow_keeps_no_job_waiting() -> None:
    app, done, may_go_on = App("shop"), [], anyio.Event()

    @app.job("email.send")
    async def send_email(number: int) -> None: ...

    @app.on(JobDone)
    async def slow(event: JobDone) -> None:
        await may_go_on.wait()
        done.append(event.job_id)

    async with app.test() as t:
        jobs = [await send_email.enqueue(number) for number in range(3)]
        await t.drain()
        assert ["done"] * 3 == [record.state for record in t.jobs]
        assert [] == done
        may_go_on.set()

    assert [job.id for job in jobs] == done
