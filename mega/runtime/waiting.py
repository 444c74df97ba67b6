"""The first record of a job, `waiting`: there before its message, and gone with a refused one."""

from __future__ import annotations

import logging

from mega.errors import BrokerError
from mega.ports import Kept, StateStore
from mega.wire.record import JobRecord

__all__ = ["WaitingRecords"]

logger = logging.getLogger("mega.job")


class WaitingRecords:
    """Writes first records so that none hides what a worker wrote, whoever is faster."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    async def begin(self, record: JobRecord, *, ttl: float, is_named: bool) -> Kept | None:
        """Write the record unless there is one, and return that one.

        Only an id that was chosen can have one already: that of a job that has ended, when
        it is used again after the duplicate window.
        """
        found = await self._store.look(record.id) if is_named else None
        if found is None:
            await self._store.create(record, ttl=ttl)
        elif found.is_vacant:  # where one was withdrawn, `create` would be refused
            await self._store.replace(record.id, record, version=found.version, ttl=ttl)
        return found

    async def renew(self, record: JobRecord, found: Kept | None, *, ttl: float) -> None:
        """Replace the end of an earlier job of that id, or `result` would give its result.

        A worker that has begun the new job meanwhile has written, and that stays.
        """
        if found is not None and found.record is not None and found.record.is_final:
            await self._store.replace(record.id, record, version=found.version, ttl=ttl)

    async def withdraw(self, record: JobRecord) -> None:
        """Remove the record of a job that was refused, if it is still this one."""
        try:
            if await self._store.get(record.id) == record:  # which waits for our own write
                found = await self._store.look(record.id)
                if found.record == record:
                    await self._store.replace(record.id, None, version=found.version, ttl=0)
        except BrokerError as error:
            logger.debug("the record of %s stays although it was refused: %s", record.id, error)
