"""One hand-over of a message, and the four ways to end it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from mega.adapters.nats.client import Client
from mega.adapters.nats.layout import dead_letter_subject
from mega.adapters.nats.publisher import Publisher
from mega.adapters.nats.replies import Lost
from mega.adapters.nats.streams import Streams
from mega.errors import UnknownSubject
from mega.ports import Queue
from mega.wire.message import SERVER_ID, Message

__all__ = ["Desk", "NatsDelivery", "Place"]

# What names one copy of a message: its stream sequence and when it was stored. A stream that
# was deleted and made again counts from 1 again, so the sequence alone would not do.
Place: TypeAlias = tuple[str, str]

REMEMBERED = 8192
ACK_TOKENS = 9
CONFIRM_WITHIN = 2.0


class Desk:
    """What the deliveries of one subject share. It remembers which copies were ended here.

    The server forgets acks that came just before it was killed, and hands the message out
    again. Two generations of a dict bound the memory without a search for the oldest.
    """

    def __init__(
        self, client: Client, publisher: Publisher, streams: Streams, queue: Queue
    ) -> None:
        self.client = client
        self.publisher = publisher
        self.streams = streams
        self.queue = queue
        self._young: dict[Place, None] = {}
        self._old: dict[Place, None] = {}

    def remember(self, place: Place) -> None:
        """Note that this copy was ended."""
        self._young[place] = None
        if len(self._young) >= REMEMBERED:
            self._old, self._young = self._young, {}

    def has_ended(self, place: Place) -> bool:
        """Whether this copy was ended here before."""
        return place in self._young or place in self._old


class NatsDelivery:
    """Implements `ports.Delivery`. `reply` changes when the server hands the copy out again."""

    __slots__ = ("_desk", "body", "headers", "place", "reply", "starts", "subject")

    def __init__(self, message: Msg, desk: Desk) -> None:
        self._desk = desk
        self.subject = desk.queue.subject
        self.body: bytes = message.data
        self.headers: Mapping[str, str] | None = message.headers
        self.reply: str = message.reply
        tokens = message.reply.split(".")
        # $JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<consumer sequence>.<time>.<pending>,
        # or with domain and account hash after ACK, and a random token at the end (ADR-15).
        first = 4 if len(tokens) == ACK_TOKENS else 6
        self.starts = int(tokens[first])
        self.place: Place = (tokens[first + 1], tokens[first + 3])

    @property
    def fallback_id(self) -> str:
        return f"{self._desk.queue.subject}-{self.place[0]}-{self.place[1]}"

    @property
    def stored_at(self) -> datetime:
        seconds, nanoseconds = divmod(int(self.place[1]), 1_000_000_000)
        return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=nanoseconds // 1000)

    async def ack(self) -> None:
        desk = self._desk
        desk.remember(self.place)
        try:
            await desk.client.nc.publish(self.reply)
        except NatsError:
            return  # it comes back, and is acknowledged then because it is remembered

    async def retry(self, copy: Message, *, after: float) -> None:
        due_at = datetime.now(UTC) + timedelta(seconds=after)
        await self._desk.publisher.publish(copy, server_id=self._copy_id(copy), due_at=due_at)
        await self.ack()

    async def give_back(self, copy: Message) -> None:
        server_id = f"{copy.id}.{copy.attempt}.back.{self.place[0]}"
        await self._desk.publisher.publish(copy, server_id=server_id)
        await self._ack_and_wait()

    async def dead_letter(self, letter: bytes, *, job_id: str) -> None:
        desk = self._desk
        subject = dead_letter_subject(self.subject)
        headers = {SERVER_ID: f"{job_id}.dlq.{self.place[0]}"}
        await desk.streams.provide_dead_letters(desk.queue)
        try:
            await desk.publisher.store(subject, letter, headers)
        except UnknownSubject:  # someone deleted it since
            desk.streams.forget_dead_letters(desk.queue)
            await desk.streams.provide_dead_letters(desk.queue)
            await desk.publisher.store(subject, letter, headers)
        await self.ack()

    def _copy_id(self, copy: Message) -> str:
        # The sequence makes it the same for a repeated call, and another one for a copy that
        # keeps its attempt (a snooze): the duplicate window would swallow `<id>.<attempt>`.
        return f"{copy.id}.{copy.attempt}.{self.place[0]}"

    async def _ack_and_wait(self) -> None:
        """Acknowledge for sure: who gives back is about to leave and can't do it again."""
        self._desk.remember(self.place)
        try:
            await self._desk.client.replies.ask(self.reply, b"", timeout=CONFIRM_WITHIN)
        except Lost:
            await self.ack()
