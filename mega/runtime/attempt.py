"""One attempt of one job: what was delivered, and which run it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mega.ports import Delivery
from mega.wire.message import Message

__all__ = ["Attempt"]


@dataclass(slots=True)
class Attempt:
    """A delivery with its message, the number of this run, and how many there may be."""

    delivery: Delivery
    message: Message
    number: int
    limit: int
    started_at: datetime | None = None

    def enqueued_at(self) -> datetime:
        """Return when the job, not this copy of it, was stored."""
        return self.message.enqueued_at or self.delivery.stored_at

    def copy(self, number: int) -> Message:
        """Return the message of the job's run of that number."""
        return replace(self.message, attempt=number, enqueued_at=self.enqueued_at())

    def facts(self) -> dict[str, Any]:
        """Return what every event of this run says."""
        message = self.message
        return {"job_id": message.id, "subject": message.subject, "attempt": self.number}
