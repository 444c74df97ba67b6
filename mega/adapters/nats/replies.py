"""One inbox for the answers of everything that a connection asks.

nats-py's own `request` costs a task and a time-out scope for each call, and lets it hang
to its time-out when the connection dies.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count
from typing import TypeAlias

from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from mega.errors import BlockingCall

__all__ = ["Answer", "Lost", "Replies", "is_no_responders"]

Answer: TypeAlias = asyncio.Future[Msg]

SWEEP_EVERY = 0.1


class Lost(Exception):
    """No answer came. What was asked may have been done."""


class Replies:
    """Open questions by token, each with its answer to come, when it is given up, and after what.

    One timer looks for those that are due: one for each costs more than the question itself.
    `up` is set while there is a connection.
    """

    def __init__(self, up: asyncio.Event) -> None:
        self.prefix = f"{NatsClient().new_inbox()}."
        self._up = up
        self._waiting: dict[str, tuple[Answer, float, float]] = {}
        self._tokens = count()
        self._skip = len(self.prefix)
        self._is_sweeping = False

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
        answer = self._expect(token, timeout)
        try:
            await self._publish(subject, body, self.prefix + token, headers)
            return await answer
        except NatsError as error:
            raise Lost(str(error).removeprefix("nats: ")) from None
        finally:
            del self._waiting[token]

    async def post(
        self, subject: str, body: bytes, *, headers: dict[str, str] | None = None, timeout: float
    ) -> Answer:
        """Publish and return the answer to come, or Lost; it must be awaited. Raises: Lost."""
        if not self._up.is_set():
            timeout = await self._until_up(timeout)
        token = str(next(self._tokens))
        answer = self._expect(token, timeout)
        answer.add_done_callback(partial(self._forget, token))
        try:
            await self._publish(subject, body, self.prefix + token, headers)
        except BaseException as error:
            answer.cancel()
            if isinstance(error, NatsError):
                raise Lost(str(error).removeprefix("nats: ")) from None
            raise
        return answer

    def fail(self, cause: str) -> None:
        """Let everything that waits raise Lost now."""
        for answer, _, _ in self._waiting.values():
            give_up(answer, cause)

    async def arrived(self, message: Msg) -> None:
        """Hand an answer to whoever asked."""
        question = self._waiting.get(message.subject[self._skip :])
        if question is not None and not question[0].done():
            question[0].set_result(message)

    def _expect(self, token: str, timeout: float) -> Answer:
        loop = self._loop
        if asyncio.get_running_loop() is not loop:
            raise BlockingCall(
                "the broker was called in another event loop than the one it was connected in.",
                hint="Use the app in one event loop, or call app.enqueue_sync in a thread.",
            )
        answer: Answer = loop.create_future()
        self._waiting[token] = (answer, loop.time() + timeout, timeout)
        if not self._is_sweeping:
            self._sweep()
        return answer

    def _sweep(self) -> None:
        """Give up what is due, and look again as long as there are questions."""
        now = self._loop.time()
        for answer, deadline, timeout in self._waiting.values():
            if deadline <= now:
                give_up(answer, f"no answer within {timeout:.1f} s")
        self._is_sweeping = bool(self._waiting)
        if self._is_sweeping:
            self._loop.call_later(SWEEP_EVERY, self._sweep)

    def _forget(self, token: str, _: Answer) -> None:
        del self._waiting[token]

    async def _until_up(self, timeout: float) -> float:
        start = self._loop.time()
        try:
            async with asyncio.timeout(timeout):
                await self._up.wait()
        except TimeoutError:
            raise Lost("the server is away") from None
        return timeout - (self._loop.time() - start)


def give_up(answer: Answer, cause: str) -> None:
    """End the wait of one question."""
    if not answer.done():
        answer.set_exception(Lost(cause))


def is_no_responders(reply: Msg) -> bool:
    """Whether the server said that nobody listens on the subject."""
    return reply.headers is not None and reply.headers.get("Status") == "503"
