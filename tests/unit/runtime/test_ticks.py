"""Which ticks are due, on a wall clock that steps, stands still and starts anew."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mega.cron.timetable import CronTimetable, IntervalTimetable, Timetable
from mega.runtime.scheduler import LONGEST_SLEEP
from mega.runtime.ticks import decide

SECOND = timedelta(seconds=1)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


class Run:
    """What a scheduler's loop started: `(when, tick)` pairs, and how often it woke."""

    def __init__(self) -> None:
        self.started: list[tuple[datetime, datetime]] = []
        self.missed_since: list[datetime | None] = []
        self.wakes = 0

    @property
    def ticks(self) -> list[datetime]:
        return [tick for _, tick in self.started]


def simulate(
    timetable: Timetable,
    start: datetime,
    seconds: float,
    *,
    last: datetime | None = None,
    steps: Mapping[float, float] | None = None,
    suspended: Mapping[float, float] | None = None,
    **options: Any,
) -> Run:
    """Run the loop for that many seconds of a timer.

    `steps` moves the wall clock at a second of the timer, while the loop sleeps on;
    `suspended` stops the timer there, while the wall clock goes on.
    """
    run, passed, moved = Run(), 0.0, timedelta(0)
    jumps = sorted([*(steps or {}).items(), *(suspended or {}).items()])
    last = last or start
    while passed < seconds:
        run.wakes += 1
        now = start + passed * SECOND + moved
        decision = decide(timetable, last, now, **options)
        last = decision.last
        run.started += [(now, tick) for tick in decision.ticks]
        if decision.latest is not None:
            run.missed_since.append(decision.missed_since)
        if decision.following is None:
            break
        sleep = (decision.following - now).total_seconds()
        passed += min(max(sleep, 0.001), LONGEST_SLEEP)
        while jumps and jumps[0][0] <= passed:
            moved += jumps.pop(0)[1] * SECOND
    return run


def cron(expr: str, timezone: str = "UTC") -> CronTimetable:
    return CronTimetable(expr, timezone)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_tick_runs_exactly_on_time() -> None:
    run = simulate(cron("* * * * *"), at("2026-01-01T00:00:30"), 200)
    expected = [NEW_YEAR + timedelta(minutes=minute) for minute in (1, 2, 3)]
    assert [(tick, tick) for tick in expected] == run.started
    assert [None] * 3 == run.missed_since


def test_the_first_start_runs_nothing_of_the_past() -> None:
    # https://github.com/sidekiq-cron/sidekiq-cron/issues/73
    run = simulate(cron("0 0 1 * *"), at("2026-01-05T12:00:00"), 3600)
    assert [] == run.started


def test_a_tick_at_the_instant_of_the_first_start_is_not_run() -> None:
    run = simulate(cron("0 0 1 * *"), NEW_YEAR, 3600)
    assert [] == run.started


def test_a_tick_that_fell_into_a_restart_is_caught_up() -> None:
    # https://github.com/sidekiq-cron/sidekiq-cron/issues/111
    start, last = at("2026-01-01T15:00:20"), at("2025-12-31T15:00:00")
    run = simulate(cron("0 15 * * *"), start, 60, last=last)
    assert [(start, at("2026-01-01T15:00:00"))] == run.started
    assert [None] == run.missed_since


def test_a_tick_that_is_late_by_a_moment_runs() -> None:
    # https://github.com/agronholm/apscheduler/issues/292
    start = at("2026-01-02T00:00:01.776")
    run = simulate(cron("0 0 * * *"), start, 5, last=NEW_YEAR)
    assert [at("2026-01-02T00:00:00")] == run.ticks


def test_of_many_missed_ticks_the_latest_runs_once() -> None:
    start = at("2026-01-01T00:10:30")
    run = simulate(cron("* * * * *"), start, 20, last=NEW_YEAR)
    assert [(start, at("2026-01-01T00:10:00"))] == run.started
    assert [at("2026-01-01T00:01:00")] == run.missed_since


def test_a_clock_set_back_a_minute_after_a_tick_does_not_repeat_it() -> None:
    # https://github.com/quartz-scheduler/quartz/issues/463
    run = simulate(cron("* * * * *"), at("2026-01-01T00:00:30"), 400, steps={35: -60})
    assert [NEW_YEAR + timedelta(minutes=minute) for minute in range(1, 7)] == run.ticks


def test_a_clock_set_back_two_minutes_repeats_none_of_many_ticks() -> None:
    # https://github.com/agronholm/apscheduler/issues/351
    run = simulate(cron("*/10 * * * * *"), at("2026-01-01T00:00:05"), 300, steps={31: -120})
    expected = [NEW_YEAR + timedelta(seconds=10 * number) for number in range(1, 19)]
    assert expected == run.ticks


def test_a_clock_set_back_half_a_day_is_a_correction_and_runs_go_on() -> None:
    # https://github.com/dbader/schedule/issues/323
    run = simulate(cron("0 * * * *"), at("2026-01-01T14:00:30"), 7300, steps={60: -12 * 3600})
    assert [at("2026-01-01T03:00:00"), at("2026-01-01T04:00:00")] == run.ticks


def test_a_clock_set_forward_an_hour_runs_the_latest_tick_once() -> None:
    # https://github.com/node-schedule/node-schedule/issues/431
    run = simulate(cron("*/5 * * * *"), at("2026-01-01T00:01:00"), 700, steps={10: 3600})
    expected = [at(f"2026-01-01T01:{minute:02}:00") for minute in (0, 5, 10)]
    assert expected == run.ticks
    assert [at("2026-01-01T00:05:00"), None, None] == run.missed_since


def test_a_clock_set_forward_ten_years_costs_few_steps() -> None:
    # https://github.com/agronholm/apscheduler/issues/526
    run = simulate(cron("* * * * * *"), NEW_YEAR, 12, steps={5: 315_360_000})
    assert run.wakes < 20
    assert sorted(set(run.ticks)) == run.ticks


def test_a_machine_that_was_suspended_runs_the_latest_missed_tick() -> None:
    # https://github.com/agronholm/apscheduler/issues/794
    run = simulate(cron("*/5 * * * *"), at("2026-01-01T00:04:00"), 800, suspended={31: 500})
    expected = [at(f"2026-01-01T00:{minute:02}:00") for minute in (10, 15, 20, 25)]
    assert expected == run.ticks
    assert at("2026-01-01T00:05:00") == run.missed_since[0]


def test_an_hourly_job_runs_in_both_passes_of_the_hour_that_autumn_repeats() -> None:
    run = simulate(cron("0 * * * *", "Europe/Berlin"), at("2026-10-24T23:30:00"), 4 * 3600)
    expected = [at("2026-10-25T00:00:00") + timedelta(hours=hour) for hour in range(4)]
    assert expected == run.ticks


def test_a_daily_job_runs_once_in_the_hour_that_autumn_repeats() -> None:
    run = simulate(cron("30 2 * * *", "Europe/Berlin"), at("2026-10-24T23:30:00"), 4 * 3600)
    assert [at("2026-10-25T00:30:00")] == run.ticks


def test_an_interval_ticks_at_multiples_of_its_length() -> None:
    run = simulate(IntervalTimetable(45), at("2026-01-01T00:00:10"), 130)
    assert [NEW_YEAR + timedelta(seconds=seconds) for seconds in (45, 90, 135)] == run.ticks


def test_a_schedule_that_has_ended_is_not_asked_again() -> None:
    decision = decide(cron("0 0 0 1 1 * 2025"), NEW_YEAR, NEW_YEAR + SECOND)
    assert ((), None) == (decision.ticks, decision.following)


def test_the_last_tick_of_all_runs_and_is_the_end() -> None:
    decision = decide(cron("0 0 0 1 1 * 2026"), NEW_YEAR - SECOND, NEW_YEAR)
    assert ((NEW_YEAR,), None) == (decision.ticks, decision.following)


@pytest.mark.parametrize("hours", [1, 2, 3])
def test_a_step_back_of_up_to_three_hours_keeps_the_last_tick(hours: int) -> None:
    now = NEW_YEAR - timedelta(hours=hours)
    assert NEW_YEAR == decide(cron("* * * * *"), NEW_YEAR, now).last


def test_a_longer_step_back_takes_the_new_time_as_the_truth() -> None:
    now = NEW_YEAR - timedelta(hours=3, seconds=1)
    assert now == decide(cron("* * * * *"), NEW_YEAR, now).last
