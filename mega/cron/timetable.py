"""Timetables: what a scheduler asks for ticks, whether they come from cron text or an interval.

Pure: no clock is read here, and nothing is started.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol

from mega.cron.calendar import Calendar
from mega.cron.daylight import EveryPass, FixedTimes
from mega.cron.syntax import parse, quoted
from mega.cron.zone import ONE_SECOND, Zone, host_zone_name
from mega.errors import BadCron, BadOption

# The years 1970-2099 of every zone lie between these.
FIRST_INSTANT = datetime(1969, 12, 30, tzinfo=UTC)
LAST_INSTANT = datetime(2100, 1, 3, tzinfo=UTC)

SHORTEST_INTERVAL = 0.001
LONGEST_INTERVAL = 366 * 86_400.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Timetable(Protocol):
    """A fixed, strictly increasing series of ticks.

    Takes any aware datetime; gives aware UTC instants, strictly after or before it, or None when
    the series has no more in 1970-2099. `previous(next(t))` is the last tick at or before `t`,
    so that each direction is the exact inverse of the other. Safe to share between threads.
    """

    text: str

    def next(self, after: datetime) -> datetime | None: ...

    def previous(self, before: datetime) -> datetime | None: ...


class CronTimetable:
    """The ticks of a cron expression in a time zone, `None` being the host's.

    Raises `BadCron`, also when no tick exists at all, and `BadTimezone`.
    """

    def __init__(self, expr: str, timezone: str | None = None) -> None:
        expression = parse(expr)
        zone = Zone(host_zone_name() if timezone is None else timezone)
        rule: type[FixedTimes | EveryPass] = FixedTimes if expression.is_fixed else EveryPass
        self.text = expression.text
        self.zone = zone.info
        self.timezone = zone.info.key
        self._ticks = rule(Calendar(expression), zone)
        self._found = (LAST_INSTANT, FIRST_INSTANT)
        self._refuse_if_empty()

    def next(self, after: datetime) -> datetime | None:
        instant = _bounded(after).replace(microsecond=0)
        since, tick = self._found
        if not since <= instant < tick:  # or it was found from an earlier instant
            found = self._ticks.next(instant)
            if found is None:
                return None
            self._found, tick = (instant, found), found
        return tick

    def previous(self, before: datetime) -> datetime | None:
        instant = _bounded(before)
        whole = instant.replace(microsecond=0)
        return self._ticks.previous(whole if whole == instant else whole + ONE_SECOND)

    def _refuse_if_empty(self) -> None:
        if self.next(FIRST_INSTANT) is None:
            raise BadCron(
                f"cron expression {quoted(self.text)} never fires: "
                "no date in 1970-2099 matches all of its fields.",
                hint='Example: "0 3 L 2 *" runs on the last day of February.',
            )


class IntervalTimetable:
    """A tick every `every_seconds`, counted from the epoch and so the same after each restart."""

    def __init__(self, every_seconds: float) -> None:
        if not SHORTEST_INTERVAL <= every_seconds <= LONGEST_INTERVAL:
            raise BadOption(
                f"every={every_seconds!r} is outside {SHORTEST_INTERVAL} to "
                f"{LONGEST_INTERVAL:.0f} seconds.",
                hint="Example: every=30 runs twice a minute.",
            )
        self.text = f"every {every_seconds:g} s"
        self._period = timedelta(seconds=every_seconds)

    def next(self, after: datetime) -> datetime | None:
        periods = (_bounded(after) - _EPOCH) // self._period + 1
        return self._within_years(_EPOCH + periods * self._period)

    def previous(self, before: datetime) -> datetime | None:
        periods = (_bounded(before) - _EPOCH - _MICROSECOND) // self._period
        return self._within_years(_EPOCH + periods * self._period)

    def _within_years(self, tick: datetime) -> datetime | None:
        return tick if FIRST_INSTANT < tick < LAST_INSTANT else None


def _bounded(instant: datetime) -> datetime:
    return min(max(instant, FIRST_INSTANT), LAST_INSTANT).astimezone(UTC)
