"""Enqueue: from a payload and options to a stored message and the job's handle."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from mega.declare.naming import check_subject
from mega.declare.registry import JobSpec
from mega.errors import BadOption, PayloadTooLarge, UnknownSubject
from mega.events import JobEnqueued
from mega.handles import EnqueueOptions, Job
from mega.options import JobOptions, check_count, refuse_unknown, to_backoff, to_seconds
from mega.ports import Broker, Clock, Queue, Receipt
from mega.runtime.hub import Hub
from mega.wire.message import Message, check_headers, check_id, new_id
from mega.wire.payload import Codec
from mega.wire.record import LIVE_TTL, JobRecord

__all__ = ["Producer", "plan"]

#: What a dead letter adds at most: 8 KiB of traceback and of text, escaped, and the rest.
RESERVE = 40 * 1024
LATEST = datetime(2100, 1, 1, tzinfo=UTC)
KNOWN = frozenset(EnqueueOptions.__annotations__)


def plan(
    subject: str, body: bytes, options: EnqueueOptions, *, now: datetime
) -> tuple[Message, datetime | None]:
    """Return the message for one enqueue and when it is due (None: at once).

    Raises: BadOption.
    """
    unknown = {name: value for name, value in options.items() if name not in KNOWN}
    refuse_unknown(unknown, KNOWN, what="enqueue")
    job_id, headers, backoff = options.get("id"), options.get("headers"), options.get("backoff")
    due_at = _due_at(options.get("delay"), options.get("at"), now)
    message = Message(
        id=new_id() if job_id is None else check_id(job_id),
        subject=subject,
        body=body,
        # The broker stamps a delayed copy when it fires.
        enqueued_at=now if due_at else None,
        retries=_retries(options.get("retries"), options.get("attempts")),
        backoff=None if backoff is None else to_backoff(backoff),
        headers=check_headers(headers) if headers else {},
    )
    return message, due_at


class Producer:
    """Stores jobs through the broker, and keeps their first state."""

    def __init__(self, broker: Broker, hub: Hub, clock: Clock) -> None:
        self._broker = broker
        self._hub = hub
        self._clock = clock
        self._provided: set[str] = set()

    async def enqueue(self, spec: JobSpec, payload: Any, options: EnqueueOptions) -> Job[Any]:
        """Store one job. Raises: PayloadError, BadOption, BrokerUnavailable."""
        body = spec.codec.encode(payload)
        if spec.subject not in self._provided:
            await self._broker.provide(Queue(spec.subject, spec.options))
            self._provided.add(spec.subject)
        return await self._store(spec.subject, body, options, spec.options, spec.result_codec)

    async def enqueue_by_name(
        self, subject: str, payload: Any, options: EnqueueOptions
    ) -> Job[Any]:
        """Store a job that this process doesn't declare; its payload is plain JSON."""
        codec: Codec[Any] = Codec(Any, job=check_subject(subject))
        return await self._store(subject, codec.encode(payload), options, JobOptions(), codec)

    async def _store(
        self,
        subject: str,
        body: bytes,
        options: EnqueueOptions,
        declared: JobOptions,
        result_codec: Codec[Any],
    ) -> Job[Any]:
        now = self._clock.now()
        message, due_at = plan(subject, body, options, now=now)
        self._check_size(message)
        if declared.track:
            await self._write_waiting(message, now, due_at)
        receipt = await self._publish(message, due_at)
        if self._hub.wants(JobEnqueued):
            event = JobEnqueued(job_id=message.id, subject=subject, duplicate=receipt.duplicate)
            self._hub.emit(event)
        return Job(
            id=message.id,
            subject=subject,
            duplicate=receipt.duplicate,
            store=self._broker.state if declared.track else None,
            codec=result_codec,
        )

    async def _publish(self, message: Message, due_at: datetime | None) -> Receipt:
        try:
            return await self._broker.publish(message, due_at=due_at)
        except UnknownSubject:
            self._provided.discard(message.subject)  # someone deleted its stream
            raise

    def _check_size(self, message: Message) -> None:
        """Leave room for what a retry and a dead letter add. Raises: PayloadTooLarge."""
        room = self._broker.max_size - RESERVE
        size = len(message.body) + sum(len(k) + len(v) for k, v in message.headers.items())
        if size > room:
            raise PayloadTooLarge(
                f'a job on "{message.subject}" has {size:,} bytes, the broker takes {room:,}.',
                hint="Store the data elsewhere, and let the payload say where.",
            )

    async def _write_waiting(
        self, message: Message, now: datetime, due_at: datetime | None
    ) -> None:
        """Write the first record before the publish, so that it can't replace a later one."""
        record = JobRecord(
            id=message.id,
            subject=message.subject,
            state="waiting",
            enqueued_at=now,
            due_at=due_at,
        )
        wait = (due_at - now).total_seconds() if due_at else 0.0
        await self._broker.state.create(record, ttl=LIVE_TTL + max(0.0, wait))


def _retries(retries: int | None, attempts: int | None) -> int | None:
    if retries is not None and attempts is not None:
        raise BadOption(
            "enqueue was given both retries= and attempts=.",
            hint="retries counts the runs after the first, attempts counts all runs.",
        )
    if attempts is not None:
        return check_count(attempts, option="attempts", minimum=1) - 1
    return None if retries is None else check_count(retries, option="retries")


def _due_at(delay: Any, at: Any, now: datetime) -> datetime | None:
    if delay is not None and at is not None:
        raise BadOption("enqueue was given both delay= and at=.")
    if delay is not None:
        seconds = to_seconds(delay, option="delay")
        try:
            at = now + timedelta(seconds=seconds)
        except OverflowError:
            at = LATEST + timedelta(days=1)
        at = at if seconds else None
    if at is None:
        return None
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise BadOption(
            f"at={at!r} is not an aware datetime.",
            hint="Give it a zone, such as datetime.now(UTC) + timedelta(hours=1).",
        )
    if at > LATEST:
        raise BadOption(f"the job would be due after {LATEST:%Y}, which can't be meant.")
    return None if at <= now else at.astimezone(UTC)
