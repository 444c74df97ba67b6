"""What a run happens on: a broker in memory, its clock, deliveries that note their answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import anyio

from mega.adapters.memory import MemoryBroker
from mega.errors import BrokerUnavailable, PayloadTooLarge
from mega.events import Event
from mega.group import Group
from mega.handles import JobHandle
from mega.ports import Queue
from mega.runtime.consumer import Consumer
from mega.runtime.surroundings import Surroundings
from mega.testing import EPOCH, VirtualClock
from mega.wire.message import Message
from mega.wire.record import JobRecord

AnyJob = JobHandle[Any, ..., Any, Any]


@dataclass
class Stage:
    """What a run happens on: a broker in memory, its clock, and a note of all events."""

    broker: MemoryBroker
    clock: VirtualClock
    around: Surroundings
    events: list[Event] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    @property
    def letters(self) -> list[dict[str, Any]]:
        return [json.loads(letter) for letter in self.broker.dead_letters("email.send")]

    async def record(self, job_id: str) -> JobRecord:
        record = await self.broker.state.get(job_id)
        assert record is not None
        return record

    async def provide(self, job: AnyJob) -> None:
        await self.broker.provide(Queue(job.subject, job.spec.options))

    async def publish(self, body: bytes = b"null", **fields: Any) -> None:
        message = Message(**{"id": "1", "subject": "email.send", "body": body, **fields})
        await self.broker.publish(message)

    @asynccontextmanager
    async def serving(self, job: AnyJob) -> AsyncIterator[None]:
        """Consume the job until the block ends; what is in hand then is cancelled."""
        async with anyio.create_task_group() as tasks:
            consumer = Consumer(job.spec, self.around)
            await consumer.provide()
            tasks.start_soon(consumer.run, anyio.Event())
            await self.clock.advance(0)
            try:
                yield
                await self.clock.advance(0)
            finally:
                tasks.cancel_scope.cancel()


def declare(fn: Callable[..., Any], **options: Any) -> AnyJob:
    handle: AnyJob = Group().job("email.send", **{"backoff": 10, **options})(fn)
    return handle


AWAY = BrokerUnavailable("the broker is away.")
TOO_LARGE = PayloadTooLarge("a message takes 2,000,000 bytes.")


@dataclass
class Handed:
    """A delivery that notes its answers; memory hands nothing over twice and refuses nothing."""

    starts: int = 1
    headers: Mapping[str, str] | None = field(default_factory=lambda: {"Mega-Id": "1"})
    refusal: Exception | None = None
    takes_copies: bool = True
    is_late: bool = False
    body: bytes = b"null"
    subject: str = "email.send"
    fallback_id: str = "email.send.1"
    stored_at: datetime = EPOCH
    lapsed: bool = False
    answers: list[str] = field(default_factory=list)
    copies: list[Message] = field(default_factory=list)
    letters: list[dict[str, Any]] = field(default_factory=list)

    def _answer(self, word: str) -> None:
        if self.refusal:
            raise self.refusal
        self.answers.append(word)

    def begin(self) -> bool:
        return not self.is_late

    def leave_scopes(self) -> None:
        pass

    async def ack(self) -> None:
        self._answer("ack")

    def _take(self, copy: Message) -> None:
        if not self.takes_copies:
            raise TOO_LARGE
        self.copies.append(copy)

    async def retry(self, copy: Message, *, after: float) -> None:
        self._take(copy)
        self._answer(f"retry after {after:g} s")

    async def give_back(self, copy: Message) -> None:
        self._take(copy)
        self._answer("give back")

    async def dead_letter(self, letter: bytes, *, letter_id: str) -> None:
        self._answer("dead letter")
        self.letters.append(json.loads(letter))
