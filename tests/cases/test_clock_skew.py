"""Clocks that are minutes wrong: durations count by the server's, ages are never negative."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest

from mega import App, JobContext, ScheduleContext
from mega.events import JobDone, ScheduleRun
from mega.runtime.clock import SystemClock
from tests.cases.served import serving
from tests.waiting import until

SKEWS = [
    pytest.param(120.0, id="two minutes ahead"),
    pytest.param(-120.0, id="two minutes behind"),
]
DELAY = 2.0
#: The server's timers fire up to this much early in our measure; a wrong clock is 120 s off.
EARLY = 0.5
WITHIN = 30.0


class WrongClock(SystemClock):
    """The clock of a machine whose wall clock is wrong; its monotonic one is not."""

    def __init__(self, seconds: float) -> None:
        self.skew = timedelta(seconds=seconds)

    def now(self) -> datetime:
        return super().now() + self.skew


async def starts_after_its_delay(
    broker: str, subject: str, *, producer: WrongClock, worker: WrongClock
) -> None:
    """Enqueue with a delay by one machine and run it on another; see that it keeps the delay."""
    sending, serving_app = App("producer", broker=broker), App("worker", broker=broker)
    started: list[float] = []

    @serving_app.job(subject)
    async def work() -> None:
        started.append(time.monotonic())

    async with serving(serving_app, clock=worker), sending._opened(clock=producer):
        begun = time.monotonic()
        await sending.enqueue(subject, delay=DELAY)
        await until(lambda: started, within=WITHIN, what="the delayed job")

    assert 1 == len(started)
    assert DELAY - EARLY < started[0] - begun


@pytest.mark.parametrize("seconds", SKEWS)
async def test_a_producer_with_a_wrong_clock(broker: str, subject: str, seconds: float) -> None:
    """skew-01: a delay is a duration, whatever the clock of the machine that enqueues says."""
    await starts_after_its_delay(
        broker, subject, producer=WrongClock(seconds), worker=WrongClock(0)
    )


@pytest.mark.parametrize("seconds", SKEWS)
async def test_a_producer_and_a_worker_that_differ(
    broker: str, subject: str, seconds: float
) -> None:
    """skew-01, skew-02: two clocks that are wrong in opposite directions hold nothing back."""
    await starts_after_its_delay(
        broker, subject, producer=WrongClock(seconds), worker=WrongClock(-seconds)
    )


@pytest.mark.parametrize("seconds", SKEWS)
async def test_a_clock_that_is_set_while_the_app_runs(
    broker: str, subject: str, seconds: float
) -> None:
    """skew-01: a clock that is set after the connection was made is noticed, too."""
    app, clock, started = App("cases", broker=broker), WrongClock(0), []

    @app.job(subject)
    async def work() -> None:
        started.append(time.monotonic())

    async with serving(app, clock=clock):
        await work.enqueue()
        await until(lambda: started, what="the first job")
        clock.skew = timedelta(seconds=seconds)
        begun = time.monotonic()
        await work.enqueue(delay=DELAY)
        await until(lambda: len(started) == 2, within=WITHIN, what="the delayed job")

    assert DELAY - EARLY < started[1] - begun


@pytest.mark.parametrize("seconds", SKEWS)
async def test_a_retry_by_a_worker_with_a_wrong_clock(
    broker: str, subject: str, seconds: float
) -> None:
    """skew-01: a backoff is a duration, too."""
    app, started = App("cases", broker=broker), []

    @app.job(subject, retries=1, backoff=DELAY)
    async def work(ctx: JobContext) -> None:
        started.append(time.monotonic())
        if ctx.attempt == 1:
            raise ConnectionError

    async with serving(app, clock=WrongClock(seconds)):
        await work.enqueue()
        await until(lambda: len(started) == 2, within=WITHIN, what="the retry")

    assert DELAY - EARLY < started[1] - started[0]


@pytest.mark.parametrize("seconds", SKEWS)
async def test_ages_on_a_machine_with_a_wrong_clock(
    broker: str, subject: str, seconds: float
) -> None:
    """skew-02: a worker with a wrong clock holds no job back, and no time is negative."""
    app, lateness = App("cases", broker=broker), []

    @app.job(subject)
    async def work() -> str:
        return "done"

    @app.schedule(every=1, name=subject.replace(".", "-"))
    async def tick(ctx: ScheduleContext) -> None:
        lateness.append(ctx.lateness)

    async with serving(app, role="all", clock=WrongClock(seconds)) as served:
        job = await work.enqueue()
        assert "done" == await job.result(timeout=10)
        record = await job.state()
        await served.wait_for(ScheduleRun, 2)
        (done,) = await served.wait_for(JobDone)
        await until(lambda: len(lateness) >= 2, what="two ticks")

    assert 0 <= done.seconds
    assert all(0 <= late < 60 for late in lateness)
    assert record.started_at is not None
    assert record.ended_at is not None
    assert record.started_at <= record.ended_at
