"""What the tests of schedules share."""

from __future__ import annotations

from mega.events import Event, ScheduleEvent
from mega.testing import TestApp

__all__ = ["HOUR", "happened"]

HOUR = 3600


def happened(t: TestApp, *kinds: type[ScheduleEvent]) -> list[type[Event]]:
    return [type(event) for event in t.events if isinstance(event, kinds or ScheduleEvent)]
