"""Storing messages: a PubAck is awaited, a lost one is asked for again under the same id."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from nats.aio.msg import Msg

from mega.adapters.nats.client import Client
from mega.adapters.nats.layout import key_token, schedule_subject
from mega.adapters.nats.replies import Lost, is_no_responders
from mega.adapters.nats.server_clock import ServerClock
from mega.errors import BrokerFull, PayloadTooLarge, UnknownSubject
from mega.ports import Receipt
from mega.wire.message import SERVER_ID, Message, pack

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "EXPECTED_SEQUENCE",
    "STORED",
    "WITHIN",
    "Outgoing",
    "PubAck",
    "Publisher",
    "WrongSequence",
    "decode_ack",
]

EXPECTED_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
SCHEDULE, SCHEDULE_TARGET = "Nats-Schedule", "Nats-Schedule-Target"

STORED, ALREADY_STORED = Receipt(duplicate=False), Receipt(duplicate=True)
WITHIN = 5.0
ONE_TRY = 2.0
NO_STREAM_TRIES, NO_STREAM_WAIT = 3, 0.25
TOO_LARGE, WRONG_SEQUENCE = 10054, 10071
#: No room: in the account, on the server, for its memory or its files, in the stream.
FULL = (10002, 10023, 10028, 10047, 10077)


class PubError(msgspec.Struct):
    err_code: int = 0
    description: str = "no reason given"


class PubAck(msgspec.Struct):
    """The server's answer to a publish into a stream."""

    seq: int = 0
    duplicate: bool = False
    error: PubError | None = None


class WrongSequence(Exception):
    """The subject's last sequence isn't the expected one: someone else wrote."""


class Outgoing(NamedTuple):
    """A message as it is sent."""

    subject: str
    body: bytes
    headers: dict[str, str]


decode_ack = msgspec.json.Decoder(PubAck).decode


class Publisher:
    """The way into streams, for many at once."""

    def __init__(self, client: Client, clock: ServerClock) -> None:
        self._client = client
        self._replies = client.replies
        self._clock = clock

    async def publish(
        self,
        message: Message,
        *,
        server_id: str,
        due_at: datetime | None = None,
        after: float = 0.0,
    ) -> Receipt:
        """Store the message at once, or its delayed copy. `server_id` tells duplicates.

        Raises: BrokerUnavailable, PayloadTooLarge.
        """
        if after:
            due_at = await self.due_in(after)
        ack = await self.store(*self.outgoing(message, server_id=server_id, due_at=due_at))
        return ALREADY_STORED if ack.duplicate else STORED

    async def due_in(self, seconds: float) -> datetime:
        """Return the server's instant in that many seconds."""
        return await self._clock.measured_now() + timedelta(seconds=seconds)

    def outgoing(
        self, message: Message, *, server_id: str, due_at: datetime | None = None
    ) -> Outgoing:
        """Return the message, or its delayed copy, as it is sent."""
        headers = pack(message)
        headers[SERVER_ID] = server_id
        subject = message.subject
        if due_at is not None and due_at > self._clock.now():
            headers[SCHEDULE] = f"@at {rfc3339(due_at)}"
            headers[SCHEDULE_TARGET] = subject
            subject = schedule_subject(subject, key_token(message.id))
        return Outgoing(subject, message.body, headers)

    async def store(self, subject: str, body: bytes, headers: dict[str, str]) -> PubAck:
        """Publish into the subject's stream; safe to repeat, for the headers carry an id.

        Raises: BrokerUnavailable, BrokerFull, UnknownSubject, PayloadTooLarge, WrongSequence.
        """
        self.check_size(subject, body, headers)
        try:
            reply = await self._replies.ask(subject, body, headers=headers, timeout=ONE_TRY)
        except Lost:
            reply = await self._ask_again(subject, body, headers)
        if is_no_responders(reply):
            reply = await self._ask_for_stream(subject, body, headers)
        ack = decode_ack(reply.data)
        if ack.error is not None:
            raise self.refused(headers.get(SCHEDULE_TARGET, subject), ack.error)
        return ack

    async def _ask_again(self, subject: str, body: bytes, headers: dict[str, str]) -> Msg:
        import stamina

        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + WITHIN - ONE_TRY
        tries = stamina.retry_context(
            on=Lost, attempts=None, timeout=WITHIN - ONE_TRY, wait_initial=0.05, wait_max=0.5
        )
        try:
            async for attempt in tries:
                with attempt:
                    left = max(0.1, min(ONE_TRY, give_up_at - loop.time()))
                    return await self._replies.ask(subject, body, headers=headers, timeout=left)
        except Lost as lost:
            raise self._client.unavailable(f"{subject} was not confirmed: {lost}") from None
        raise AssertionError("stamina ends with a result or an error")

    async def _ask_for_stream(self, subject: str, body: bytes, headers: dict[str, str]) -> Msg:
        """Wait a moment for a stream whose leader is being elected or that is made again."""
        for _ in range(NO_STREAM_TRIES):
            await asyncio.sleep(NO_STREAM_WAIT)
            reply = await self._ask_again(subject, body, headers)
            if not is_no_responders(reply):
                return reply
        raise UnknownSubject(
            f'nothing keeps jobs on "{headers.get(SCHEDULE_TARGET, subject)}" '
            f"at {self._client.where}.",
            hint="A worker of the job's app creates its stream when it starts.",
        )

    def check_size(
        self, subject: str, body: bytes, headers: Mapping[str, str], *, more: int = 0
    ) -> None:
        """Raise PayloadTooLarge when the server would not take it and `more` bytes of headers."""
        # nats-py checks the payload alone. Over the limit together with its headers, the
        # server closes the connection, and nats-py never opens it again.
        size = more + len(body) + 12 + sum([len(name) + len(headers[name]) + 4 for name in headers])
        limit = self._client.nc.max_payload
        if size > limit:
            raise PayloadTooLarge(
                f'a message on "{subject}" has {size} bytes, headers included; '
                f"the server takes {limit}.",
                hint="Store the data elsewhere and send its address.",
            )

    def refused(self, subject: str, error: PubError) -> Exception:
        """Return the error that the server's answer means."""
        if error.err_code == WRONG_SEQUENCE:
            return WrongSequence(subject)
        if error.err_code in FULL:
            return BrokerFull(
                f'there is no room for "{subject}": {error.description} ({error.err_code}).',
                hint="Free space on the server, or let workers catch up; nothing stored is lost.",
            )
        if error.err_code == TOO_LARGE:
            return PayloadTooLarge(f'the stream of "{subject}" refused it: {error.description}')
        return self._client.unavailable(f"{subject}: {error.description} ({error.err_code})")


def rfc3339(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
