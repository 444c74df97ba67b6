"""The next and previous naive local time that an expression names; knows nothing of zones.

croniter does the stepping. It is given only lists of numbers: what it reads differently from our
dialect, or can't combine, is split over several steppers, and the nearest answer wins.
Within one day it is asked once, as the times are the same on each day that has any.
"""

from __future__ import annotations

from bisect import bisect_right
from calendar import monthrange
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from itertools import product
from threading import Lock
from typing import Any, NamedTuple

from mega.cron.fields import FIELDS, YEAR, Field
from mega.cron.syntax import LAST, Expression, MonthDays, Weekdays

# croniter gives up after 50 years unless told otherwise: a schedule for 2099 would never fire.
_ALL_YEARS = YEAR.high - YEAR.low + 1
_BEFORE_FIRST = datetime(YEAR.low - 1, 12, 31, 23, 59, 59)
_AFTER_LAST = datetime(YEAR.high + 1, 1, 1)
_ONE_SECOND = timedelta(seconds=1)
#: One for each minute of a day; a list of all seconds would take megabytes.
_MOST_TIMES = 1440


class DayTerm(NamedTuple):
    """A day term in croniter's words, for months of at least `shortest_month` days."""

    text: str
    shortest_month: int = 0


class Calendar:
    """Both directions are exclusive, and None beyond the years 1970-2099."""

    def __init__(self, expression: Expression) -> None:
        # A pair of day terms that never meet (1-4 and the last Friday) costs 0.3 s on each step.
        self._steppers = [
            stepper for stepper in _steppers(expression) if stepper.step("get_next", _BEFORE_FIRST)
        ]
        # A croniter keeps its position while it steps, and threads share cached timetables.
        self._lock = Lock()
        self._times = _times_of_day(expression)
        self._midnight = datetime.min

    def next(self, wall: datetime) -> datetime | None:
        if not self._times:
            return self._step_to_next(wall)
        midnight = self._midnight
        since = wall - midnight
        if since.days:
            midnight = datetime(wall.year, wall.month, wall.day)
            first = self._step_to_next(midnight - _ONE_SECOND)
            if first is None or first.date() != midnight.date():
                return first
            self._midnight, since = midnight, wall - midnight
        index = bisect_right(self._times, since)
        if index < len(self._times):
            return midnight + self._times[index]
        return self._step_to_next(wall)

    def _step_to_next(self, wall: datetime) -> datetime | None:
        start = max(wall, _BEFORE_FIRST)
        with self._lock:
            found = [stepper.step("get_next", start) for stepper in self._steppers]
        return min((answer for answer in found if answer), default=None)

    def previous(self, wall: datetime) -> datetime | None:
        start = min(wall, _AFTER_LAST)
        with self._lock:
            found = [stepper.step("get_prev", start) for stepper in self._steppers]
        return max((answer for answer in found if answer), default=None)


def _times_of_day(expression: Expression) -> list[timedelta]:
    """Return the times of each day that has any; none where there are many, or just one."""
    fields = (expression.hours, expression.minutes, expression.seconds)
    hours, minutes, seconds = (sorted(field) for field in fields)
    if not 1 < len(hours) * len(minutes) * len(seconds) <= _MOST_TIMES:
        return []
    times = product(hours, minutes, seconds)
    return [timedelta(hours=hour, minutes=minute, seconds=second) for hour, minute, second in times]


class _Stepper:
    def __init__(self, expression: str, shortest_month: int) -> None:
        from croniter import CroniterBadDateError, croniter

        self._no_date = CroniterBadDateError
        self._shortest_month = shortest_month
        cron: Any = croniter(
            expression,
            datetime(2000, 1, 1),
            ret_type=datetime,
            day_or=False,
            max_years_between_matches=_ALL_YEARS,
        )
        self._cron = cron

    def step(self, direction: str, wall: datetime) -> datetime | None:
        move = getattr(self._cron, direction)
        while True:
            try:
                wall = move(start_time=wall, update_current=False)
            except self._no_date:
                return None
            if not YEAR.low <= wall.year <= YEAR.high:
                return None
            if monthrange(wall.year, wall.month)[1] >= self._shortest_month:
                return wall


def _steppers(expression: Expression) -> Iterator[_Stepper]:
    second, minute, hour, _, month, _, year = FIELDS
    times = f"{_list(minute, expression.minutes)} {_list(hour, expression.hours)}"
    months = _list(month, expression.months)
    rest = f"{_list(second, expression.seconds)} {_list(year, expression.years)}"
    for month_day, weekday in _day_pairs(expression):
        yield _Stepper(
            f"{times} {month_day.text} {months} {weekday} {rest}", month_day.shortest_month
        )


def _day_pairs(expression: Expression) -> Iterator[tuple[DayTerm, str]]:
    month_days = list(_month_day_terms(expression.month_days))
    weekdays = list(_weekday_terms(expression.weekdays))
    if expression.needs_both_days:
        yield from ((month_day, weekday) for month_day in month_days for weekday in weekdays)
    else:
        yield from ((month_day, "*") for month_day in month_days)
        yield from ((DayTerm("*"), weekday) for weekday in weekdays)


def _month_day_terms(days: MonthDays) -> Iterator[DayTerm]:
    if len(days.numbers) == 31:
        yield DayTerm("*")
    elif days.numbers or days.has_last_day:
        numbers = [str(number) for number in sorted(days.numbers)]
        yield DayTerm(",".join([*numbers, "l"] if days.has_last_day else numbers))
    # croniter moves 31W to the last weekday of a short month; ours is for months with a 31st only.
    yield from (DayTerm(f"{day}w", day) for day in sorted(days.nearest_weekdays))
    if days.has_last_weekday:
        yield DayTerm("31w")


def _weekday_terms(days: Weekdays) -> Iterator[str]:
    if days.numbers:
        yield "*" if len(days.numbers) == 7 else ",".join(map(str, sorted(days.numbers)))
    if days.nth:
        yield ",".join(
            f"L{day}" if position == LAST else f"{day}#{position}"
            for day, position in sorted(days.nth)
        )


def _list(field: Field, numbers: Collection[int]) -> str:
    if len(numbers) == field.high - field.low + 1:
        return "*"
    return ",".join(str(number) for number in sorted(numbers))
