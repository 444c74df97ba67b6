"""One hand-over of a message, and the four ways to end it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import anyio
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from mega.adapters.nats.client import Client
from mega.adapters.nats.complaints import Repeats
from mega.adapters.nats.lease_clock import lease_clock
from mega.adapters.nats.letters import NatsLetters
from mega.adapters.nats.publisher import Publisher
from mega.adapters.nats.replies import Lost
from mega.adapters.nats.state import NatsState
from mega.adapters.nats.streams import Streams
from mega.adapters.scopes import leave_to
from mega.ports import Queue
from mega.wire.message import Message, server_id

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
        self,
        client: Client,
        publisher: Publisher,
        streams: Streams,
        letters: NatsLetters,
        state: NatsState,
        queue: Queue,
    ) -> None:
        self.client = client
        self.publisher = publisher
        self.streams = streams
        self.letters = letters
        self.state = state
        self.queue = queue
        self.ack_wait = math.inf  # until the consumer was looked at
        self.repeats = Repeats()
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

    def say_late(self) -> None:
        """Complain of a hand-over that is not begun."""
        text = "a job came, or waited, for so long that others may have got it; it isn't begun here"
        self.repeats.say("late", f"{self.queue.subject}: {text}")


class NatsDelivery:
    """Implements `ports.Delivery`. `reply` changes when the server hands the copy out again.

    `scope` is that of the slot which runs it.
    """

    __slots__ = (
        "_desk",
        "_has_begun",
        "_has_lapsed",
        "_renewed_at",
        "arrived_at",
        "body",
        "headers",
        "place",
        "reply",
        "scope",
        "starts",
        "subject",
    )

    def __init__(self, message: Msg, desk: Desk) -> None:
        self._desk = desk
        self.scope: anyio.CancelScope | None = None
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
        self.arrived_at = self._renewed_at = lease_clock()
        self._has_lapsed = False
        self._has_begun = False

    @property
    def ack_wait(self) -> float:
        return self._desk.ack_wait

    @property
    def lapsed(self) -> bool:
        return self._has_lapsed or lease_clock() - self._renewed_at > self._desk.ack_wait

    def renewed(self, at: float) -> None:
        """Note that the server took a beat which was sent at that time of the lease clock."""
        self._has_lapsed = self.lapsed
        self._renewed_at = at

    def take_lease_of(self, other: NatsDelivery) -> None:
        """Count this hand-over's lease as that of another one of the same copy."""
        self._renewed_at, self._has_lapsed = other._renewed_at, other._has_lapsed

    def go_by(self, later: NatsDelivery, *, is_fresh: bool) -> None:
        """Answer to a later hand-over; what has not begun takes its lease too, if that is fresh."""
        self.reply = later.reply
        if not self._has_begun:
            self.starts = later.starts
            if is_fresh:
                self.take_lease_of(later)

    @property
    def fallback_id(self) -> str:
        return f"{self._desk.queue.subject}-{self.place[0]}-{self.place[1]}"

    @property
    def stored_at(self) -> datetime:
        seconds, nanoseconds = divmod(int(self.place[1]), 1_000_000_000)
        return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=nanoseconds // 1000)

    def begin(self) -> bool:
        self._has_begun = not self.lapsed
        if not self._has_begun:
            self._desk.say_late()
        return self._has_begun

    def leave_scopes(self) -> None:
        if self.scope is not None:
            leave_to(self.scope)

    async def ack(self) -> None:
        desk = self._desk
        desk.remember(self.place)
        desk.client.outbox.keep((self.reply, b"", None))
        if desk.client.up.is_set():  # or nats-py would keep it, and send it before the records
            with suppress(NatsError):
                await desk.client.nc.acknowledge(self.reply)

    async def retry(self, copy: Message, *, after: float) -> None:
        await self._desk.publisher.publish(copy, server_id=server_id(copy), after=after)
        await self.ack()

    async def give_back(self, copy: Message) -> None:
        if not self.lapsed:
            await self._desk.publisher.publish(copy, server_id=server_id(copy))
            await self._ack_and_wait()

    async def dead_letter(self, letter: bytes, *, letter_id: str) -> None:
        await self._desk.letters.store(self._desk.queue, letter, letter_id=f"{letter_id}.dlq")
        await self.ack()

    async def _ack_and_wait(self) -> None:
        """Acknowledge for sure: who gives back is about to leave and can't do it again."""
        self._desk.remember(self.place)
        try:
            await self._desk.client.replies.ask(self.reply, b"", timeout=CONFIRM_WITHIN)
        except Lost:
            await self.ack()
