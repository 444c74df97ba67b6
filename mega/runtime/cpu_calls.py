"""What becomes of one CPU call, and who hears how far it is."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import anyio

from mega.cpu import Report
from mega.errors import one_line, sole_error

__all__ = ["OnProgress", "Outcome", "listened"]

#: What `options(on_progress=...)` takes: a function of fraction and note, async or not.
OnProgress: TypeAlias = Callable[[float, str], Any]

logger = logging.getLogger("mega.cpu")


class Outcome:
    """What a call returned or raised, kept until somebody asks."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.error: Exception | None = None
        self._result: Any = None

    async def keep(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Call, and keep what comes of it; only a cancellation goes on."""
        try:
            self._result = await call()
        except Exception as error:
            self.error = error
        self.done.set()

    def get(self) -> Any:
        """Return the result, or raise the error; once."""
        error, self.error = self.error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error  # its traceback holds this frame


async def listened(call: Callable[[Report], Awaitable[Any]], on_progress: OnProgress) -> Any:
    """Return the result of a call; `on_progress` is told meanwhile how far it is.

    It hears the last report before the result; an error does not wait for it.
    """
    listener, outcome = Listener(on_progress), Outcome()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(listener.run)
            await outcome.keep(lambda: call(listener.note))
            listener.close()
            if outcome.error is not None:
                group.cancel_scope.cancel()
    except BaseExceptionGroup as group_error:
        raise sole_error(group_error) from None
    return outcome.get()


class Listener:
    """Tells a function of the caller the latest report. One that is slow misses earlier ones."""

    def __init__(self, tell: OnProgress) -> None:
        self._tell = tell
        self._latest: tuple[float, str] | None = None
        self._news = anyio.Event()
        self._is_closed = False

    def note(self, fraction: float, note: str) -> None:
        """Keep a report for `run` to tell."""
        self._latest = (fraction, note)
        self._news.set()

    def close(self) -> None:
        """Let `run` end when it has told the last report."""
        self._is_closed = True
        self._news.set()

    async def run(self) -> None:
        """Tell what comes, until it is closed. What the function raises is logged."""
        while self._latest is not None or not self._is_closed:
            await self._news.wait()
            self._news = anyio.Event()
            latest, self._latest = self._latest, None
            if latest is not None:
                await self._tell_safely(*latest)

    async def _tell_safely(self, fraction: float, note: str) -> None:
        try:
            answer = self._tell(fraction, note)
            if isinstance(answer, Awaitable):
                await answer
        except Exception as error:
            logger.error("on_progress raised %s", one_line(error))
