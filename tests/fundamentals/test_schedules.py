"""A schedule is a function that runs by the clock: by cron text, or every so many seconds."""

from __future__ import annotations

import threading
from datetime import timedelta

import anyio
import pytest
from anyio import from_thread

from mega import App, JobContext, ScheduleContext
from mega.errors import BadCron, BadOption, BadTimezone, UnknownLock
from mega.events import (
    ScheduleFailed,
    ScheduleRun,
)
from mega.testing import EPOCH
from tests.fundamentals.schedules import HOUR, happened


async def test_a_cron_schedule_runs_at_its_times() -> None:
    app, runs = App("shop"), []

    @app.schedule("0 3 * * *", timezone="UTC")
    async def nightly() -> None:
        runs.append(t.clock.now())

    async with app.test() as t:
        await t.advance(30 * HOUR)

    assert [EPOCH + timedelta(hours=3), EPOCH + timedelta(hours=27)] == runs


async def test_its_times_are_those_of_its_zone() -> None:
    app, runs = App("shop"), []

    @app.schedule("0 3 * * *", timezone="Asia/Seoul")
    async def nightly() -> None:
        runs.append(t.clock.now())

    async with app.test() as t:
        await t.advance(24 * HOUR)

    assert [EPOCH + timedelta(hours=18)] == runs


async def test_six_fields_put_the_seconds_first() -> None:
    app, runs = App("shop"), []

    @app.schedule("*/20 * * * * *", timezone="UTC")
    async def often() -> None:
        runs.append(t.clock.monotonic())

    async with app.test() as t:
        await t.advance(60)

    assert [20, 40, 60] == runs


async def test_every_is_a_number_of_seconds_or_a_timedelta() -> None:
    app, runs = App("shop"), []

    @app.schedule(every=30)
    async def half_minutely() -> None:
        runs.append(("30 s", t.clock.monotonic()))

    @app.schedule(every=timedelta(minutes=1))
    async def minutely() -> None:
        runs.append(("60 s", t.clock.monotonic()))

    async with app.test() as t:
        await t.advance(70)

    assert [("30 s", 30), ("30 s", 60), ("60 s", 60)] == sorted(runs)


async def test_a_plain_function_runs_in_a_thread() -> None:
    app, threads, ran = App("shop"), [], anyio.Event()

    @app.schedule(every=60)
    def clean_up() -> None:
        threads.append(threading.current_thread())
        from_thread.run_sync(ran.set)

    async with app.test() as t:
        await t.advance(60)
        await ran.wait()

    assert [False] == [thread is threading.main_thread() for thread in threads]


async def test_the_context_tells_which_tick_this_is() -> None:
    app, told = App("shop"), []

    @app.schedule("0 * * * *", timezone="UTC")
    async def hourly(ctx: ScheduleContext) -> None:
        told.append((ctx.name, ctx.due_at, ctx.lateness))

    async with app.test() as t:
        await t.advance(HOUR)

    assert [("hourly", EPOCH + timedelta(hours=1), 0)] == told


async def test_the_first_start_runs_nothing_that_was_due_before() -> None:
    app, runs = App("shop"), []

    @app.schedule("0 0 1 * *", timezone="UTC")
    async def monthly() -> None:
        runs.append(1)

    async with app.test() as t:
        await t.advance(HOUR)
        assert [] == t.events

    assert [] == runs


async def test_a_schedule_that_fails_goes_on_at_its_next_tick() -> None:
    app, runs = App("shop"), []

    @app.schedule(every=60)
    async def minutely() -> None:
        runs.append(t.clock.monotonic())
        raise ConnectionError("the archive is away")

    async with app.test() as t:
        await t.advance(180)
        assert [ScheduleRun, ScheduleFailed] * 3 == happened(t)

    assert [60, 120, 180] == runs


async def test_a_schedule_over_a_job_enqueues_it_at_each_tick() -> None:
    app, ids = App("shop"), []

    @app.schedule("*/5 * * * *", timezone="UTC", name="reports")
    @app.job("report.send")
    async def send_report(ctx: JobContext) -> None:
        ids.append(ctx.id)

    async with app.test() as t:
        await t.advance(600)
        assert ["done", "done"] == [record.state for record in t.jobs]

    assert 2 == len(set(ids))
    assert all(job_id.startswith("reports:") for job_id in ids)


async def test_a_schedule_over_a_job_gives_each_of_quick_ticks_a_job() -> None:
    app, runs = App("shop"), []

    @app.schedule(every=0.5)
    @app.job("beat")
    async def beat() -> None:
        runs.append(t.clock.monotonic())

    async with app.test() as t:
        await t.advance(2)

    assert [0.5, 1, 1.5, 2] == runs


@pytest.mark.parametrize(
    ("cron", "options", "error"),
    [
        ("nope", {}, BadCron),
        ("61 * * * *", {}, BadCron),
        ("0 0 30 2 *", {}, BadCron),
        ("0 3 * * *", {"timezone": "Asia/Soul"}, BadTimezone),
        ("0 3 * * *", {"every": 5}, BadOption),
        (None, {}, BadOption),
        (None, {"every": 0}, BadOption),
        (None, {"every": 5, "timezone": "UTC"}, BadOption),
        ("0 3 * * *", {"lock": "redis"}, UnknownLock),
        ("0 3 * * *", {"lock": 5}, BadOption),
        ("0 3 * * *", {"overlap": "wait"}, BadOption),
        ("0 3 * * *", {"catch_up": "none"}, BadOption),
        ("0 3 * * *", {"jitter": -1}, BadOption),
        ("0 3 * * *", {"retries": 1.5}, BadOption),
        ("0 3 * * *", {"scope": "replica", "lock": True}, BadOption),
    ],
)
def test_a_mistake_is_refused_where_the_schedule_is_declared(
    cron: str | None, options: dict[str, object], error: type[Exception]
) -> None:
    app = App("shop")
    with pytest.raises(error):
        app.schedule(cron, **options)  # type: ignore[arg-type]
    assert issubclass(error, ValueError)
