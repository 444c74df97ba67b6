"""An app kept open in a thread of its own, for code that has no event loop."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

import anyio
from anyio import NoEventLoopError, RunFinishedError, from_thread
from anyio.lowlevel import EventLoopToken, current_token

from mega.errors import BlockingCall, NotConnected, sole_error
from mega.runtime.session import Session

__all__ = ["Background", "call_in_loop", "refuse_in_loop"]

T = TypeVar("T")
Open: TypeAlias = Callable[[], AbstractAsyncContextManager[Session]]
#: Runs a coroutine function in an event loop of its own, in the calling thread.
RunLoop: TypeAlias = Callable[[Callable[[], Awaitable[None]]], None]

logger = logging.getLogger("mega")

#: How long closing may hold up the end of the process.
CLOSE_WITHIN = 10.0


class Background:
    """Opens the app at the first call, once in each process, and closes it at its exit."""

    def __init__(self, open_app: Open, run_loop: RunLoop) -> None:
        self._open_app = open_app
        self._run_loop = run_loop
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._left_behind: list[Line | None] = []
        _all.add(self)

    def session(self) -> Session:
        """Return the session of this process, and open it if need be. Raises: BrokerError."""
        with self._lock:
            if self._line is None or self._line.has_failed:
                self._line = Line(self._open_app, self._run_loop)
            line = self._line
        return line.session()

    def close(self) -> None:
        """Leave the app in order; what was enqueued is stored already."""
        if self._line is not None:
            self._line.close()

    def forget(self) -> None:
        """Begin anew in a forked child: the thread is the parent's, and so are its sockets."""
        self._left_behind.append(self._line)  # collected, it would close what it shares
        self._lock, self._line = threading.Lock(), None


class Line:
    """One thread with an event loop in which the app is open."""

    def __init__(self, open_app: Open, run_loop: RunLoop) -> None:
        self._open_app = open_app
        self._opened: Future[Session] = Future()
        self._thread = threading.Thread(
            target=run_loop, args=(self._stay_open,), name="mega-background", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:  # from Python 3.12 on, when the interpreter ends
            raise NotConnected(
                f"no connection can be opened any more: {error}.",
                hint="Enqueue once before the main thread ends; the connection lasts longer.",
            ) from None

    @property
    def has_failed(self) -> bool:
        """Whether it could not be opened."""
        return self._opened.done() and self._opened.exception() is not None

    def session(self) -> Session:
        """Return the session once it is open. Raises: what opening raised."""
        return self._opened.result()

    def close(self) -> None:
        """Leave the app, if it is open, and wait for the end of it."""
        if not self._opened.done() or self.has_failed or not self._thread.is_alive():
            return
        from_thread.run_sync(self._leave.set, token=self.session().loop)
        self._thread.join(CLOSE_WITHIN)

    async def _stay_open(self) -> None:
        self._leave = anyio.Event()
        try:
            async with self._open_app() as session:
                self._opened.set_result(session)
                await self._leave.wait()
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(sole_error(error))


def call_in_loop(
    loop: EventLoopToken, function: Callable[..., Coroutine[Any, Any, T]], *args: Any
) -> T:
    """Await `function(*args)` in the loop of another thread. Raises: NotConnected."""
    try:
        return from_thread.run(function, *args, token=loop)
    except BaseException as error:
        # asyncio's own is no subclass of the one of futures, and is known by its name here.
        if not isinstance(error, RunFinishedError) and type(error).__name__ != "CancelledError":
            raise
        raise NotConnected(
            "the event loop in which the app was entered has ended.",
            hint="Call it while the app is entered; without `async with app:` it connects itself.",
        ) from None


def refuse_in_loop(call: str, instead: str) -> None:
    """Refuse a call that waits in a thread whose event loop would wait too."""
    try:
        current_token()
    except NoEventLoopError:
        return
    raise BlockingCall(
        f"{call} would block the event loop that runs in this thread.", hint=f"Write {instead}."
    )


_all: WeakSet[Background] = WeakSet()


def _close_all() -> None:
    for background in list(_all):
        background.close()


def _forget_all() -> None:
    for background in list(_all):
        background.forget()


# Now, and not with the first call: what a program registers later is run before it.
atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
