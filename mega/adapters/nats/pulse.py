"""Noticing a dead link: it is open on both sides, and nothing passes in one direction or both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from nats.aio.client import PING_PROTO
from nats.aio.client import Client as NatsClient

from mega.adapters.nats.lease_clock import lease_clock

__all__ = ["LOOK_EVERY", "Pulse"]

LOOK_EVERY = 1.0
SILENT_LOOKS = 4
LEAST_BYTES = 1024
UNANSWERED_LOOKS = 20


class Pulse:
    """Asks the server for a sign of life. nats-py does too, and needs half a minute to give up.

    `answered` is called when an answer was found, before the next question.
    Looks are counted, not seconds: after a time in which the event loop was blocked or the
    process stopped, the answer may lie there unread.

    `proven_at` is when the last question that was answered was sent: what arrives now has left
    the server after that, as answers don't overtake what was sent before them.
    """

    def __init__(self, answered: Callable[[], None]) -> None:
        self._answered = answered
        self._pong: asyncio.Future[bool] | None = None
        self._received = 0
        self._silent = 0
        self._unanswered = 0
        self.proven_at = lease_clock()

    def is_felt(self, nc: NatsClient) -> bool:
        """Look once, LOOK_EVERY seconds after the last look; ask again when it has answered."""
        received = nc.stats["in_bytes"] + len(nc._ps.buf)
        if self._pong is None or self._pong.done():
            self._silent = self._unanswered = 0
            if self._pong is not None:
                self._answered()
            self._ask(nc)
        else:
            # On a slow link the answer may be behind large messages, which count as a sign.
            # Heartbeats don't: they come over a link that lets nothing out.
            is_silent = received - self._received < LEAST_BYTES
            self._silent = self._silent + 1 if is_silent else 0
            self._unanswered += 1
        self._received = received
        return self._silent < SILENT_LOOKS and self._unanswered < UNANSWERED_LOOKS

    def forget(self) -> None:
        """Begin anew, with a new connection, on which nothing can be old."""
        self._pong = None
        self.proven_at = lease_clock()

    def _ask(self, nc: NatsClient) -> None:
        # Past nats-py's buffer, whose flusher may hang in a socket that takes nothing more.
        # The future is never cancelled: the PONG of a cancelled one ends nats-py's read loop.
        sent_at = lease_clock()
        self._pong = asyncio.get_running_loop().create_future()
        self._pong.add_done_callback(partial(self._prove, nc, sent_at))
        assert nc._transport is not None, "a client that is connected has one"
        nc._pongs.append(self._pong)
        nc._transport.write(PING_PROTO)

    def _prove(self, nc: NatsClient, sent_at: float, pong: asyncio.Future[bool]) -> None:
        if pong is not self._pong or pong.cancelled():
            return
        self.proven_at = sent_at
        if lease_clock() - sent_at > LOOK_EVERY and nc.is_connected:
            # It was held up, and proves little. Until the next look all that comes would be in
            # doubt, such as the first hand-overs after the process was stopped.
            self._answered()
            self._ask(nc)
