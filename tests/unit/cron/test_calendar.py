"""The calendar on naive local time, against a plain walk over the days of some years."""

from __future__ import annotations

import random
from calendar import monthrange
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from threading import Thread

import pytest

from mega.cron.calendar import Calendar
from mega.cron.syntax import LAST, Expression, parse

FIRST_YEAR, LAST_YEAR = 2024, 2028


def matching_days(expression: Expression) -> list[date]:
    """Return the days from FIRST_YEAR to LAST_YEAR that match, tried one by one."""
    start, end = date(FIRST_YEAR, 1, 1), date(LAST_YEAR + 1, 1, 1)
    days = (start + timedelta(days=count) for count in range((end - start).days))
    return [day for day in days if day.month in expression.months and matches(expression, day)]


def matches(expression: Expression, day: date) -> bool:
    by_month_day = day.day in set(month_days(expression, day))
    by_weekday = is_weekday_match(expression, day)
    if expression.needs_both_days:
        return by_month_day and by_weekday
    return by_month_day or by_weekday


def month_days(expression: Expression, day: date) -> Iterator[int]:
    days, length = expression.month_days, monthrange(day.year, day.month)[1]
    yield from days.numbers
    if days.has_last_day:
        yield length
    if days.has_last_weekday:
        yield nearest_weekday(day.replace(day=length))
    for number in days.nearest_weekdays:
        if number <= length:
            yield nearest_weekday(day.replace(day=number))


def nearest_weekday(day: date) -> int:
    tries = (day + timedelta(days=shift) for shift in (0, -1, 1, -2, 2))
    return next(near.day for near in tries if near.month == day.month and near.isoweekday() < 6)


def is_weekday_match(expression: Expression, day: date) -> bool:
    weekday, length = day.isoweekday() % 7, monthrange(day.year, day.month)[1]
    nth = {(weekday, (day.day + 6) // 7)}
    if day.day + 7 > length:
        nth.add((weekday, LAST))
    return weekday in expression.weekdays.numbers or bool(nth & expression.weekdays.nth)


def random_expression(source: random.Random) -> str:
    month_day = source.choice(
        [
            "*",
            "?",
            "1",
            "31",
            "L",
            "LW",
            "15W",
            "1W",
            "31W",
            "1,15W",
            "L,LW",
            "8-14",
            "29-31",
            "1,L",
        ]
    )
    weekday = source.choice(
        [
            "*",
            "?",
            "MON",
            "1-5",
            "FRI-SUN",
            "5L",
            "FRI#L",
            "L0",
            "1#1",
            "1-5#3",
            "MON#5,SUN",
            "6,2L",
        ]
    )
    month = source.choice(["*", "*", "2", "1-6", "4,6,9,11", "*/5"])
    plus = source.choice(["", "+"]) if weekday != "?" else ""
    return f"0 0 {month_day} {month} {plus}{weekday}"


@pytest.mark.parametrize("seed", range(40))
def test_day_terms_agree_with_a_walk_over_the_days(seed: int) -> None:
    expression = parse(random_expression(random.Random(seed)))
    calendar, expected = Calendar(expression), matching_days(expression)[:80]

    wall = datetime(FIRST_YEAR, 1, 1) - timedelta(seconds=1)
    found: list[date] = []
    while len(found) < len(expected) and (answer := calendar.next(wall)):
        wall = answer
        found.append(wall.date())

    assert expected == found


@pytest.mark.parametrize("seed", range(40))
def test_going_back_meets_the_same_days(seed: int) -> None:
    expression = parse(random_expression(random.Random(seed)))
    calendar, expected = Calendar(expression), matching_days(expression)[-80:]

    wall = datetime(LAST_YEAR + 1, 1, 1)
    found: list[date] = []
    while len(found) < len(expected) and (answer := calendar.previous(wall)):
        wall = answer
        found.insert(0, wall.date())

    assert expected == found


def test_31w_is_for_months_with_a_31st_only() -> None:
    calendar = Calendar(parse("0 0 31W * *"))

    assert datetime(2026, 3, 31) == calendar.next(datetime(2026, 2, 1))


def test_a_schedule_far_ahead_is_found() -> None:
    calendar = Calendar(parse("0 0 0 1 1 * 2099"))

    assert datetime(2099, 1, 1) == calendar.next(datetime(1970, 1, 1))
    assert datetime(2099, 1, 1) == calendar.previous(datetime(2150, 1, 1))


def test_a_schedule_long_past_is_found() -> None:
    calendar = Calendar(parse("0 0 0 1 1 * 1970"))

    assert datetime(1970, 1, 1) == calendar.previous(datetime(2099, 1, 1))
    assert datetime(1970, 1, 1) == calendar.next(datetime(1900, 1, 1))


def test_nothing_lies_outside_the_years() -> None:
    calendar = Calendar(parse("* * * * * *"))

    assert calendar.next(datetime(2099, 12, 31, 23, 59, 59)) is None
    assert calendar.previous(datetime(1970, 1, 1)) is None


@pytest.mark.parametrize(
    "text", ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 30W 2 *", "0 0 1-4 * +FRI#L"]
)
def test_a_date_that_does_not_exist_has_no_answer(text: str) -> None:
    calendar = Calendar(parse(text))

    assert calendar.next(datetime(2026, 1, 1)) is None
    assert calendar.previous(datetime(2026, 1, 1)) is None


def test_threads_may_share_one_calendar() -> None:
    calendar = Calendar(parse("0 0 1,15W * MON"))
    starts = [datetime(2026, 1, 1) + timedelta(days=11 * count) for count in range(100)]
    expected = [calendar.next(start) for start in starts]
    answers: list[list[datetime | None]] = []

    def ask() -> None:
        answers.append([calendar.next(start) for start in starts])

    threads = [Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [expected] * 4 == answers
