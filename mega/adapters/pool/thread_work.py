"""One call of a task in a thread, and what is known of it when nobody waits any more."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from mega.cpu import Report, current_report
from mega.errors import CpuRemoteError, one_line

__all__ = ["Work"]

logger = logging.getLogger("mega.cpu")


class Work:
    """A call that a thread does. `left` are those that nobody waits for, and that go on.

    What it raises does not travel through a future: a future and the traceback of its error
    hold each other, and with them all variables of the task.
    """

    def __init__(
        self,
        task: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        report: Report | None,
        left: set[Work],
    ) -> None:
        self.task = task
        self.has_ended = False
        self.seconds = 0.0
        self._call = (function, args, kwargs)
        self._report = report
        self._left = left
        self._thread: int | None = None
        self._is_over = False
        self._lock = threading.Lock()
        self._result: Any = None
        self._error: BaseException | None = None

    def do(self) -> None:
        """Run the task, in a context and a thread of its own."""
        with self._lock:
            if self._is_over:  # it was cancelled on its way to the thread
                return
            self._thread = threading.get_ident()
        began = time.monotonic()
        current_report.set(self._tell)
        function, args, kwargs = self._call
        try:
            self._result = function(*args, **kwargs)
        except BaseException as error:
            self._error = error
        del function, args, kwargs
        self.seconds = time.monotonic() - began
        self._end()

    def leave(self) -> bool:
        """Say that nobody waits any more. Returns whether it goes on all the same."""
        with self._lock:
            self._is_over = True
            if self.has_ended or self._thread is None:
                return False
            self._left.add(self)
        logger.warning(
            "%s: its thread can't be stopped and goes on without its call; %d such threads of its "
            "pool run now",
            self,
            len(self._left),
        )
        return True

    def outcome(self) -> Any:
        """Return what the task returned, or raise what it raised; once.

        Raises: CpuRemoteError, for what would end the caller's loop instead of its call.
        """
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            if isinstance(error, StopIteration | StopAsyncIteration) or (
                not isinstance(error, Exception)
            ):
                raise CpuRemoteError(
                    f"{self} raised {one_line(error)}",
                    hint="It can't be raised here as itself; it is the __cause__ of this error.",
                ) from error
            raise error
        finally:
            del error  # its traceback holds this frame

    def stack(self) -> str:
        """Return where the thread stands, or an empty text when it doesn't run."""
        frame = sys._current_frames().get(self._thread or 0)
        if frame is None or self.has_ended:
            return ""
        return "".join(traceback.format_stack(frame))

    def _end(self) -> None:
        with self._lock:
            self.has_ended = True
            is_over = self._is_over
            self._left.discard(self)
        if is_over:
            how = "returned" if self._error is None else f"raised {one_line(self._error)}"
            logger.info("%s: its thread %s after %.1f s", self, how, self.seconds)

    def _tell(self, fraction: float, note: str) -> None:
        if self._report is not None and not self._is_over:
            self._report(fraction, note)

    def __str__(self) -> str:
        return f'"{self.task.removeprefix("__main__:")}"'
