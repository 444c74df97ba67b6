"""The two rules at a jump of the clock, told with one zone and a few schedules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mega.cron import CronTimetable

SPRING = datetime(2026, 3, 29, tzinfo=UTC)  # in Berlin 02:00 to 03:00 is skipped at 01:00 UTC
AUTUMN = datetime(2026, 10, 25, tzinfo=UTC)  # in Berlin 02:00 to 03:00 comes twice, from 00:00 UTC


def times(expr: str, day: datetime, zone: str = "Europe/Berlin") -> list[str]:
    """Return the UTC times of the ticks on `day` before 03:00 UTC."""
    timetable, found = CronTimetable(expr, zone), []
    tick = timetable.next(day - timedelta(seconds=1))
    while tick is not None and tick < day + timedelta(hours=3):
        found.append(tick.strftime("%H:%M"))
        tick = timetable.next(tick)
    return found


@pytest.mark.parametrize("expr", ["30 2 * * *", "0 30 2 * * *", "0,30 2 * * *", "15 2-2 * * *"])
def test_a_skipped_fixed_time_runs_once_when_the_gap_ends(expr: str) -> None:
    assert ["01:00"] == times(expr, SPRING)


@pytest.mark.parametrize("expr", ["30 2 * * *", "0 30 2 * * *"])
def test_a_repeated_fixed_time_runs_in_the_first_pass_only(expr: str) -> None:
    assert ["00:30"] == times(expr, AUTUMN)


def test_a_wildcard_schedule_follows_real_time_through_a_gap() -> None:
    assert ["00:00", "00:30", "01:00", "01:30", "02:00", "02:30"] == times("*/30 * * * *", SPRING)
    assert [] == times("*/10 2 * * *", SPRING)


def test_a_wildcard_schedule_runs_in_both_passes() -> None:
    assert ["00:00", "00:30", "01:00", "01:30"] == times("*/30 2 * * *", AUTUMN)


def test_the_day_that_apia_skipped_is_not_made_up_for() -> None:
    timetable = CronTimetable("0 12 30 12 *", "Pacific/Apia")

    tick = timetable.next(datetime(2011, 12, 1, tzinfo=UTC))

    assert datetime(2012, 12, 29, 22, tzinfo=UTC) == tick


def test_a_start_between_two_seconds_misses_no_tick_of_the_second_pass() -> None:
    timetable = CronTimetable("*/30 * * * *", "Europe/Berlin")
    start = datetime(2026, 10, 25, 0, 30, 0, 500_000, tzinfo=UTC)

    assert datetime(2026, 10, 25, 1, 0, tzinfo=UTC) == timetable.next(start)
    assert datetime(2026, 10, 25, 0, 30, tzinfo=UTC) == timetable.previous(start)


def test_a_repeat_of_seven_hours_is_walked_whole() -> None:
    timetable = CronTimetable("0 * * * *", "Antarctica/Vostok")
    jump = datetime(1994, 1, 31, 17, tzinfo=UTC)

    ticks = [timetable.next(jump + timedelta(hours=hour)) for hour in range(-9, 9)]

    assert [jump + timedelta(hours=hour + 1) for hour in range(-9, 9)] == ticks
