"""A schedule is a function that runs by the clock: by cron text, or every so many seconds."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import anyio
import pytest
from anyio import from_thread

from mega import App, JobContext, NotConnected, ScheduleContext
from mega.errors import BadCron, BadOption, BadTimezone, UnknownLock
from mega.events import (
    Event,
    ScheduleDone,
    ScheduleEvent,
    ScheduleFailed,
    ScheduleMisfired,
    ScheduleRun,
    ScheduleSkipped,
)
from mega.testing import EPOCH, TestApp

HOUR = 3600


def happened(t: TestApp, *kinds: type[ScheduleEvent]) -> list[type[Event]]:
    return [type(event) for event in t.events if isinstance(event, kinds or ScheduleEvent)]


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


async def test_run_now_runs_once_whatever_the_time() -> None:
    app, told = App("shop"), []

    @app.schedule("0 3 * * *", timezone="UTC")
    async def nightly(ctx: ScheduleContext) -> None:
        told.append(ctx.due_at)

    async with app.test() as t:
        await nightly.run_now()
        await t.advance(0)
        assert [None] == told
        assert [ScheduleRun, ScheduleDone] == happened(t)


async def test_run_now_says_whether_it_ran() -> None:
    app = App("shop")

    @app.schedule("0 3 * * *", timezone="UTC", lock=True)
    async def nightly() -> None:
        assert not await nightly.run_now()  # this run holds the lock

    async with app.test():
        assert await nightly.run_now()


async def test_run_now_raises_what_the_function_raised() -> None:
    app = App("shop")

    @app.schedule("0 3 * * *", timezone="UTC")
    async def nightly() -> None:
        raise ConnectionError("the archive is away")

    async with app.test():
        with pytest.raises(ConnectionError, match="the archive is away"):
            await nightly.run_now()


async def test_run_now_needs_a_running_app() -> None:
    app = App("shop")

    @app.schedule("0 3 * * *", timezone="UTC")
    async def nightly() -> None: ...

    with pytest.raises(NotConnected):
        await nightly.run_now()


async def test_a_schedule_can_be_called_in_place() -> None:
    app = App("shop")

    @app.schedule("0 3 * * *", timezone="UTC")
    async def nightly() -> str:
        return "cleaned"

    assert "cleaned" == await nightly()


def test_next_runs_lists_the_ticks_to_come() -> None:
    app = App("shop")

    @app.schedule("0 3 * * *", timezone="UTC")
    async def nightly() -> None: ...

    before = datetime.now(UTC)
    ticks = nightly.next_runs(3)
    assert before < ticks[0] <= before + timedelta(days=1, minutes=1)
    assert [timedelta(days=1)] * 2 == [later - earlier for earlier, later in pairwise(ticks)]
    assert {(3, 0)} == {(tick.hour, tick.minute) for tick in ticks}


async def test_in_a_test_they_are_those_of_its_clock() -> None:
    app = App("shop")

    @app.schedule("0 3 * * *", timezone="UTC")
    async def nightly() -> None: ...

    async with app.test() as t:
        assert [EPOCH + timedelta(hours=3)] == nightly.next_runs()
        await t.advance(24 * HOUR)
        assert [EPOCH + timedelta(hours=27)] == nightly.next_runs()

    assert nightly.next_runs()[0] < EPOCH


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


async def test_a_tick_that_comes_while_the_last_run_goes_on_is_skipped() -> None:
    app, runs = App("shop"), []

    @app.schedule(every=60)
    async def slow() -> None:
        runs.append(t.clock.monotonic())
        await t.clock.sleep(90)

    async with app.test() as t:
        await t.advance(180)
        skips = [event for event in t.events if isinstance(event, ScheduleSkipped)]

    assert [60, 180] == runs
    assert ["running"] == [skip.reason for skip in skips]
    assert [EPOCH + timedelta(seconds=120)] == [skip.due_at for skip in skips]


async def test_a_lock_keeps_runs_apart_that_are_started_by_hand() -> None:
    app, runs = App("shop"), []

    @app.schedule("0 3 * * *", timezone="UTC", lock=True)
    async def nightly() -> None:
        runs.append("begins")
        await t.clock.sleep(300)
        runs.append("ends")

    async with app.test() as t, anyio.create_task_group() as tasks:
        tasks.start_soon(nightly.run_now)
        await t.advance(200)  # longer than the lock's ttl: it is renewed
        await nightly.run_now()
        assert ["begins"] == runs
        await t.advance(100)
        assert [ScheduleRun, ScheduleSkipped, ScheduleDone] == happened(t)
        await t.advance(0)

    assert ["begins", "ends"] == runs


async def test_a_lock_is_given_up_after_a_failed_run() -> None:
    app, runs = App("shop"), []

    @app.schedule(every=60, lock=True)
    async def minutely() -> None:
        runs.append(t.clock.monotonic())
        raise ConnectionError

    async with app.test() as t:
        await t.advance(60)
        with pytest.raises(ConnectionError):
            await minutely.run_now()

    assert [60, 60] == runs


async def test_a_tick_that_was_missed_runs_once_and_late() -> None:
    app, told = App("shop"), []

    @app.schedule("*/5 * * * *", timezone="UTC")
    async def often(ctx: ScheduleContext) -> None:
        told.append((ctx.due_at, ctx.lateness))

    async with app.test() as t:
        await t.advance(60)
        t.clock.step(HOUR)  # as when the machine was suspended
        await t.advance(30)
        (misfire,) = [event for event in t.events if isinstance(event, ScheduleMisfired)]

    latest = EPOCH + timedelta(hours=1)
    assert [(latest, 90)] == told
    assert (latest, EPOCH + timedelta(minutes=5)) == (misfire.due_at, misfire.missed_since)


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


async def test_run_now_of_a_schedule_over_a_job_enqueues_it() -> None:
    app, runs = App("shop"), []

    @app.schedule("0 3 * * *", timezone="UTC", name="nightly")
    @app.job("report.send")
    async def send_report() -> None:
        runs.append(1)

    async with app.test() as t:
        await send_report.run_now()
        await send_report.run_now()
        await t.drain()

    assert [1, 1] == runs


async def test_a_queued_tick_runs_right_after_the_run_that_it_met() -> None:
    app, runs = App("shop"), []

    @app.schedule(every=60, overlap="queue")
    async def slow() -> None:
        runs.append(t.clock.monotonic())
        await t.clock.sleep(90)

    async with app.test() as t:
        await t.advance(200)

    assert [60, 150] == runs


async def test_runs_may_overlap_where_that_is_wanted() -> None:
    app, runs = App("shop"), []

    @app.schedule(every=60, overlap="allow")
    async def slow() -> None:
        runs.append(t.clock.monotonic())
        await t.clock.sleep(90)

    async with app.test() as t:
        await t.advance(200)

    assert [60, 120, 180] == runs


async def test_missed_ticks_can_all_be_caught_up() -> None:
    app, told = App("shop"), []

    @app.schedule("*/15 * * * *", timezone="UTC", catch_up="all")
    async def often(ctx: ScheduleContext) -> None:
        told.append(ctx.due_at)

    async with app.test() as t:
        await t.advance(60)
        t.clock.step(HOUR)
        await t.advance(30)

    assert [EPOCH + timedelta(minutes=minutes) for minutes in (15, 30, 45, 60)] == told


async def test_missed_ticks_can_be_left_out() -> None:
    app, runs = App("shop"), []

    @app.schedule("0 * * * *", timezone="UTC", catch_up="skip", grace=10)
    async def hourly() -> None:
        runs.append(1)

    async with app.test() as t:
        await t.advance(60)
        t.clock.step(HOUR)
        await t.advance(30)
        assert [ScheduleMisfired] == happened(t)

    assert [] == runs


async def test_jitter_puts_the_start_off_and_leaves_the_tick() -> None:
    app, told = App("shop"), []

    @app.schedule(every=60, jitter=20)
    async def minutely(ctx: ScheduleContext) -> None:
        told.append((ctx.due_at, ctx.lateness))

    async with app.test() as t:
        await t.advance(150)

    (first, delay), (second, same) = told
    assert (EPOCH + timedelta(seconds=60), EPOCH + timedelta(seconds=120)) == (first, second)
    assert 0 < delay < 20
    assert delay == pytest.approx(same)


async def test_a_failed_run_can_be_tried_again_in_place() -> None:
    app, told = App("shop"), []

    @app.schedule(every=60, retries=3)
    async def minutely(ctx: ScheduleContext) -> None:
        told.append(ctx.due_at)
        if len(told) < 3:
            raise ConnectionError("the archive is away")

    async with app.test() as t:
        await t.advance(70)
        assert [ScheduleRun, ScheduleFailed, ScheduleFailed, ScheduleDone] == happened(t)

    assert [EPOCH + timedelta(seconds=60)] * 3 == told


async def test_a_paused_schedule_skips_its_ticks_until_it_is_resumed() -> None:
    app, runs = App("shop"), []

    @app.schedule(every=60)
    async def minutely() -> None:
        runs.append(t.clock.monotonic())

    async with app.test() as t:
        await minutely.pause()
        assert await minutely.is_paused()
        await t.advance(120)
        skips = [event.reason for event in t.events if isinstance(event, ScheduleSkipped)]
        await minutely.resume()
        assert not await minutely.is_paused()
        await t.advance(60)

    assert ["paused", "paused"] == skips
    assert [180] == runs


async def test_a_handle_knows_how_the_last_run_ended() -> None:
    app = App("shop")

    @app.schedule(every=60)
    async def minutely() -> None:
        raise ConnectionError("the archive is away")

    async with app.test() as t:
        assert await minutely.last_run() is None
        await t.advance(60)
        last = await minutely.last_run()

    tick = EPOCH + timedelta(seconds=60)
    assert last is not None
    assert (tick, "ConnectionError: the archive is away") == (last.tick, last.error)
    assert tick + timedelta(seconds=60) == last.next_at


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
