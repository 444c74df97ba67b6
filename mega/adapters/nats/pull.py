"""The standing pull: one request for messages that is kept open, and what the server says of it.

A `Window` lives until the server, or its silence, ends it; `consume` then opens another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, TypeAlias

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from mega.adapters.nats.client import Client, Interest
from mega.adapters.nats.layout import CONSUMER, job_stream_name, nanoseconds
from mega.ports import Queue

__all__ = ["End", "Window"]

# Why a window ended: the connection or the server's leader changed, the server was silent,
# the consumer or its stream is missing, or the server takes no more pulls for now.
End: TypeAlias = Literal["lost", "silent", "missing", "refused", "crowded", "draining"]

# The server hands out to a worker that is frozen or cut off while its pull is open.
LONGEST_PULL = 30.0
LONGEST_HEARTBEAT = 5.0
SHORTEST_HEARTBEAT = 0.5
HEARTBEAT, NO_MESSAGES, EXPIRED, CONFLICT, NO_RESPONDERS = "100", "404", "408", "409", "503"
PENDING = "Nats-Pending-Messages"
#: How a pull with `max_bytes` ends when all is well; its next request follows by itself.
FULFILLED = ("batch completed", "message size exceeds maxbytes")
#: The server closes a connection that is more than 64 MiB behind, or can't be written to
#: for 10 s, as it is when the event loop is blocked and the sockets are full. Where slots
#: full of the largest messages come near it, one request brings no more than BYTES_AT_ONCE.
MOST_BYTES, BYTES_AT_ONCE = 48 * 2**20, 4 * 2**20


class Window:
    """Pull requests over one inbox. `asked` counts what was asked for and hasn't come.

    `credit` returns how much may be asked for in all at this moment; `say` is told why the
    server ended it.
    """

    def __init__(
        self,
        client: Client,
        queue: Queue,
        credit: Callable[[], int],
        arrived: Callable[[Msg], None],
        say: Callable[[str], None],
    ) -> None:
        self.asked = 0
        self._low = 0
        self._client = client
        self._credit = credit
        self._arrived = arrived
        self._say = say
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{job_stream_name(queue.subject)}.{CONSUMER}"
        self._heartbeat = min(LONGEST_HEARTBEAT, max(SHORTEST_HEARTBEAT, client.url.ack_wait / 2))
        self._options = self._options_for(queue.options.slots)
        self.inbox = client.nc.new_inbox()
        self._interest: Interest | None = None
        self._end: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._seen = 0

    async def open(self) -> None:
        """Subscribe and ask for the first messages. Raises: BrokerUnavailable."""
        self._interest = await self._client.subscribe(self.inbox, self._receive)
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
                await self._client.nc.publish(self._next, request, self.inbox)

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

    def _options_for(self, slots: int) -> bytes:
        expires = min(LONGEST_PULL, max(2 * self._heartbeat, self._client.url.ack_wait))
        times = (nanoseconds(expires), nanoseconds(self._heartbeat))
        options = b'"expires":%d,"idle_heartbeat":%d' % times
        largest = self._client.nc.max_payload
        if slots * largest > MOST_BYTES:
            options += b',"max_bytes":%d' % max(BYTES_AT_ONCE, 2 * largest)
        return options

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
        if status in (NO_MESSAGES, EXPIRED) or text.lower() in FULFILLED:
            return
        self._say(f"the server ended a pull: {status} {text or 'nobody is there'}")
        self.end(why_ended(status, text))


def why_ended(status: str, text: str) -> End:
    """Return what a status means that isn't part of a pull's normal life."""
    words = text.lower()
    if status == NO_RESPONDERS or "consumer deleted" in words or "not found" in words:
        return "missing"
    return "lost" if "leadership" in words or "shutdown" in words else "refused"
