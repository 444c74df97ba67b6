"""What a job that is handed out again has behind it, and whether it may begin once more; pure.

Hand-overs are counted, whether or not a handler was called in each: a server or a network
can die in between as well as a worker. Only the last start that a tracked job has must have
been noted in its record before it counts.
"""

from __future__ import annotations

from mega.errors import JobFailedError
from mega.runtime.attempt import Attempt
from mega.wire.record import JobRecord

__all__ = ["crash_error", "failed_before", "may_begin", "wait_for"]

FIRST_WAIT, LONGEST_WAIT, MOST_DOUBLINGS = 1.0, 60.0, 6


def may_begin(attempt: Attempt, record: JobRecord | None, *, is_tracked: bool) -> bool:
    """Return whether the job runs. Sets the attempt's number to that of the last begun run.

    A job that was handed out too often is refused, unless its record shows that the last
    of its runs has never begun.
    """
    if attempt.number <= attempt.limit:
        return True
    began = record is not None and record.state == "running" and record.attempt >= attempt.limit
    attempt.number = attempt.limit if is_tracked else attempt.number - 1
    return is_tracked and not began


def failed_before(record: JobRecord, attempt: Attempt) -> tuple[JobFailedError, str] | None:
    """Return the error and the reason of a run that failed, whose dead letter was not stored."""
    if record.state != "running" or record.error is None:
        return None
    attempt.number = record.attempt
    text = record.error.removeprefix(f"{JobFailedError.__name__}: ")
    return JobFailedError(text), record.reason or "retries"


def crash_error(attempt: Attempt) -> JobFailedError:
    """Return what is known of a job that never comes to its end."""
    hand_overs = attempt.delivery.starts - 1
    times = "once" if hand_overs <= 1 else f"{hand_overs} times"
    crashes = attempt.message.crashes
    if not crashes:
        cause = "its worker died, or the connection did"
    else:
        runs = "a run" if len(crashes) == 1 else f"{len(crashes)} runs"
        cause = f"its worker died in {runs}, the last was {crashes[-1].worker}"
    return JobFailedError(f"it was handed out {times} and never ended: {cause}.")


def wait_for(attempt: Attempt, record: JobRecord) -> float:
    """Return in how many seconds to look again after a run that still goes on.

    Each look stores one more copy, so the copies since that run's count the looks.
    """
    looks = attempt.message.copies - record.copies - 1
    return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** max(0, min(looks, MOST_DOUBLINGS)))
