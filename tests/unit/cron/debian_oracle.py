"""What the main loop of Debian's cron does, minute by minute, for plain 5-field expressions.

Written from its behaviour, to be compared with; shares nothing with `mega.cron`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1)
MINUTE = timedelta(minutes=1)
SMALL_JUMP, LARGEST_JUMP = 5, 180


class Crontab:
    """One line of a crontab. Local times are counted in minutes since the epoch."""

    def __init__(self, expression: str) -> None:
        minute, hour, month_day, month, weekday = expression.split()
        self.minutes = numbers(minute, 0, 59)
        self.hours = numbers(hour, 0, 23)
        self.month_days = numbers(month_day, 1, 31)
        self.months = numbers(month, 1, 12)
        self.weekdays = {number % 7 for number in numbers(weekday, 0, 7)}
        self.is_wild = minute.startswith("*") or hour.startswith("*")
        self.needs_both_days = month_day.startswith("*") or weekday.startswith("*")
        self._days: dict[int, bool] = {}

    def matches(self, local: int) -> bool:
        day, minute = divmod(local, 1440)
        if minute % 60 not in self.minutes or minute // 60 not in self.hours:
            return False
        if day not in self._days:
            self._days[day] = self._matches_day(EPOCH + timedelta(days=day))
        return self._days[day]

    def _matches_day(self, day: datetime) -> bool:
        by_month_day = day.day in self.month_days
        by_weekday = day.isoweekday() % 7 in self.weekdays
        both, either = by_month_day and by_weekday, by_month_day or by_weekday
        return day.month in self.months and (both if self.needs_both_days else either)

    def matches_any(self, first: int, last: int) -> bool:
        return any(self.matches(local) for local in range(first, last + 1))


class LocalClock:
    """The local minute that the clock of a zone shows at each real minute of a window."""

    def __init__(self, zone: str, start: datetime, minutes: int) -> None:
        self.start = start
        self.end = start + minutes * MINUTE
        self._info = ZoneInfo(zone)
        self._length = minutes

    @cached_property
    def shown(self) -> list[int]:
        return [self._local(self.start + count * MINUTE) for count in range(self._length)]

    def _local(self, instant: datetime) -> int:
        return (instant.astimezone(self._info).replace(tzinfo=None, fold=0) - EPOCH) // MINUTE


def ticks(clock: LocalClock, crontab: Crontab) -> list[datetime]:
    """Return the instants after the window's start at which cron starts the job."""
    return [
        clock.start + count * MINUTE
        for count, first, last in minutes_to_run(clock.shown, crontab.is_wild)
        if crontab.matches_any(first, last)
    ]


def next_tick(clock: LocalClock, crontab: Crontab, after: datetime) -> datetime | None:
    """Return the first of these instants that is later than `after`."""
    least = (after - clock.start) // MINUTE
    for count, first, last in minutes_to_run(clock.shown, crontab.is_wild):
        if count > least and crontab.matches_any(first, last):
            return clock.start + count * MINUTE
    return None


def minutes_to_run(shown: list[int], is_wild: bool) -> Iterator[tuple[int, int, int]]:
    """Yield, per real minute, the range of local minutes that cron looks at in it."""
    reached = shown[0]
    for count, now in enumerate(shown[1:], 1):
        jump = now - reached
        if -LARGEST_JUMP < jump <= 0:
            if is_wild:
                yield count, now, now
            continue
        catches_up = jump <= SMALL_JUMP or (jump <= LARGEST_JUMP and not is_wild)
        yield count, reached + 1 if jump > 0 and catches_up else now, now
        reached = now


def numbers(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found
