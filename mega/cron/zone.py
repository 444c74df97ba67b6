"""Time zones: their names, the host's own, and where a local time lies on the UTC axis.

Instants are aware and in UTC, `wall` times are naive and local. Knows nothing of cron.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

from mega.errors import BadTimezone, did_you_mean

ONE_SECOND = timedelta(seconds=1)
ONE_DAY = timedelta(days=1)

_LOCALTIME = Path("/etc/localtime")
_TIMEZONE = Path("/etc/timezone")
_EXAMPLE = 'Use an IANA name, for example "Europe/Berlin".'
_LONGEST_NAME = 64


def find_zone(name: str) -> ZoneInfo:
    """Return the zone of an IANA name; raise `BadTimezone`."""
    if not isinstance(name, str):
        raise BadTimezone(f"a time zone is a str, not {type(name).__name__}.", hint=_EXAMPLE)
    try:
        return ZoneInfo(name)
    # zoneinfo opens a file of that name: a folder, a bad path and a text file fail each in its way.
    except (KeyError, ValueError, OSError):
        raise BadTimezone(
            f"no time zone is named {name[:_LONGEST_NAME]!r}.", hint=_hint(name)
        ) from None


def host_zone_name(localtime: Path = _LOCALTIME, timezone: Path = _TIMEZONE) -> str:
    """Return the IANA name of the host's zone: `TZ`, /etc/localtime, /etc/timezone, else UTC.

    Raises `BadTimezone` when the host has a zone whose name can't be told.
    """
    if "TZ" in os.environ:
        return _name_of_variable(os.environ["TZ"])
    name = _name_in_path(os.path.realpath(localtime))
    if name is None and timezone.is_file():
        name = timezone.read_text(encoding="utf-8").strip()
    if name is None and not localtime.exists():
        name = "UTC"
    return _checked_host_name(name, f"{localtime} does not tell the name of the host's time zone.")


@dataclass(frozen=True, slots=True)
class Jump:
    """A change of offset: at `instant` the local clock goes from `wall_before` to `wall_after`.

    Forward, it skips the local times between the two; backward, it shows them a second time.
    """

    instant: datetime
    offset_before: timedelta
    offset_after: timedelta

    @property
    def size(self) -> timedelta:
        return self.offset_after - self.offset_before

    @property
    def wall_before(self) -> datetime:
        return self.instant.replace(tzinfo=None) + self.offset_before

    @property
    def wall_after(self) -> datetime:
        return self.instant.replace(tzinfo=None) + self.offset_after


@dataclass(frozen=True, slots=True)
class Steady:
    """A time from `start` until before `end` in which the offset does not change."""

    start: datetime
    end: datetime
    offset: timedelta


class Zone:
    """The two-way mapping between instants and wall times of one zone, exact to the second."""

    def __init__(self, name: str) -> None:
        self.info = find_zone(name)

    def wall(self, instant: datetime) -> datetime:
        return instant.astimezone(self.info).replace(tzinfo=None, fold=0)

    def instants(self, wall: datetime) -> list[datetime]:
        """Return the instant of `wall`, both when the clock shows it twice, none in a gap."""
        first, second = self._offsets(wall)
        if first == second:
            return [at(wall, first)]
        return [at(wall, first), at(wall, second)] if first > second else []

    def gap(self, wall: datetime) -> Jump:
        """Return the jump that skips `wall`, which has no instant."""
        before, after = self._offsets(wall)
        return self._first_jump(at(wall, after) - ONE_SECOND, at(wall, before))

    def jump_back(self, start: datetime, end: datetime) -> Jump | None:
        """Return the backward jump in (start, end], which holds one jump at most."""
        if self._offset(end) >= self._offset(start):
            return None
        return self._first_jump(start, end)

    def steady_from(self, start: datetime) -> Steady | None:
        """Return the day from that instant on, unless the clock jumps in it.

        No zone has jumped twice within two days, so equal offsets at both ends tell.
        """
        end, offset = start + ONE_DAY, self._offset(start)
        return Steady(start, end, offset) if self._offset(end) == offset else None

    def repeated_since(self, instant: datetime) -> Jump | None:
        """Return the backward jump whose second pass shows at `instant`."""
        local = instant.astimezone(self.info)
        if not local.fold:
            return None
        before, after = self._offsets(local.replace(tzinfo=None, fold=0))
        return self._first_jump(instant - (before - after), instant)

    def _first_jump(self, start: datetime, end: datetime) -> Jump:
        before, after = self._offset(start), self._offset(end)
        low, high = 0, int((end - start).total_seconds())
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset(start + middle * ONE_SECOND) == after:
                high = middle
            else:
                low = middle
        return Jump(start + high * ONE_SECOND, before, after)

    def _offset(self, instant: datetime) -> timedelta:
        return instant.astimezone(self.info).utcoffset() or timedelta(0)

    def _offsets(self, wall: datetime) -> tuple[timedelta, timedelta]:
        first = self.info.utcoffset(wall) or timedelta(0)
        second = self.info.utcoffset(wall.replace(fold=1)) or timedelta(0)
        return first, second


def at(wall: datetime, offset: timedelta) -> datetime:
    """Return the instant at which a clock of that offset shows `wall`."""
    return (wall - offset).replace(tzinfo=UTC)


def _hint(name: str) -> str:
    near = get_close_matches(name[:_LONGEST_NAME], available_timezones(), n=1)
    return did_you_mean(name[:_LONGEST_NAME], near) or _EXAMPLE


def _name_of_variable(value: str) -> str:
    path = value.removeprefix(":")
    name = (_name_in_path(os.path.realpath(path)) or path) if path.startswith("/") else path
    return _checked_host_name(name or "UTC", f"TZ={value!r} is not the name of a time zone.")


def _name_in_path(path: str) -> str | None:
    _, found, rest = path.partition("/zoneinfo")
    return rest.partition("/")[2] if found else None


def _checked_host_name(name: str | None, problem: str) -> str:
    try:
        return find_zone(name or "").key
    except BadTimezone:
        raise BadTimezone(
            problem, hint='Pass timezone=, or set TZ to an IANA name, for example "Europe/Berlin".'
        ) from None
