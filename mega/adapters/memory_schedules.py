"""Which schedules are paused, and their last runs, in memory."""

from __future__ import annotations

from collections.abc import Mapping

from mega.wire.schedule_record import (
    ScheduleRecord,
    decode_schedule_record,
    encode_schedule_record,
)

__all__ = ["MemorySchedules"]


class MemorySchedules:
    """Implements `ports.ScheduleStore`. Records are kept as bytes, as on the wire."""

    def __init__(self) -> None:
        self._paused: dict[str, str] = {}
        self._last: dict[str, bytes] = {}

    async def paused(self) -> Mapping[str, str]:
        return dict(self._paused)

    async def pause(self, name: str, *, by: str) -> None:
        self._paused.setdefault(name, by)

    async def resume(self, name: str) -> None:
        self._paused.pop(name, None)

    async def keep(self, record: ScheduleRecord) -> None:
        self._last[record.name] = encode_schedule_record(record)

    async def last_run(self, name: str) -> ScheduleRecord | None:
        body = self._last.get(name)
        return decode_schedule_record(body) if body else None
