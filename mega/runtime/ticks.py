"""Which ticks of a schedule are due: the decision core of the scheduler, pure.

Times are the wall clock's; they may step in either direction between two calls.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple
from zlib import crc32

from mega.cron.timetable import Timetable
from mega.options import CatchUp

__all__ = ["CORRECTION", "MOST_CAUGHT_UP", "Decision", "decide", "jitter_of"]

#: A larger step back is a correction of the clock, not a second pass of an hour (cron(8)).
CORRECTION = timedelta(hours=3)
INSTANT = timedelta(microseconds=1)
LONGEST_GRACE = timedelta(seconds=60)
MOST_CAUGHT_UP = 100


class Decision(NamedTuple):
    """What to do at one moment.

    `ticks` are to run now, oldest first. Of those that are due, `latest` is the last one, and
    `missed_since` the first one that is passed over, or that runs later than the grace allows.
    `last` is the new last decided tick, and `following` the one after it (None: it never fires
    again). `is_correction`: the clock was set back so far that ticks are counted anew.
    """

    ticks: tuple[datetime, ...]
    latest: datetime | None
    missed_since: datetime | None
    last: datetime
    following: datetime | None
    is_correction: bool


def decide(
    timetable: Timetable,
    last: datetime,
    now: datetime,
    *,
    due: datetime | None = None,
    catch_up: CatchUp = "one",
    grace: timedelta | None = None,
) -> Decision:
    """Decide what is due at `now`, when `last` is the last decided tick.

    `due` is the tick after that, where an earlier decision told it as `following`.
    Missed ticks are not walked one by one, but for at most 100 that `catch_up="all"` runs.
    `grace` is the time between two ticks and at most 60 s, unless it is given.
    """
    is_correction = now < last - CORRECTION
    if is_correction:
        last, due = now, None
    tick = due or timetable.next(last)
    if tick is None or tick > now:
        return Decision((), None, None, last, tick, is_correction)
    latest, following = tick, timetable.next(tick)
    if following is not None and following <= now:
        latest = timetable.previous(now + INSTANT) or tick
        following = timetable.next(latest)
    patience = _grace(grace, latest, following)
    if catch_up == "all":
        ticks = _in_turn(timetable, tick, latest)
        is_missed = now - tick > patience
    else:
        is_late = now - latest > patience
        ticks = () if is_late and catch_up == "skip" else (latest,)
        is_missed = is_late or tick < latest
    missed_since = tick if is_missed else None
    return Decision(ticks, latest, missed_since, latest, following, is_correction)


def jitter_of(name: str, longest: float) -> timedelta:
    """Return how long after its ticks a schedule starts, the same in all processes."""
    return timedelta(seconds=longest * crc32(name.encode()) / 2**32)


def _in_turn(timetable: Timetable, first: datetime, latest: datetime) -> tuple[datetime, ...]:
    ticks = [first]
    while ticks[-1] < latest and len(ticks) < MOST_CAUGHT_UP:
        ticks.append(timetable.next(ticks[-1]) or latest)
    return tuple(ticks)


def _grace(given: timedelta | None, latest: datetime, following: datetime | None) -> timedelta:
    if given is not None:
        return given
    return LONGEST_GRACE if following is None else min(following - latest, LONGEST_GRACE)
