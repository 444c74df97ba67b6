"""Plain handlers in threads, and the threads that were left behind.

A thread can't be cancelled: after a time-out, or at the end of a drain, its run is over for
the broker while the thread goes on.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

import anyio
from anyio import to_thread

from mega.context import NAMED, RunContext
from mega.errors import one_line

__all__ = ["Threads"]

logger = logging.getLogger("mega.job")


class Threads:
    """Runs each handler in a thread of its own. `left` counts those that were left behind.

    There is no limit: the slots of a job are its limit, and a thread that is left behind must
    not take one of them.
    """

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(math.inf)
        self._left: set[Work] = set()

    @property
    def left(self) -> int:
        """How many threads go on whose runs are over."""
        return len(self._left)

    async def run(
        self,
        call: Callable[[Any, Any], Any],
        payload: Any,
        context: RunContext,
        *,
        on_left: Callable[[], None],
    ) -> Any:
        """Call in a thread. A cancellation leaves it behind, and `on_left` is told."""
        work = Work(call, self._left)
        try:
            await to_thread.run_sync(
                work.do, payload, context, limiter=self._limiter, abandon_on_cancel=True
            )
        finally:
            work.is_over = True
            if work.is_going_on:
                self._leave(work, context)
                on_left()
        return work.outcome()

    def _leave(self, work: Work, context: RunContext) -> None:
        self._left.add(work)
        text = "%s: its thread can't be stopped and goes on without it; %s now"
        many = "1 such thread runs" if self.left == 1 else f"{self.left} such threads run"
        logger.warning(text, context, many, extra=NAMED)
        if not work.is_going_on:  # it has ended meanwhile
            self._left.discard(work)


class Work:
    """One call in its thread. `is_over`: nobody waits for it any more.

    What it raises does not travel through a future: a future and the traceback of its error
    hold each other, and with them all variables of the handler.
    """

    def __init__(self, call: Callable[[Any, Any], Any], left: set[Work]) -> None:
        self.is_going_on = False
        self.is_over = False
        self._call = call
        self._left = left
        self._result: Any = None
        self._error: BaseException | None = None

    def do(self, payload: Any, context: RunContext) -> None:
        # In this order: who cancels sets `is_over` and then looks whether it is going on.
        begun, self.is_going_on = time.monotonic(), True
        if self.is_over:  # it was cancelled on its way to the thread
            self.is_going_on = False
            self._left.discard(self)
            return
        try:
            self._result = self._call(payload, context)
        except BaseException as error:
            self._error = error
        self.is_going_on = False
        if self.is_over:
            self._left.discard(self)
            self._tell_end(context, time.monotonic() - begun)

    def outcome(self) -> Any:
        """Return what the call returned, or raise what it raised; once."""
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error  # its traceback holds this frame

    def _tell_end(self, context: RunContext, seconds: float) -> None:
        how = "returned" if self._error is None else f"raised {one_line(self._error)}"
        logger.info("%s: its thread %s after %.1f s", context, how, seconds, extra=NAMED)
