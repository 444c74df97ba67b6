"""Cron expressions as a pure utility: is one right, and when does it run?

No timer is started and no state is kept. Six fields put the seconds first, seven the year last.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice

from mega.cron.syntax import quoted
from mega.cron.timetable import CronTimetable as CronTimetable
from mega.cron.timetable import IntervalTimetable as IntervalTimetable
from mega.cron.timetable import Timetable as Timetable
from mega.cron.zone import find_zone as find_zone
from mega.cron.zone import host_zone_name as host_zone_name
from mega.errors import BadCron, BadOption

__all__ = ["is_valid", "next_run", "next_runs", "previous_run", "validate"]


def is_valid(expr: object) -> bool:
    """Tell whether `validate` accepts `expr`; never raises, whatever `expr` is."""
    try:
        validate(expr)  # type: ignore[arg-type]  # which it refuses at run time
    except BadCron:
        return False
    return True


def validate(expr: str) -> None:
    """Refuse an expression that is not in the dialect, or that has no run after now.

    Raises:
        BadCron: with the field, the term, what is wrong with it, and an example.
    """
    timetable = _timetable(expr, "UTC")
    now = datetime.now(UTC)
    if timetable.next(now) is None:
        raise _no_run(timetable, "after", now)


def next_run(expr: str, after: datetime | None = None, *, timezone: str | None = None) -> datetime:
    """Return the first run strictly after `after` (aware; None is now), in the zone.

    `timezone` is an IANA name, None is the host's zone. Python compares two datetimes of one zone
    by their local times, so convert to UTC before comparing runs around a change of the clock.

    >>> from datetime import UTC, datetime
    >>> next_run("0 3 * * *", datetime(2026, 7, 1, tzinfo=UTC), timezone="Asia/Seoul").isoformat()
    '2026-07-02T03:00:00+09:00'

    Raises:
        BadCron: `expr` is not in the dialect, or has no run after `after`.
        BadTimezone: no zone has that name.
        BadOption: `after` is naive.
    """
    return next_runs(expr, 1, after, timezone=timezone)[0]


def next_runs(
    expr: str, count: int, after: datetime | None = None, *, timezone: str | None = None
) -> list[datetime]:
    """Return the next `count` runs in order, as `next_run` would one by one.

    The list is shorter when the schedule ends before, and never empty unless `count` is 0.
    """
    if count < 0:
        raise BadOption(f"count={count} is below 0.", hint="Ask for at least one run.")
    timetable, start = _timetable(expr, timezone), _aware(after, "after")
    ticks = list(islice(_ticks_after(timetable, start), count))
    if count and not ticks:
        raise _no_run(timetable, "after", start)
    return [tick.astimezone(timetable.zone) for tick in ticks]


def previous_run(
    expr: str, before: datetime | None = None, *, timezone: str | None = None
) -> datetime:
    """Return the last run strictly before `before` (aware; None is now): `next_run`'s inverse."""
    timetable, end = _timetable(expr, timezone), _aware(before, "before")
    tick = timetable.previous(end)
    if tick is None:
        raise _no_run(timetable, "before", end)
    return tick.astimezone(timetable.zone)


def _ticks_after(timetable: Timetable, instant: datetime) -> Iterator[datetime]:
    tick = timetable.next(instant)
    while tick is not None:
        yield tick
        tick = timetable.next(tick)


def _timetable(expr: str, timezone: str | None) -> CronTimetable:
    name = host_zone_name() if timezone is None else timezone
    if isinstance(expr, str) and isinstance(name, str):
        return _cached_timetable(expr, name)
    return CronTimetable(expr, name)  # says what is wrong; the cache can't take a list


@lru_cache(maxsize=256)
def _cached_timetable(expr: str, timezone: str) -> CronTimetable:
    return CronTimetable(expr, timezone)


def _aware(instant: datetime | None, option: str) -> datetime:
    if instant is None:
        return datetime.now(UTC)
    if not isinstance(instant, datetime) or instant.utcoffset() is None:
        raise BadOption(
            f"{option}={instant!r} is not a datetime with a time zone.",
            hint="Example: datetime.now(UTC).",
        )
    return instant


def _no_run(timetable: CronTimetable, side: str, instant: datetime) -> BadCron:
    return BadCron(
        f"cron expression {quoted(timetable.text)} has no run {side} {instant.isoformat()}.",
        hint='Widen its year field, or leave it out: "0 3 1 1 *" runs each 1 January.',
    )
