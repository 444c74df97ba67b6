"""What becomes of a run that ended in an error; pure, but for a log line."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mega.control import Control, Reject, Retry, Snooze
from mega.errors import one_line
from mega.options import JobOptions
from mega.wire.message import Message

__all__ = ["Fate", "NextRun", "fate_of", "max_attempts"]

logger = logging.getLogger("mega.job")

#: Ten years. Whatever says more can't mean it, and the arithmetic of dates ends somewhere.
LONGEST_DELAY = 10 * 365 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class NextRun:
    """The next attempt of a job, and the seconds until it is due."""

    attempt: int
    delay: float


#: A next run, or the reason for which the job is a dead letter now.
Fate: TypeAlias = NextRun | Literal["retries", "rejected"]


def max_attempts(message: Message, options: JobOptions) -> int:
    """Return how many runs the job may have in all; the enqueue overrides the declaration."""
    retries = options.retries if message.retries is None else message.retries
    return retries + 1


def fate_of(error: BaseException, attempt: int, message: Message, options: JobOptions) -> Fate:
    """Return what follows on a run that raised `error`. A snooze keeps the attempt's number."""
    if isinstance(error, Snooze):
        return NextRun(attempt, min(error.for_, LONGEST_DELAY))
    if isinstance(error, Reject) or not may_help(error, options.retry_on):
        return "rejected"
    if attempt >= max_attempts(message, options):
        return "retries"
    asked = error.after if isinstance(error, Retry) else None
    delay = (message.backoff or options.backoff).delay(attempt) if asked is None else asked
    return NextRun(attempt + 1, min(delay, LONGEST_DELAY))


def may_help(error: BaseException, retry_on: Callable[[Exception], bool]) -> bool:
    """Whether another run is worth it. What is no Exception, or steers the job, always is."""
    if not isinstance(error, Exception) or isinstance(error, Control):
        return True
    try:
        return bool(retry_on(error))
    except BaseException:
        logger.exception("retry_on raised for %s; the job is retried", one_line(error))
        return True
