"""What schedulers rely on: bounds, inverses, refusals, and intervals aligned to the epoch."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest

from mega.cron import CronTimetable, IntervalTimetable, Timetable
from mega.errors import BadCron, BadOption, BadTimezone

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
TIMETABLES: list[Timetable] = [
    CronTimetable("*/5 * * * *", "Europe/Berlin"),
    CronTimetable("30 2 * * *", "Europe/Berlin"),
    IntervalTimetable(90),
    IntervalTimetable(0.25),
    IntervalTimetable(1 / 3),
]


@pytest.mark.parametrize("timetable", TIMETABLES, ids=lambda timetable: timetable.text)
def test_both_directions_are_exclusive_and_inverse(timetable: Timetable) -> None:
    first = timetable.next(NOON)
    assert first is not None
    assert first > NOON
    second = timetable.next(first)
    assert second is not None
    assert second > first
    assert first == timetable.previous(second)
    assert first == timetable.next(first - timedelta(microseconds=1))
    assert first == timetable.previous(first + timedelta(microseconds=1))
    before = timetable.previous(first)
    assert before is not None
    assert before <= NOON


@pytest.mark.parametrize("timetable", TIMETABLES, ids=lambda timetable: timetable.text)
@pytest.mark.parametrize(
    "zone", [UTC, timezone(timedelta(hours=14)), timezone(-timedelta(hours=12))]
)
def test_the_ends_of_time_raise_nothing(timetable: Timetable, zone: timezone) -> None:
    earliest, latest = datetime.min.replace(tzinfo=zone), datetime.max.replace(tzinfo=zone)

    first, last = timetable.next(earliest), timetable.previous(latest)
    assert first is not None
    assert last is not None
    assert timetable.previous(first) is None
    assert timetable.next(last) is None
    assert timetable.previous(earliest) is None
    assert timetable.next(latest) is None


def test_answers_are_in_utc() -> None:
    tick = CronTimetable("0 3 * * *", "Asia/Seoul").next(NOON)

    assert tick is not None
    assert "2026-07-01T18:00:00+00:00" == tick.isoformat()


def test_a_cron_timetable_knows_its_text_and_zone() -> None:
    timetable = CronTimetable("  0 3 * * * ", "Asia/Seoul")

    assert "0 3 * * *" == timetable.text
    assert "Asia/Seoul" == timetable.timezone


def test_no_timezone_is_the_zone_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")

    assert "Asia/Tokyo" == CronTimetable("0 3 * * *").timezone


@pytest.mark.parametrize(
    ("expr", "zone"),
    [
        ("0 0 30 2 *", "UTC"),
        ("0 0 1-4 * +5L", "UTC"),
        ("0 0 12 30 12 * 2011", "Pacific/Apia"),
        ("0 */30 2 29 3 * 2026", "Europe/Berlin"),
    ],
)
def test_a_schedule_without_a_tick_is_refused(expr: str, zone: str) -> None:
    with pytest.raises(BadCron, match="never fires"):
        CronTimetable(expr, zone)


def test_a_schedule_that_is_over_still_has_its_past() -> None:
    timetable = CronTimetable("0 0 0 1 1 * 2020", "UTC")

    assert timetable.next(NOON) is None
    assert datetime(2020, 1, 1, tzinfo=UTC) == timetable.previous(NOON)


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(BadTimezone, match="Europe/Berlin"):
        CronTimetable("0 3 * * *", "Europe/Berln")


def test_intervals_are_aligned_to_the_epoch() -> None:
    start = datetime(2026, 7, 1, 12, 20, 7, tzinfo=UTC)

    assert datetime(2026, 7, 1, 13, tzinfo=UTC) == IntervalTimetable(3600).next(start)
    assert datetime(2026, 7, 1, 12, tzinfo=UTC) == IntervalTimetable(3600).previous(start)
    assert "every 3600 s" == IntervalTimetable(3600).text


@pytest.mark.parametrize("seconds", [0, -1, 0.0001, 367 * 86_400, math.nan, math.inf])
def test_an_interval_outside_its_range_is_refused(seconds: float) -> None:
    with pytest.raises(BadOption, match=r"outside 0\.001 to 31622400 seconds"):
        IntervalTimetable(seconds)
