"""One attempt of one job: what was delivered, and which run it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mega.errors import PayloadError
from mega.ports import Delivery
from mega.wire.history import Crash, with_latest
from mega.wire.message import Message
from mega.wire.record import JobRecord, JobState

__all__ = ["Attempt"]


@dataclass(slots=True)
class Attempt:
    """A delivery with its message, the number of this run, and how many there may be.

    `worker` is the process that runs it; `fault` says why the message can't be read. `version`
    is that of the job's record, where it was looked at before the start.
    """

    delivery: Delivery
    message: Message
    number: int
    limit: int
    worker: str
    fault: PayloadError | None = None
    version: int | None = None
    started_at: datetime | None = None
    stamp: datetime | None = field(default=None, init=False)

    @property
    def is_first(self) -> bool:
        """Whether nobody can have begun the job before, so that no record needs a look."""
        return self.delivery.starts == 1 and not self.message.copies and not self.is_extra

    @property
    def is_extra(self) -> bool:
        """Whether the job was handed out more often than it may run."""
        return self.message.attempt + self.delivery.starts - 1 > self.limit

    def enqueued_at(self) -> datetime:
        """Return when the job, not this copy of it, was stored."""
        if self.stamp is None:
            self.stamp = self.message.enqueued_at or self.delivery.stored_at
        return self.stamp

    def copy(self, number: int) -> Message:
        """Return the message of the job's run of that number."""
        return self.message.next_copy(attempt=number, enqueued_at=self.enqueued_at())

    def facts(self) -> dict[str, Any]:
        """Return what every event of this run says."""
        message = self.message
        return {"job_id": message.id, "subject": message.subject, "attempt": self.number}

    def record(self, state: JobState, **more: Any) -> JobRecord:
        """Return what is known of the job now."""
        message = self.message
        return JobRecord(
            id=message.id,
            subject=message.subject,
            state=state,
            attempt=self.number,
            started_at=self.started_at,
            enqueued_at=self.enqueued_at(),
            worker=self.worker,
            copies=message.copies,
            crashes=message.crashes,
            earlier_deaths=message.deaths,
            **more,
        )

    def is_of(self, record: JobRecord) -> bool:
        """Whether the record is of this job, not of an earlier one or an earlier life of it.

        An id may be used again after a while, and a dead letter be sent back.
        """
        is_same_job = record.enqueued_at == self.enqueued_at()
        return is_same_job and record.earlier_deaths == self.message.deaths

    def was_answered(self, record: JobRecord) -> bool:
        """Whether this copy comes back although its job has ended, or goes on in a later copy."""
        return record.is_final or record.copies > self.message.copies

    def put_off_by(self, record: JobRecord) -> bool:
        """Whether a run of this copy has asked for the next one, which may be stored or not."""
        is_from_a_run = record.started_at is not None and record.due_at is not None
        return is_from_a_run and record.copies == self.message.copies

    def may_go_on(self, record: JobRecord) -> bool:
        """Whether that run goes on if its worker lives: no lease has ended for this hand-over.

        A worker that was cut off may store the next copy so late that its own was handed to
        another worker before.
        """
        is_of_this_copy = record.copies == self.message.copies
        return is_running(record) and not (is_of_this_copy and self.delivery.starts > 1)

    def learn_from(self, record: JobRecord) -> None:
        """Take over what earlier starts left; one that is `running` died with its worker."""
        crashes = record.crashes
        if is_running(record):
            crash = Crash(number=record.attempt, worker=record.worker, started_at=record.started_at)
            crashes = with_latest(crashes, crash)
        self.message = self.message.but(crashes=crashes)
        if record.state in ("running", "retrying"):
            self.number = max(self.number, record.attempt + 1)


def is_running(record: JobRecord) -> bool:
    """Whether a handler was called and has not ended yet, or died with its worker."""
    return record.state == "running" and record.error is None
