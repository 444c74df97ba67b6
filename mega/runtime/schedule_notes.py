"""What the cluster is told of schedules beside their claims: pauses, and how runs ended."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime

import anyio

from mega.declare.registry import ScheduleSpec
from mega.errors import BrokerError, one_line
from mega.runtime.surroundings import Surroundings
from mega.wire.schedule_record import ScheduleRecord

__all__ = ["ScheduleNotes"]

logger = logging.getLogger("mega.schedule")


class ScheduleNotes:
    """Reads and writes these notes; schedules run on while they can't be had."""

    def __init__(self, around: Surroundings) -> None:
        self._store = around.broker.schedules
        self._clock = around.clock
        self._worker = around.worker
        self._paused: Mapping[str, str] = {}
        self._reading: anyio.Event | None = None

    async def paused_by(self, spec: ScheduleSpec) -> str | None:
        """Return who paused the schedule, or None, as it is or was last known.

        Of many that ask at one instant one reads, for all of them.
        """
        if self._reading is not None:
            await self._reading.wait()
        else:
            self._reading = anyio.Event()
            try:
                await self._read()
            finally:
                self._reading.set()
                self._reading = None
        return self._paused.get(spec.name)

    async def pause(self, spec: ScheduleSpec) -> None:
        """Pause the schedule in all processes. Raises: BrokerError."""
        await self._store.pause(spec.name, by=self._worker)
        logger.info("%s is paused", spec.name)

    async def resume(self, spec: ScheduleSpec) -> None:
        """Take that back. Raises: BrokerError."""
        await self._store.resume(spec.name)
        logger.info("%s is resumed", spec.name)

    async def is_paused(self, spec: ScheduleSpec) -> bool:
        """Whether the schedule is paused now. Raises: BrokerError."""
        return spec.name in await self._store.paused()

    async def last_run(self, spec: ScheduleSpec) -> ScheduleRecord | None:
        """Return how the last run ended, in whichever process. Raises: BrokerError."""
        return await self._store.last_run(spec.name)

    async def keep(
        self,
        spec: ScheduleSpec,
        *,
        tick: datetime | None,
        started_at: datetime,
        seconds: float,
        error: BaseException | None = None,
    ) -> None:
        """Keep how a run ended. One that can't be kept is not worth more than a debug line."""
        record = ScheduleRecord(
            name=spec.name,
            timetable=spec.timetable.text,
            timezone=spec.timezone,
            tick=tick,
            started_at=started_at,
            seconds=seconds,
            error=one_line(error) if error is not None else None,
            worker=self._worker,
            next_at=spec.timetable.next(self._clock.now()),
        )
        try:
            await self._store.keep(record)
        except BrokerError as failure:
            logger.debug("the last run of %s is not kept: %s", spec.name, one_line(failure))

    async def _read(self) -> None:
        try:
            self._paused = await self._store.paused()
        except BrokerError as error:
            logger.debug("which schedules are paused is not known: %s", one_line(error))
