"""The standing pull: one request for messages that is kept open, and what the server says of it.

A `Window` lives until the server, or its silence, ends it; `consume` then opens another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, TypeAlias

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from mega.adapters.nats.client import Client, Interest
from mega.adapters.nats.layout import CONSUMER, job_stream_name, nanoseconds

__all__ = ["End", "Window"]

# Why a window ended: the connection or the server's leader changed, the server was silent,
# the consumer or its stream is missing, or the server takes no more pulls for now.
End: TypeAlias = Literal["lost", "silent", "missing", "refused", "crowded", "draining"]

EXPIRES = 30.0
LONGEST_HEARTBEAT = 5.0
SHORTEST_HEARTBEAT = 0.5
HEARTBEAT, NO_MESSAGES, EXPIRED, CONFLICT, NO_RESPONDERS = "100", "404", "408", "409", "503"
PENDING = "Nats-Pending-Messages"

logger = logging.getLogger("mega.broker")


class Window:
    """Pull requests over one inbox. `asked` counts what was asked for and hasn't come.

    `credit` returns how much may be asked for in all at this moment.
    """

    def __init__(
        self,
        client: Client,
        subject: str,
        credit: Callable[[], int],
        arrived: Callable[[Msg], None],
    ) -> None:
        self.asked = 0
        self._low = 0
        self._client = client
        self._credit = credit
        self._arrived = arrived
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{job_stream_name(subject)}.{CONSUMER}"
        self._heartbeat = min(LONGEST_HEARTBEAT, max(SHORTEST_HEARTBEAT, client.url.ack_wait / 2))
        self._options = b'"expires":%d,"idle_heartbeat":%d' % (
            nanoseconds(EXPIRES),
            nanoseconds(self._heartbeat),
        )
        self._inbox = client.nc.new_inbox()
        self._interest: Interest | None = None
        self._end: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._seen = 0

    async def open(self) -> None:
        """Subscribe and ask for the first messages. Raises: BrokerUnavailable."""
        self._interest = await self._client.subscribe(self._inbox, self._receive)
        await self.ask()

    async def close(self) -> None:
        """Take nothing more; what the server had sent before still goes to `arrived`."""
        self.end("lost")
        if self._interest is not None:
            await self._interest.drain()

    def end(self, why: End) -> None:
        """Let `ended` return."""
        if not self._end.done():
            self._end.set_result(why)

    async def ask(self) -> None:
        """Ask for more when at least half of the credit is unused, or nothing is on the way."""
        credit = self._credit()
        missing = credit - self.asked
        if missing > 0 and (missing >= credit / 2 or not self.asked) and not self._end.done():
            self.asked += missing
            self._low = self.asked // 2
            request = b'{"batch":%d,%b}' % (missing, self._options)
            with suppress(NatsError):  # the connection is closed; the window ends for that
                await self._client.nc.publish(self._next, request, self._inbox)

    async def ended(self) -> End:
        """Return why it ended. Two heartbeats that did not come end it."""
        missed = 0
        while not self._end.done() and missed < 2:
            seen = self._seen
            await asyncio.wait({self._end}, timeout=self._heartbeat * 1.1)
            is_silent = self.asked and self._seen == seen and self._client.up.is_set()
            missed = missed + 1 if is_silent else 0
        self.end("silent")
        return self._end.result()

    async def _receive(self, message: Msg) -> None:
        self._seen += 1
        if message.reply:
            self.asked -= 1
            self._arrived(message)
        else:
            self._note_status(message.headers or {})
        if self.asked <= self._low:
            await self.ask()

    def _note_status(self, headers: dict[str, str]) -> None:
        status, text = headers.get("Status", ""), headers.get("Description", "")
        if status == HEARTBEAT:
            return
        self.asked = max(0, self.asked - int(headers.get(PENDING, 0)))
        if status in (NO_MESSAGES, EXPIRED):
            return
        logger.warning("%s: the server ended a pull: %s %s", self._next, status, text)
        self.end(why_ended(status, text))


def why_ended(status: str, text: str) -> End:
    """Return what a status means that isn't part of a pull's normal life."""
    words = text.lower()
    if status == NO_RESPONDERS or "consumer deleted" in words or "not found" in words:
        return "missing"
    return "lost" if "leadership" in words or "shutdown" in words else "refused"
