"""Runs that go on for long: which of them it is time to tell of."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mega.context import RunContext

__all__ = ["LongRuns"]

logger = logging.getLogger("mega.job")

FIRST_TOLD_AFTER = 60.0


class LongRuns:
    """Logs each run that has gone on for `after` seconds, and again whenever that doubles.

    `in_hand` belongs to another thread, which adds and removes runs at any time.
    """

    def __init__(
        self,
        in_hand: dict[RunContext, float],
        *,
        now: Callable[[], float],
        after: float = FIRST_TOLD_AFTER,
    ) -> None:
        self._in_hand = in_hand
        self._now = now
        self._after = after
        self._told_next: dict[RunContext, float] = {}

    def look(self) -> None:
        """Log what is due now."""
        runs, now = self._in_hand.copy(), self._now()
        due = {run: self._told_next.get(run, self._after) for run in runs}
        self._told_next = {}
        for run, begun in runs.items():
            seconds = now - begun
            if seconds >= due[run]:
                logger.warning("%s has been running for %.0f s", run, seconds)
            if seconds >= self._after:
                self._told_next[run] = next_double(due[run], seconds)


def next_double(due: float, seconds: float) -> float:
    """Return the first of `due`, its double and so on that is still to come."""
    while due <= seconds:
        due *= 2
    return due
