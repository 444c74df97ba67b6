"""Cron text in, sets of numbers out.

The dialect is croner's: 5 fields, 6 with seconds first, 7 with the year last; `@daily` and the
like; `L`, `LW`, `15W`, `5L`, `5#2`, `+MON` and `?`. Whatever crons read differently is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mega.cron.fields import FIELDS, MONTH_DAY, WEEKDAY, BadTerm, Field
from mega.errors import BadCron, did_you_mean

MAX_LENGTH = 256
LAST = -1
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
EXAMPLE = '"0 3 * * *" runs at 03:00 every day'

_SHOWN_LENGTH = 60
_BLANKS = " \t\r\n"
_NEAREST_WEEKDAY = re.compile(r"([0-9]{1,2})W")
_NTH_WEEKDAY = re.compile(r"(.+)#([1-5L])")
_LAST_WEEKDAY = re.compile(r"([0-7]|[A-Z]{3})L|L([0-7])")


@dataclass(frozen=True, slots=True)
class MonthDays:
    """Days of a month: numbers, `15W` (the weekday nearest to the 15th), `L` and `LW`."""

    numbers: frozenset[int]
    nearest_weekdays: frozenset[int]
    has_last_day: bool
    has_last_weekday: bool


@dataclass(frozen=True, slots=True)
class Weekdays:
    """Days of a week, Sunday = 0; `nth` holds (day, 1 to 5 or LAST) within the month."""

    numbers: frozenset[int]
    nth: frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Expression:
    """What a cron text says.

    `needs_both_days`: a day must match both day fields, not either of them.
    `is_fixed`: the schedule names times of day, so DST may neither lose nor repeat them.
    """

    text: str
    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    month_days: MonthDays
    months: frozenset[int]
    weekdays: Weekdays
    years: frozenset[int]
    needs_both_days: bool
    is_fixed: bool


def parse(text: str) -> Expression:
    """Return what `text` says; raise `BadCron`."""
    parser = _Parser(_checked(text))
    expression = parser.expression()
    parser.refuse_ambiguous_days()
    return expression


def quoted(text: str) -> str:
    """Return `text` as an error shows it: one line, cut when long."""
    return repr(text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}...")


def _checked(text: object) -> str:
    if not isinstance(text, str):
        raise BadCron(
            f"a cron expression is a str, not {type(text).__name__}.", hint=f"Example: {EXAMPLE}."
        )
    if len(text) > MAX_LENGTH:
        raise _refusal(text, f"has {len(text)} characters; at most {MAX_LENGTH} are allowed")
    if not text.isascii():
        raise _refusal(text, "holds characters outside ASCII")
    return text.strip(_BLANKS)


def _refusal(text: str, reason: str, example: str = EXAMPLE) -> BadCron:
    return BadCron(f"cron expression {quoted(text)} {reason}.", hint=f"Example: {example}.")


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._written = _fields_of(text)
        self._words = _with_all_fields(self._written)

    def expression(self) -> Expression:
        second, minute, hour, month_day, month, weekday, year = self._words
        return Expression(
            text=self._text,
            seconds=self._numbers(0, second),
            minutes=self._numbers(1, minute),
            hours=self._numbers(2, hour),
            month_days=self._month_days(month_day),
            months=self._numbers(4, month),
            weekdays=self._weekdays(weekday.removeprefix("+")),
            years=self._numbers(6, year),
            needs_both_days=weekday.startswith("+") or _has_star(month_day) or _has_star(weekday),
            # Debian's rule: "*" at the head of minute or hour asks for real time, not wall times.
            is_fixed=not (minute.startswith("*") or hour.startswith("*")),
        )

    def _numbers(self, index: int, word: str) -> frozenset[int]:
        field = FIELDS[index]
        return frozenset(n for term in word.split(",") for n in self._values(field, term))

    def _values(self, field: Field, term: str, part: str | None = None) -> range:
        try:
            return field.values(term if part is None else part)
        except BadTerm as error:
            raise self._bad_term(field, term, str(error)) from None

    def _bad_term(self, field: Field, term: str, reason: str) -> BadCron:
        return BadCron(
            f"cron expression {quoted(self._text)}: {field.name} {term!r} {reason}.",
            hint=f"Example: {field.example}.",
        )

    def _month_days(self, word: str) -> MonthDays:
        terms = word.split(",")
        nearest = {term: match for term in terms if (match := _NEAREST_WEEKDAY.fullmatch(term))}
        plain = [term for term in terms if term not in nearest and term not in ("L", "LW")]
        return MonthDays(
            numbers=frozenset(n for term in plain for n in self._values(MONTH_DAY, term)),
            nearest_weekdays=frozenset(
                n
                for term, match in nearest.items()
                for n in self._values(MONTH_DAY, term, match[1])
            ),
            has_last_day="L" in terms,
            has_last_weekday="LW" in terms,
        )

    def _weekdays(self, word: str) -> Weekdays:
        numbers: set[int] = set()
        nth: set[tuple[int, int]] = set()
        for term in word.split(","):
            days, position = _split_position(term)
            found = {number % 7 for number in self._values(WEEKDAY, term, days)}
            if position is None:
                numbers |= found
            elif days.startswith("*"):
                raise self._bad_term(WEEKDAY, term, 'needs days before its position, not "*"')
            else:
                nth |= {(day, position) for day in found}
        return Weekdays(frozenset(numbers), frozenset(nth))

    def refuse_ambiguous_days(self) -> None:
        month_day, weekday = self._words[3], self._words[5]
        if weekday.startswith("+") or _is_star(month_day) or _is_star(weekday):
            return
        if _has_star(month_day) or _has_star(weekday):
            either, both = self._spellings(month_day, weekday)
            raise BadCron(
                f"cron expression {quoted(self._text)}: day of month {month_day!r} with day of "
                f"week {weekday!r} means days that match either to some crons, both to others.",
                hint=f'Write "{either}" for either, or "{both}" for both.',
            )

    def _spellings(self, month_day: str, weekday: str) -> Iterator[str]:
        minute = 0 if len(self._written) == 5 else 1
        for days in (
            (month_day.replace("*/", "1-31/"), weekday.replace("*/", "0-6/")),
            (month_day, f"+{weekday}"),
        ):
            words = list(self._written)
            words[minute + 2], words[minute + 4] = days
            yield " ".join(words)


def _fields_of(text: str) -> list[str]:
    expression = NICKNAMES.get(text.lower(), text)
    if expression.startswith("@"):
        raise BadCron(
            f"cron expression {quoted(text)} is not a nickname that exists.",
            hint=did_you_mean(text.lower(), NICKNAMES),
        )
    words = re.split(r"[ \t]+", expression.upper()) if expression else []
    if len(words) not in (5, 6, 7):
        raise _refusal(
            text,
            f"has {len(words)} fields; it needs 5 (minute hour day month weekday), "
            "6 (second first) or 7 (second first, year last)",
        )
    return words


def _with_all_fields(words: list[str]) -> list[str]:
    second = [] if len(words) > 5 else ["0"]
    year = [] if len(words) > 6 else ["*"]
    full = [*second, *words, *year]
    for index in (3, 5):
        full[index] = "*" if full[index] == "?" else full[index]
    return full


def _split_position(term: str) -> tuple[str, int | None]:
    """Split `5#2` into `5` and 2, `5L` or `L5` into `5` and LAST; other terms have no position."""
    if match := _NTH_WEEKDAY.fullmatch(term):
        return match[1], LAST if match[2] == "L" else int(match[2])
    if match := _LAST_WEEKDAY.fullmatch(term):
        return match[1] or match[2], LAST
    return term, None


def _has_star(word: str) -> bool:
    return word.startswith("*")


def _is_star(word: str) -> bool:
    return word.split(",")[0] == "*"
