"""Random plain expressions at the jumps of many zones, against a replay of Debian's cron."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from mega.cron import CronTimetable
from tests.unit.cron.debian_oracle import Crontab, LocalClock, ticks

EXPRESSIONS_PER_JUMP = 15
TICKS = 20
WINDOW_MINUTES = 36 * 60
JUMPS = {
    "Europe/Berlin": ("2026-03-29T01:00Z", "2026-10-25T01:00Z"),
    "America/New_York": ("2026-03-08T07:00Z", "2026-11-01T06:00Z"),
    "Australia/Lord_Howe": ("2026-04-04T15:00Z", "2026-10-03T15:30Z"),
    "Antarctica/Troll": ("2026-03-29T01:00Z", "2026-10-25T01:00Z"),
    "America/Sao_Paulo": ("2018-11-04T03:00Z", "2018-02-18T02:00Z"),
    "America/St_Johns": ("2005-04-03T03:31Z", "2005-10-30T02:31Z"),
    "Africa/Casablanca": ("2026-02-15T02:00Z", "2026-03-22T02:00Z"),
    "America/Caracas": ("2016-05-01T07:00Z", "2007-12-09T07:00Z"),
    "Pacific/Apia": ("2011-12-30T10:00Z",),
    "Asia/Kathmandu": ("2026-01-01T00:00Z",),
}


def random_field(source: random.Random, low: int, high: int) -> str:
    first = source.randint(low, high)
    last = source.randint(first, high)
    step = source.randint(1, 10)
    choices = ["*", f"*/{step}", str(first), f"{first},{last}", f"{first}-{last}"]
    return source.choice([*choices, f"{first}-{last}/{min(step, high - low + 1)}"])


def random_expression(source: random.Random) -> str:
    days = source.choice(
        ["* * *", "* * *", "* * *", "*/2 * *", "* * 0-6/2", "25-31 * 0", "1-31/2 * 1"]
    )
    return f"{random_field(source, 0, 59)} {random_field(source, 0, 23)} {days}"


@pytest.mark.parametrize(
    ("zone", "jump"), [(zone, jump) for zone, jumps in JUMPS.items() for jump in jumps]
)
def test_ticks_are_those_of_debian_cron_both_ways(zone: str, jump: str) -> None:
    start = datetime.fromisoformat(jump).astimezone(UTC) - timedelta(minutes=WINDOW_MINUTES // 2)
    clock, source = LocalClock(zone, start, WINDOW_MINUTES), random.Random(f"{zone} {jump}")

    for expr in [random_expression(source) for _ in range(EXPRESSIONS_PER_JUMP)]:
        expected = ticks(clock, Crontab(expr))
        timetable = CronTimetable(expr, zone)
        assert (expr, expected[:TICKS]) == (expr, forward(timetable, clock)[:TICKS])
        assert (expr, expected[-TICKS:]) == (expr, backward(timetable, clock)[-TICKS:])


def forward(timetable: CronTimetable, clock: LocalClock) -> list[datetime]:
    found: list[datetime] = []
    tick = timetable.next(clock.start)
    while tick is not None and tick < clock.end and len(found) < TICKS:
        found.append(tick)
        tick = timetable.next(tick)
    return found


def backward(timetable: CronTimetable, clock: LocalClock) -> list[datetime]:
    found: list[datetime] = []
    tick = timetable.previous(clock.end)
    while tick is not None and tick > clock.start and len(found) < TICKS:
        found.insert(0, tick)
        tick = timetable.previous(tick)
    return found
