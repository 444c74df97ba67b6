"""Which ticks of a schedule are due: the decision core of the scheduler, pure.

Times are the wall clock's; they may step in either direction between two calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from mega.cron.timetable import Timetable

__all__ = ["Decision", "decide"]

#: No sleep is longer, so that a stepped clock or a resumed machine is noticed.
LONGEST_SLEEP = timedelta(seconds=30)
#: A larger step back is a correction of the clock, not a second pass of an hour (cron(8)).
CORRECTION = timedelta(hours=3)
INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do at one moment.

    `tick` is to run now, `missed_since` the first of the ticks that were passed over for it,
    `last` the new last decided tick, and `wake_at` when to ask again (None: never fires again).
    """

    tick: datetime | None
    missed_since: datetime | None
    last: datetime
    wake_at: datetime | None


def decide(timetable: Timetable, last: datetime, now: datetime) -> Decision:
    """Decide what is due at `now`, when `last` is the last decided tick.

    Of several missed ticks the latest runs, once; they are not walked one by one.
    """
    if now < last - CORRECTION:
        last = now
    tick = timetable.next(last)
    if tick is None or tick > now:
        return Decision(None, None, last, _wake_at(tick, now))
    latest = timetable.previous(now + INSTANT) or tick
    missed_since = tick if tick != latest else None
    return Decision(latest, missed_since, latest, _wake_at(timetable.next(latest), now))


def _wake_at(tick: datetime | None, now: datetime) -> datetime | None:
    return None if tick is None else min(tick, now + LONGEST_SLEEP)
