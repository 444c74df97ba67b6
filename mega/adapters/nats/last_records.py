"""The last record of each job that this process wrote, to be written again where it was lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias

from mega.wire.record import JobRecord

__all__ = ["LastRecords", "Written", "is_behind"]

Rank: TypeAlias = tuple[bool, int, int, int, datetime]

REMEMBERED, MOST_BYTES = 8192, 4 * 2**20
#: A job whose record waits, but for one that was never begun, has an answer from its run.
STAGES = {"waiting": 0, "running": 1, "retrying": 3, "done": 4, "failed": 4}
ANSWERED, FAILING = 3, 2
USED_AGAIN_AFTER = timedelta(minutes=1)
NEVER = datetime.min.replace(tzinfo=UTC)


class Written(NamedTuple):
    """A record as bytes, and for how many seconds it was to live."""

    body: bytes
    ttl: float


class LastRecords:
    """Two generations of a dict bound the memory, by the number of records and their bytes."""

    def __init__(self) -> None:
        self._young: dict[str, Written] = {}
        self._old: dict[str, Written] = {}
        self._bytes = 0

    def keep(self, job_id: str, written: Written) -> None:
        """Remember it in the place of an earlier one of that job."""
        self._young[job_id] = written
        self._bytes += len(written.body)
        if len(self._young) >= REMEMBERED or self._bytes >= MOST_BYTES:
            self._old, self._young, self._bytes = self._young, {}, 0

    def find(self, job_id: str) -> Written | None:
        """Return the last one of that job, if it is remembered."""
        return self._young.get(job_id) or self._old.get(job_id)


def is_behind(stored: JobRecord, ours: JobRecord) -> bool:
    """Whether `ours` is of the same life of the same job, and tells more of it."""
    is_same_life = is_same_job(stored, ours) and stored.earlier_deaths == ours.earlier_deaths
    return is_same_life and not stored.is_final and rank(stored) < rank(ours)


def is_same_job(stored: JobRecord, ours: JobRecord) -> bool:
    """Whether both are of one job, and not of two that had one id after each other."""
    before, after = stored.enqueued_at, ours.enqueued_at
    is_the_producers = stored.started_at is None and not stored.copies
    if is_the_producers and before is not None and after is not None:
        # It bears the time of the producer's clock; the job has that of the server's.
        return before - after < USED_AGAIN_AFTER
    return before == after


def rank(record: JobRecord) -> Rank:
    """Return what grows while a job goes on: an end, or its copies, attempts and stages."""
    stage = STAGES[record.state]
    if record.started_at is not None and record.state == "waiting":
        stage = ANSWERED
    elif record.error is not None and record.state == "running":
        stage = FAILING
    return record.is_final, record.copies, record.attempt, stage, record.started_at or NEVER
