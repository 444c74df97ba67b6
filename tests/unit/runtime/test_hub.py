"""Events on their way: what is logged, who is told, and that nobody can be harmed by it."""

from __future__ import annotations

import functools
import logging
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from mega.events import (
    CpuCrashed,
    Event,
    JobDeadLettered,
    JobDone,
    JobEnqueued,
    JobEvent,
    JobFailed,
    JobRetried,
    JobStarted,
    LockLost,
    ScheduleFailed,
    ScheduleMisfired,
    ScheduleSkipped,
)
from mega.runtime.hub import Hub, describe
from mega.testing import VirtualClock
from tests.waiting import until

TICK = datetime(2030, 1, 1, tzinfo=UTC)
STARTED = JobStarted(job_id="7", subject="email.send")
DONE = JobDone(job_id="7", subject="email.send", seconds=0.25)


@asynccontextmanager
async def running(*subscribers: tuple[type[Event], Any]) -> AsyncIterator[Hub]:
    hub = Hub(list(subscribers))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hub.run)
        yield hub
        hub.close()


async def test_a_subscriber_is_told_of_its_events_in_order() -> None:
    told = []

    async def note(event: Event) -> None:
        told.append(event)

    async with running((JobStarted, note), (JobDone, note)) as hub:
        for event in (STARTED, DONE, STARTED):
            hub.emit(event)

    assert [STARTED, DONE, STARTED] == told


async def test_a_subscriber_that_is_told_less_hears_nothing_else() -> None:
    told = []

    async def note(event: Event) -> None:
        told.append(event)

    async with running((JobDone, note)) as hub:
        hub.emit(STARTED)
        hub.emit(DONE)

    assert [DONE] == told


async def test_subscribers_can_come_late() -> None:
    told = []

    async def note(event: Event) -> None:
        told.append(event)

    async with running() as hub:
        assert not hub.wants(JobDone)
        hub.subscribe(JobEvent, note)
        assert hub.wants(JobDone)
        hub.emit(DONE)

    assert [DONE] == told


async def test_nobody_wants_an_event_without_subscriber_unless_it_is_logged() -> None:
    async with running() as hub:
        wanted = {event for event in (JobEnqueued, JobStarted, JobDone) if hub.wants(event)}
        assert set() == wanted
        assert hub.wants(JobFailed)
        assert hub.wants(ScheduleSkipped)


async def test_all_that_was_emitted_is_told_before_the_end() -> None:
    told = []

    async def slow(event: Event) -> None:
        await anyio.lowlevel.checkpoint()
        told.append(event)

    async with running((JobDone, slow)) as hub:
        for _ in range(100):
            hub.emit(DONE)

    assert [DONE] * 100 == told


async def test_an_event_after_the_end_harms_nobody() -> None:
    async def note(event: Event) -> None: ...

    async with running((Event, note)) as hub:
        pass
    hub.emit(DONE)


async def test_too_many_events_are_dropped_and_counted_in_few_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, may_go_on = [], anyio.Event()

    async def stuck(event: Event) -> None:
        await may_go_on.wait()
        told.append(event)

    monkeypatch.setattr("mega.runtime.subscriber.BACKLOG", 2)
    async with running((JobDone, stuck)) as hub:
        hub.emit(DONE)
        await VirtualClock().advance(0)  # until the first one is with its subscriber
        for _ in range(102):
            hub.emit(DONE)
        may_go_on.set()

    assert [DONE] * 3 == told
    missed = re.findall(r"stuck is 2 events behind and has missed (\d+), the last", caplog.text)
    assert ["1", "2", "4", "8", "16", "32", "64"] == missed


async def test_a_subscriber_that_hangs_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = []

    async def hangs(event: Event) -> None:
        await anyio.sleep_forever()

    async def note(event: Event) -> None:
        told.append(event)

    hub = Hub([(JobDone, hangs), (JobDone, note)])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hub.run)
        for _ in range(3):
            hub.emit(DONE)
        await until(lambda: [DONE] * 3 == told, what="the other one has all three")
        hub.close()
        tasks.cancel_scope.cancel()  # as the session does, some seconds after `close`

    assert "2 events did not reach the subscriber" in caplog.text


async def test_a_plain_subscriber_that_hangs_takes_no_thread_of_another() -> None:
    told, may_go_on = [], threading.Event()

    def hangs(event: Event) -> None:
        may_go_on.wait()

    def note(event: Event) -> None:
        told.append(event)

    subscribers: list[tuple[type[Event], Any]] = [
        *((JobDone, functools.partial(hangs)) for _ in range(50)),  # more than anyio's 40 threads
        (JobDone, note),
    ]
    async with running(*subscribers) as hub:
        hub.emit(DONE)
        await until(lambda: told, what="the last one is told")
        may_go_on.set()


async def test_a_function_that_subscribes_twice_hears_all_in_order() -> None:
    told = []

    async def slow(event: Event) -> None:
        for _ in range(len(told)):
            await anyio.lowlevel.checkpoint()
        told.append(event)

    async with running((JobStarted, slow), (JobDone, slow)) as hub:
        for event in (STARTED, DONE) * 5:
            hub.emit(event)

    assert [STARTED, DONE] * 5 == told


@pytest.mark.parametrize("error", [ValueError("I am broken"), SystemExit(1), KeyboardInterrupt()])
async def test_a_subscriber_that_raises_is_logged_and_called_again(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    told = []

    async def broken(event: Event) -> None:
        told.append(event)
        raise error

    async with running((JobDone, broken)) as hub:
        hub.emit(DONE)
        hub.emit(DONE)

    assert [DONE, DONE] == told
    assert 2 == caplog.text.count("broken, told of job.done, raised")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_subscriber_that_lets_a_cancellation_out_is_called_again(
    anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    import asyncio

    told = []

    async def broken(event: Event) -> None:
        told.append(event)
        raise asyncio.CancelledError

    async with running((JobDone, broken)) as hub:
        hub.emit(DONE)
        hub.emit(DONE)

    assert [DONE, DONE] == told
    assert "broken, told of job.done, raised" in caplog.text


async def test_a_plain_subscriber_that_raises_in_its_thread_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(event: Event) -> None:
        raise ValueError("I am broken")

    async with running((JobDone, broken)) as hub:
        hub.emit(DONE)
        await until(lambda: "I am broken" in caplog.text, what="the error is logged")


ERROR = ValueError("no")
LINES = [
    (
        JobRetried(job_id="7", subject="email.send", attempt=2, error=ERROR, delay=1.23456),
        logging.WARNING,
        "job.retry email.send 7 attempt=2 delay=1.23 s: ValueError: no",
    ),
    (
        JobFailed(job_id="7", subject="email.send", attempt=4, error=ERROR),
        logging.ERROR,
        "job.fail email.send 7 attempt=4 phase=retries: ValueError: no",
    ),
    (
        JobDeadLettered(job_id="7", subject="email.send", attempt=4, error=ERROR),
        logging.WARNING,
        "job.dlq email.send 7 attempt=4: ValueError: no",
    ),
    (
        ScheduleSkipped(name="nightly", due_at=TICK, reason="running", by="host:1"),
        logging.WARNING,
        "schedule.skip nightly due_at=2030-01-01T00:00:00+00:00 reason=running by=host:1",
    ),
    (
        ScheduleSkipped(name="nightly", due_at=TICK, reason="taken", by="host:1"),
        logging.DEBUG,
        "schedule.skip nightly due_at=2030-01-01T00:00:00+00:00 reason=taken by=host:1",
    ),
    (
        ScheduleFailed(name="nightly", due_at=None, error=ERROR),
        logging.ERROR,
        "schedule.fail nightly phase=run: ValueError: no",
    ),
    (
        ScheduleMisfired(name="nightly", due_at=TICK, missed_since=TICK, lateness=90.0),
        logging.WARNING,
        "schedule.misfire nightly due_at=2030-01-01T00:00:00+00:00 "
        "missed_since=2030-01-01T00:00:00+00:00 lateness=90 s",
    ),
    (
        ScheduleMisfired(name="nightly", due_at=None, missed_since=TICK, lateness=11_099.6),
        logging.WARNING,
        "schedule.misfire nightly missed_since=2030-01-01T00:00:00+00:00 lateness=11100 s",
    ),
    (
        JobRetried(job_id="7", subject="email.send", error=ValueError("a\nb"), delay=1e-7),
        logging.WARNING,
        "job.retry email.send 7 attempt=1 delay=0 s: ValueError: a b",
    ),
    (
        LockLost(name="nightly", due_at=None, by="host:2"),
        logging.ERROR,
        "lock.lost nightly by=host:2",
    ),
    (
        CpuCrashed(pool="reports", task="render", pid=71, returncode=-9, recent=1),
        logging.ERROR,
        "cpu.crash reports render pid=71 returncode=-9 recent=1",
    ),
]


@pytest.mark.parametrize(("event", "level", "line"), LINES, ids=lambda value: str(value)[:24])
async def test_what_goes_wrong_is_logged_although_nobody_subscribed(
    caplog: pytest.LogCaptureFixture, event: Event, level: int, line: str
) -> None:
    caplog.set_level(logging.DEBUG, "mega.events")
    async with running() as hub:
        hub.emit(event)
    assert [(level, line)] == [(record.levelno, record.message) for record in caplog.records]


@pytest.mark.parametrize("event", [STARTED, DONE])
async def test_what_goes_well_is_not_logged(caplog: pytest.LogCaptureFixture, event: Event) -> None:
    caplog.set_level(logging.DEBUG, "mega.events")
    async with running() as hub:
        hub.emit(event)
    assert [] == caplog.records


def test_an_error_that_can_not_tell_its_text_is_described_all_the_same() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise AttributeError("no response")

    line = describe(JobFailed(job_id="7", subject="email.send", error=Unprintable()))
    assert line.startswith("job.fail email.send 7 attempt=1 phase=retries: Unprintable: ")
