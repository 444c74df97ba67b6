"""One subscriber of events: its queue, and the task that hands them over one by one."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio import to_thread

from mega.declare.naming import place_of
from mega.declare.signature import is_coroutine_function
from mega.events import Event

__all__ = ["Subscriber"]

logger = logging.getLogger("mega.events")

BACKLOG = 10_000


class Subscriber:
    """A function and the events that it has still to be told. A plain one runs in a thread."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.fn = fn
        self._tell = fn if is_coroutine_function(fn) else _in_thread(fn)
        self._waiting: deque[Event] = deque()
        self._news = anyio.Event()
        self._is_closed = False
        self._dropped = 0

    def put(self, event: Event) -> None:
        """Queue the event; drop it when too many wait."""
        if self._is_closed:
            logger.debug("%s came after %s had gone", event.kind, self)
        elif len(self._waiting) >= BACKLOG:
            self._drop(event)
        else:
            self._waiting.append(event)
            self._news.set()

    def close(self) -> None:
        """Take no more events; `run` returns when the queued ones are handed over."""
        self._is_closed = True
        self._news.set()

    async def run(self) -> None:
        """Hand over events until `close`, one after the other and in order."""
        try:
            while self._waiting or not self._is_closed:
                await self._news.wait()
                self._news = anyio.Event()
                while self._waiting:
                    await self._hand_over(self._waiting.popleft())
        finally:
            if self._waiting:
                logger.warning("%d events did not reach %s", len(self._waiting), self)

    async def _hand_over(self, event: Event) -> None:
        try:
            await self._tell(event)
        except GeneratorExit:
            raise
        except BaseException as error:
            # A cancellation that nobody asked for is an error of the subscriber's own.
            is_cancelled = anyio.get_current_task().has_pending_cancellation()
            if is_cancelled and not isinstance(error, Exception):
                raise
            logger.exception("%s, told of %s, raised", self, event.kind)

    def _drop(self, event: Event) -> None:
        self._dropped += 1
        if self._dropped & (self._dropped - 1) == 0:  # 1, 2, 4, 8 and so on
            logger.error(
                "%s is %d events behind and has missed %d, the last of them %s",
                self,
                BACKLOG,
                self._dropped,
                event.kind,
            )

    def __str__(self) -> str:
        return f"the subscriber {place_of(self.fn)}"


def _in_thread(fn: Callable[[Any], Any]) -> Callable[[Any], Awaitable[None]]:
    limiter = anyio.CapacityLimiter(1)  # of its own: one that hangs takes nobody's thread

    async def tell(event: Event) -> None:
        await to_thread.run_sync(fn, event, limiter=limiter, abandon_on_cancel=True)

    return tell
