"""Enqueue: from a payload and options to a stored message and the job's handle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from anyio.lowlevel import checkpoint

from mega.declare.naming import check_subject
from mega.declare.registry import JobSpec
from mega.errors import (
    BrokerError,
    BrokerFull,
    PayloadError,
    PayloadTooLarge,
    UnknownSubject,
)
from mega.events import JobEnqueued
from mega.handles import BulkOptions, EnqueueOptions, Job
from mega.ports import Broker, Guard, NotBegun, Outcome, Queue, Receipt
from mega.runtime.hub import Hub
from mega.runtime.plan import Plan, plan_many, plan_one
from mega.runtime.room import check_room
from mega.runtime.unique import hold_key
from mega.runtime.waiting import WaitingRecords
from mega.wire.message import Message
from mega.wire.payload import Codec
from mega.wire.record import LIVE_TTL, JobRecord

__all__ = ["Producer", "Target"]

#: How long a unique key is held at most when nobody frees it, beside the delay of its job.
GUARD_TTL = 24 * 3600.0
#: The broker certainly does not have the job.
REFUSALS = (UnknownSubject, BrokerFull, PayloadTooLarge)
ENCODED_IN_A_ROW = 100
STORED_IN_A_ROW = 1000


@dataclass(frozen=True, slots=True)
class Target:
    """Where jobs go, and what their payloads and results are.

    `queue` is None for a job that this process doesn't declare; its payload is plain JSON.
    """

    subject: str
    codec: Codec[Any]
    result_codec: Codec[Any]
    is_tracked: bool = True
    queue: Queue | None = None

    @classmethod
    def of(cls, spec: JobSpec) -> Target:
        """Return the target of a declared job."""
        queue = Queue(spec.subject, spec.options)
        return cls(spec.subject, spec.codec, spec.result_codec, spec.options.track, queue)

    @classmethod
    def named(cls, subject: str) -> Target:
        """Return the target of that subject. Raises: BadSubject."""
        codec: Codec[Any] = Codec(Any, job=check_subject(subject))
        return cls(subject, codec, codec)


class Producer:
    """Stores jobs through the broker, and keeps their first state."""

    def __init__(self, broker: Broker, hub: Hub) -> None:
        self._broker = broker
        self._hub = hub
        self._records = WaitingRecords(broker.state)
        self._provided: set[str] = set()

    async def enqueue(self, target: Target, payload: Any, options: EnqueueOptions) -> Job[Any]:
        """Store one job. Raises: PayloadError, BadOption, BrokerError."""
        now = self._broker.now()
        plan = plan_one(options, now=now)
        message = plan.message(target.subject, target.codec.encode(payload), now=now)
        self._check_size(message)
        if target.subject not in self._provided:
            await self._provide(target)
        if plan.unique is not None:
            return await self._store_unique(target, message, plan, now)
        is_named = plan.id is not None
        receipt = await self._store(target, message, plan, now, is_named=is_named)
        return self._job(target, message.id, is_duplicate=receipt.duplicate and is_named)

    async def enqueue_many(
        self, target: Target, payloads: Iterable[Any], options: BulkOptions
    ) -> list[Job[Any]]:
        """Store a job for each payload; a bad one refuses all before anything is sent.

        Raises: PayloadError, which names the payload by its index; BadOption; BrokerError,
        whose text says how many jobs are stored.
        """
        now = self._broker.now()
        plan = plan_many(options, now=now)
        messages = await self._messages(target, payloads, plan, now)
        if target.subject not in self._provided:
            await self._provide(target)
        stored = 0
        for first in range(0, len(messages), STORED_IN_A_ROW):
            part = messages[first : first + STORED_IN_A_ROW]
            outcomes = await self._store_part(target, part, plan, now)
            stored += sum(isinstance(outcome, Receipt) for outcome in outcomes)
            errors = [each for each in outcomes if not isinstance(each, Receipt | NotBegun)]
            if errors:
                raise counted(errors[0], stored, len(messages))
        return [self._job(target, message.id) for message in messages]

    async def _messages(
        self, target: Target, payloads: Iterable[Any], plan: Plan, now: datetime
    ) -> list[Message]:
        messages = []
        for index, payload in enumerate(payloads):
            try:
                body = target.codec.encode(payload)
            except PayloadError:
                target.codec.called(f"payloads[{index}]").encode(payload)  # raises again
                raise
            messages.append(plan.message(target.subject, body, now=now))
            self._check_size(messages[-1], f"payloads[{index}]")
            if index % ENCODED_IN_A_ROW == 0:
                await checkpoint()  # a million of them must not block the loop
        return messages

    async def _store_part(
        self, target: Target, part: Sequence[Message], plan: Plan, now: datetime
    ) -> list[Outcome]:
        async def begin(messages: Sequence[Message]) -> None:
            for message in messages:
                record = first_record(message, plan, now)
                await self._records.begin(record, ttl=LIVE_TTL + plan.wait(now), is_named=False)

        outcomes = await self._broker.publish_many(
            part,
            due_at=plan.due_at,
            after=plan.after,
            on_begin=begin if target.is_tracked else None,
        )
        for message, outcome in zip(part, outcomes, strict=True):
            if isinstance(outcome, UnknownSubject):
                self._provided.discard(target.subject)
            if isinstance(outcome, REFUSALS) and target.is_tracked:
                await self._records.withdraw(first_record(message, plan, now))
        return outcomes

    async def _store(
        self, target: Target, message: Message, plan: Plan, now: datetime, *, is_named: bool
    ) -> Receipt:
        if not target.is_tracked:
            return await self._publish(message, plan)
        record, ttl = first_record(message, plan, now), LIVE_TTL + plan.wait(now)
        found = await self._records.begin(record, ttl=ttl, is_named=is_named)
        try:
            receipt = await self._publish(message, plan)
        except REFUSALS:
            await self._records.withdraw(record)
            raise
        if not receipt.duplicate:
            await self._records.renew(record, found, ttl=ttl)
        return receipt

    async def _store_unique(
        self, target: Target, message: Message, plan: Plan, now: datetime
    ) -> Job[Any]:
        """Store the job that takes the key, or return the job that has it; see `unique`."""
        assert plan.unique is not None
        own = Guard(
            subject=message.subject,
            key=plan.unique,
            job_id=message.id,
            ttl=plan.unique_for or GUARD_TTL + plan.wait(now),
            is_timed=plan.unique_for is not None,
        )
        holder = await hold_key(self._broker, own, is_tracked=target.is_tracked)
        if holder.is_stored:
            return self._job(target, holder.job_id, is_duplicate=True)
        is_own = holder.job_id == own.job_id
        message = message.but(id=holder.job_id)
        try:
            receipt = await self._store(target, message, plan, now, is_named=False)
        except REFUSALS:
            await self._broker.guards.free(own.subject, own.key, job_id=own.job_id)
            raise
        await self._broker.guards.confirm(holder)
        return self._job(target, message.id, is_duplicate=receipt.duplicate and not is_own)

    async def _publish(self, message: Message, plan: Plan) -> Receipt:
        try:
            return await self._broker.publish(message, due_at=plan.due_at, after=plan.after)
        except UnknownSubject:
            self._provided.discard(message.subject)  # someone deleted its stream
            raise

    async def _provide(self, target: Target) -> None:
        if target.queue is not None:
            await self._broker.provide(target.queue)
            self._provided.add(target.subject)

    def _check_size(self, message: Message, called: str = "a job") -> None:
        """Leave room for what a retry and a dead letter add. Raises: PayloadTooLarge."""
        size = len(message.body)
        if message.headers:
            size += sum([len(k) + len(v) for k, v in message.headers.items()])
        called = f'{called} on "{message.subject}"'
        hint = "Store the data elsewhere, and let the payload say where."
        check_room(self._broker, size, called, hint=hint)

    def _job(self, target: Target, job_id: str, *, is_duplicate: bool = False) -> Job[Any]:
        if self._hub.wants(JobEnqueued):
            event = JobEnqueued(job_id=job_id, subject=target.subject, duplicate=is_duplicate)
            self._hub.emit(event)
        return Job(
            id=job_id,
            subject=target.subject,
            duplicate=is_duplicate,
            store=self._broker.state if target.is_tracked else None,
            codec=target.result_codec,
        )


def first_record(message: Message, plan: Plan, now: datetime) -> JobRecord:
    """Return what is known of a job before it has run."""
    return JobRecord(
        id=message.id,
        subject=message.subject,
        state="waiting",
        enqueued_at=now,
        due_at=plan.due(now),
    )


def counted(
    error: BrokerError | PayloadTooLarge, stored: int, wanted: int
) -> BrokerError | PayloadTooLarge:
    """Return the error with how many of the jobs are known to be stored in its text."""
    text = f"{error.args[0]} Of {wanted:,} jobs {stored:,} are known to be stored."
    return type(error)(text, hint=error.hint, where=error.where)
