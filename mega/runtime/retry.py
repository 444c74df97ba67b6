"""What becomes of a run that ended in an error; pure."""

from __future__ import annotations

from dataclasses import dataclass

from mega.options import JobOptions
from mega.wire.message import Message

__all__ = ["NextRun", "max_attempts", "next_run_after"]


@dataclass(frozen=True, slots=True)
class NextRun:
    """The next attempt of a job, and the seconds until it is due."""

    attempt: int
    delay: float


def max_attempts(message: Message, options: JobOptions) -> int:
    """Return how many runs the job may have in all; the enqueue overrides the declaration."""
    retries = options.retries if message.retries is None else message.retries
    return retries + 1


def next_run_after(attempt: int, message: Message, options: JobOptions) -> NextRun | None:
    """Return the run that follows a failed one, or None when that was the last."""
    if attempt >= max_attempts(message, options):
        return None
    backoff = message.backoff or options.backoff
    return NextRun(attempt + 1, backoff.delay(attempt))
