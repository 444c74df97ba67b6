"""The seven fields of a cron expression, and their plain terms: `5`, `MON`, `1-5`, `*/15`.

Knows nothing of whole expressions, nor of the day terms that depend on the month (`L`, `W`, `#`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MONTH_NAMES = {
    name: number
    for number, name in enumerate(
        ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"), 1
    )
}
WEEKDAY_NAMES = {
    name: number for number, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))
}

_VALUE = r"[0-9]{1,4}|[A-Z]{3}"
_PLAIN_TERM = re.compile(rf"(\*|{_VALUE})(?:-({_VALUE}))?(?:/([0-9]{{1,4}}))?", re.ASCII)


class BadTerm(Exception):  # never leaves the package: the parser adds the expression and the field
    """Why a term is refused, as the rest of a sentence that begins with the term."""


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    low: int
    high: int
    example: str
    names: Mapping[str, int] = field(default_factory=dict[str, int])

    def value(self, text: str) -> int:
        number = self.names.get(text)
        if number is None:
            if not text.isdigit():
                raise BadTerm(f"holds {text!r}, which is not {self._takes}")
            number = int(text)
        if not self.low <= number <= self.high:
            raise BadTerm(f"is outside {self.low}-{self.high}")
        return number

    def values(self, term: str) -> range:
        """Return the values of a plain term; raise `BadTerm`."""
        match = _PLAIN_TERM.fullmatch(term)
        if match is None:
            raise BadTerm(f"is not {self._takes}, nor a range, a step or a list of these")
        first, last, step = match.groups()
        if first == "*":
            low, high = self._star(last)
        else:
            low, high = self._range(first, last, step)
        return range(low, high + 1, self._step(step))

    @property
    def _takes(self) -> str:
        numbers = f"a number in {self.low}-{self.high}"
        return f"{numbers} or a name such as {next(iter(self.names))}" if self.names else numbers

    def _star(self, last: str | None) -> tuple[int, int]:
        if last:
            raise BadTerm('has a range that begins with "*"')
        return self.low, self.high

    def _range(self, first: str, last: str | None, step: str | None) -> tuple[int, int]:
        low = self.value(first)
        if last is None:
            if step:
                raise BadTerm(f'needs "*" or a range before its step: "{first}-{self.high}/{step}"')
            return low, low
        high = self._range_end(low, last)
        if high < low:
            raise BadTerm("is a range that runs backwards")
        return low, high

    def _range_end(self, low: int, last: str) -> int:
        return self.value(last)

    def _step(self, text: str | None) -> int:
        step, size = int(text or 1), self.high - self.low + 1
        if not 1 <= step <= size:
            raise BadTerm(f"has a step outside 1-{size}")
        return step


class WeekdayField(Field):
    """Sunday is 0, and also 7, so that a range can end with it."""

    __slots__ = ()

    def _star(self, last: str | None) -> tuple[int, int]:
        low, _ = super()._star(last)
        return low, 6

    def _range_end(self, low: int, last: str) -> int:
        return 7 if last == "SUN" and low > 0 else super()._range_end(low, last)


SECOND = Field("second", 0, 59, '"*/30 * * * * *" runs at second 0 and 30')
MINUTE = Field("minute", 0, 59, '"*/15 * * * *" runs every 15 minutes')
HOUR = Field("hour", 0, 23, '"0 9-17 * * *" runs on the hour from 09:00 to 17:00')
MONTH_DAY = Field("day of month", 1, 31, '"0 3 1,L * *" runs on the first and last day of a month')
MONTH = Field("month", 1, 12, '"0 3 1 JAN,JUL *" runs on 1 January and 1 July', MONTH_NAMES)
WEEKDAY = WeekdayField("day of week", 0, 7, '"0 3 * * MON-FRI" runs on weekdays', WEEKDAY_NAMES)
YEAR = Field("year", 1970, 2099, '"0 0 3 1 1 * 2030" runs on 1 January 2030')

FIELDS = (SECOND, MINUTE, HOUR, MONTH_DAY, MONTH, WEEKDAY, YEAR)
