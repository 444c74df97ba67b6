"""How the last run of one schedule ended, as it is kept for people."""

from __future__ import annotations

from datetime import datetime

import msgspec

__all__ = ["ScheduleRecord", "decode_schedule_record", "encode_schedule_record"]


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last run of a schedule, in whichever process. `tick` None: it was run by hand.

    `timetable` and `timezone` are as they were declared, `seconds` is how long the run took,
    `error` one line of text, and `next_at` the tick that came next when the run had ended.
    """

    name: str
    timetable: str
    timezone: str | None = None
    tick: datetime | None = None
    started_at: datetime
    seconds: float
    error: str | None = None
    worker: str
    next_at: datetime | None = None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ScheduleRecord)


def encode_schedule_record(record: ScheduleRecord) -> bytes:
    """Return the record as JSON."""
    return _encoder.encode(record)


def decode_schedule_record(body: bytes) -> ScheduleRecord:
    """Return the record in `body`. Raises: msgspec.DecodeError."""
    return _decoder.decode(body)
