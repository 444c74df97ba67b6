"""Dead letters, as an operator handles them: look, send back, throw away."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TypeAlias

from mega.errors import BrokerFull, PayloadTooLarge, UnknownSubject
from mega.options import check_count
from mega.ports import Broker, Kept, StoredLetter
from mega.wire.dead_letter import Envelope, revive, unseal
from mega.wire.message import Message
from mega.wire.record import LIVE_TTL, JobRecord

__all__ = ["DeadLetters", "Letter"]

logger = logging.getLogger("mega")


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter. `envelope` says what happened to which job."""

    stored: StoredLetter
    envelope: Envelope

    @property
    def sequence(self) -> int:
        """The number that names the letter among those of its subject; it grows."""
        return self.stored.sequence


# Inside the class, `list` is its method.
Letters: TypeAlias = list[Letter]


class DeadLetters:
    """The dead letters of one subject, as `app.dead_letters(...)` gives them."""

    def __init__(self, broker: Broker, subject: str) -> None:
        self.subject = subject
        self._broker = broker

    async def list(self, *, limit: int = 100, newest_first: bool = True) -> Letters:
        """Return at most `limit` letters; none when the subject never had any.

        What lies among them without being a letter of ours is left out, with a log line.
        Raises: BrokerUnavailable.
        """
        check_count(limit, option="limit", minimum=1)
        stored = await self._broker.letters.read(
            self.subject, limit=limit, newest_first=newest_first
        )
        read = (self._open(each) for each in stored)
        return [letter for letter in read if letter is not None]

    async def requeue(self, letter: Letter) -> bool:
        """Send a job back to its queue: the same id, payload and headers, and all its retries.

        The letter is deleted once the job is stored. Return False when somebody else was
        faster. A call that raised may be repeated at once: the job is stored once.
        Raises: BrokerUnavailable, UnknownSubject, PayloadTooLarge.
        """
        letters = self._broker.letters
        if not await letters.holds(self.subject, letter.stored):
            return False
        message = revive(letter.envelope)
        before = await self._note_waiting(message)
        try:
            await self._broker.publish(message)
        except (UnknownSubject, BrokerFull, PayloadTooLarge):
            await self._put_back(before)
            raise
        return await letters.delete(self.subject, letter.stored)

    async def delete(self, letter: Letter) -> bool:
        """Throw one letter away. Return False when it was not there any more."""
        return await self._broker.letters.delete(self.subject, letter.stored)

    async def purge(self) -> int:
        """Throw all letters away, and return how many stored messages that were."""
        return await self._broker.letters.purge(self.subject)

    def _open(self, stored: StoredLetter) -> Letter | None:
        try:
            return Letter(stored, unseal(stored.body))
        except ValueError as error:
            text = "%s: what lies at %d among the dead letters is none: %s"
            logger.warning(text, self.subject, stored.sequence, error)
            return None

    async def _note_waiting(self, message: Message) -> JobRecord | None:
        """Write the record before the job can run. Return the old one, if the job has one.

        A record of the life that begins now is left alone: the call before stored the job, and
        it may have ended already.
        """
        kept = await self._broker.state.look(message.id)
        if kept.record is None or kept.record.enqueued_at != message.enqueued_at:
            return None
        if kept.record.earlier_deaths == message.deaths:
            return None
        waiting = JobRecord(
            id=message.id,
            subject=message.subject,
            state="waiting",
            enqueued_at=message.enqueued_at,
            earlier_deaths=message.deaths,
        )
        return kept.record if await self._replace(kept, waiting) else None

    async def _put_back(self, before: JobRecord | None) -> None:
        if before is not None:
            await self._replace(await self._broker.state.look(before.id), before)

    async def _replace(self, kept: Kept, record: JobRecord) -> bool:
        return await self._broker.state.replace(
            record.id, record, version=kept.version, ttl=LIVE_TTL
        )
