"""The two ways through a jump of the clock, after Debian's cron; each tick is a UTC instant.

Both classes take and give whole seconds, are exclusive, and go back exactly as they went forward.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from mega.cron.calendar import Calendar
from mega.cron.zone import ONE_SECOND, Steady, Zone, at

# A longer jump is a correction of the clock, not DST: nothing in it is made up for.
LONGEST_GAP = timedelta(hours=3)
# Every repeat since 1970 is shorter, and no zone has jumped twice within two days.
LONGEST_REPEAT = timedelta(days=1)


class FixedTimes:
    """Each wall time once: the first pass when it is repeated, the end of the gap when skipped."""

    def __init__(self, calendar: Calendar, zone: Zone) -> None:
        self._calendar = calendar
        self._zone = zone

    def next(self, after: datetime) -> datetime | None:
        repeat = self._zone.repeated_since(after)
        wall = repeat.wall_before - ONE_SECOND if repeat else self._zone.wall(after)
        while found := self._calendar.next(wall):
            if instants := self._zone.instants(found):
                return instants[0]
            gap = self._zone.gap(found)
            if gap.size <= LONGEST_GAP:
                return gap.instant
            wall = gap.wall_after - ONE_SECOND
        return None

    def previous(self, before: datetime) -> datetime | None:
        repeat = self._zone.repeated_since(before)
        wall = repeat.wall_before if repeat else self._zone.wall(before)
        while found := self._calendar.previous(wall):
            if instants := self._zone.instants(found):
                return instants[0]
            gap = self._zone.gap(found)
            if gap.size <= LONGEST_GAP and gap.instant < before:
                return gap.instant
            wall = gap.wall_before
        return None


class EveryPass:
    """Each instant whose wall time matches: both passes when repeated, nothing in a gap."""

    def __init__(self, calendar: Calendar, zone: Zone) -> None:
        self._calendar = calendar
        self._zone = zone
        self._steady: Steady | None = None

    def next(self, after: datetime) -> datetime | None:
        steady = self._steady
        if steady is None or not steady.start <= after < steady.end:
            steady = self._steady = self._zone.steady_from(after)
        if steady is not None:  # as on all days but a few: then there is one pass, and no gap
            wall = self._calendar.next(after.replace(tzinfo=None) + steady.offset)
            if wall is None:
                return None
            tick = at(wall, steady.offset)
            if tick < steady.end:
                return tick
        found = (self._next_by_wall(after), self._first_repeated(after))
        return min((instant for instant in found if instant), default=None)

    def previous(self, before: datetime) -> datetime | None:
        found = (self._previous_by_wall(before), self._last_before_repeat(before))
        return max((instant for instant in found if instant), default=None)

    def _next_by_wall(self, after: datetime) -> datetime | None:
        wall = self._zone.wall(after)
        while found := self._calendar.next(wall):
            if instants := self._zone.instants(found):
                return min(instant for instant in instants if instant > after)
            wall = self._zone.gap(found).wall_after - ONE_SECOND
        return None

    def _first_repeated(self, after: datetime) -> datetime | None:
        jump = self._zone.jump_back(after, after + LONGEST_REPEAT)
        if jump is None:
            return None
        wall = self._calendar.next(jump.wall_after - ONE_SECOND)
        if wall is None or wall >= jump.wall_before:
            return None
        return jump.instant + (wall - jump.wall_after)

    def _previous_by_wall(self, before: datetime) -> datetime | None:
        wall = self._zone.wall(before)
        while found := self._calendar.previous(wall):
            if instants := self._zone.instants(found):
                return max(instant for instant in instants if instant < before)
            wall = self._zone.gap(found).wall_before
        return None

    def _last_before_repeat(self, before: datetime) -> datetime | None:
        jump = self._zone.jump_back(before - LONGEST_REPEAT, before)
        if jump is None:
            return None
        wall = self._calendar.previous(jump.wall_before)
        if wall is None or wall < jump.wall_after:
            return None
        return jump.instant - (jump.wall_before - wall)
