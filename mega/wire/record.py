"""What is known of one job, as it is kept in the state store."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from mega.wire.history import Crash, Death

__all__ = ["LIVE_TTL", "JobRecord", "JobState", "decode_record", "encode_record"]

JobState = Literal["waiting", "running", "retrying", "done", "failed"]
#: How many seconds the record of a job lives that has not ended.
LIVE_TTL = 30 * 24 * 3600.0
FINAL: frozenset[JobState] = frozenset(("done", "failed"))


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a job. It goes forward, but for a run that is given back or snoozed.

    `result` is JSON as the handler's value was encoded; `error` is one line of text.
    `reason` says why the job is a dead letter, in the words of the envelope.
    `copies` counts the copies of the job before the one that wrote it.
    `due_at` is when a delayed, retried or snoozed job runs next. `crashes` are the runs whose
    worker died, the last twenty; `earlier_deaths` the dead letters from which it came back.
    A job that is `running` with an `error` has failed, and its dead letter isn't stored yet.
    """

    id: str
    subject: str
    state: JobState
    attempt: int = 1
    error: str | None = None
    reason: str | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")
    enqueued_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    due_at: datetime | None = None
    worker: str | None = None
    copies: int = 0
    crashes: tuple[Crash, ...] = ()
    earlier_deaths: tuple[Death, ...] = ()

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["result"] = bytes(self.result).decode() if self.state == "done" else None
        facts = [f"{name}={value!r}" for name, value in shown.items() if value not in (None, ())]
        return f"JobRecord({', '.join(facts)})"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self.state in FINAL


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(JobRecord)


def encode_record(record: JobRecord) -> bytes:
    """Return the record as JSON."""
    return _encoder.encode(record)


def decode_record(body: bytes) -> JobRecord:
    """Return the record in `body`. Raises: msgspec.DecodeError."""
    return _decoder.decode(body)
