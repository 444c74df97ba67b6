"""One inbox for the answers of everything that a connection asks.

nats-py's own `request` costs a task and a time-out scope for each call, and lets it hang
to its time-out when the connection dies.
"""

from __future__ import annotations

import asyncio
from itertools import count

from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

__all__ = ["Lost", "Replies", "is_no_responders"]


class Lost(Exception):
    """No answer came. What was asked may have been done."""


class Replies:
    """Open questions by token, each with a future. `up` is set while there is a connection."""

    def __init__(self, up: asyncio.Event) -> None:
        self.prefix = f"{NatsClient().new_inbox()}."
        self._up = up
        self._waiting: dict[str, asyncio.Future[Msg]] = {}
        self._tokens = count()
        self._skip = len(self.prefix)

    def attach(self, nc: NatsClient) -> None:
        """Ask over that connection from now on."""
        self._publish = nc.publish
        self._loop = asyncio.get_running_loop()

    async def ask(
        self, subject: str, body: bytes, *, headers: dict[str, str] | None = None, timeout: float
    ) -> Msg:
        """Publish and return the answer. Raises: Lost, also at once when the link breaks."""
        if not self._up.is_set():
            timeout = await self._until_up(timeout)
        token = str(next(self._tokens))
        future: asyncio.Future[Msg] = self._loop.create_future()
        self._waiting[token] = future
        timer = self._loop.call_later(timeout, expire, future, timeout)
        try:
            await self._publish(subject, body, self.prefix + token, headers)
            return await future
        except NatsError as error:
            raise Lost(str(error).removeprefix("nats: ")) from None
        finally:
            timer.cancel()
            del self._waiting[token]

    def fail(self, cause: str) -> None:
        """Let everything that waits raise Lost now."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Lost(cause))

    async def arrived(self, message: Msg) -> None:
        """Hand an answer to whoever asked."""
        future = self._waiting.get(message.subject[self._skip :])
        if future is not None and not future.done():
            future.set_result(message)

    async def _until_up(self, timeout: float) -> float:
        start = self._loop.time()
        try:
            async with asyncio.timeout(timeout):
                await self._up.wait()
        except TimeoutError:
            raise Lost("the server is away") from None
        return timeout - (self._loop.time() - start)


def expire(future: asyncio.Future[Msg], timeout: float) -> None:
    """End the wait of one question."""
    if not future.done():
        future.set_exception(Lost(f"no answer within {timeout:.1f} s"))


def is_no_responders(reply: Msg) -> bool:
    """Whether the server said that nobody listens on the subject."""
    return reply.headers is not None and reply.headers.get("Status") == "503"
