"""What a handler forks is no worker: the signals that end a worker are the system's again in it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

__all__ = ["handled_here_alone"]

_before: dict[signal.Signals, Any] = {}
_held = threading.local()


@contextmanager
def handled_here_alone(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Keep forks from inheriting the handlers that are set for these signals inside the block."""
    _before.update({number: _handler_without_loop(number) for number in numbers})
    try:
        yield
    finally:
        _before.clear()


def _handler_without_loop(number: signal.Signals) -> Any:
    """Return the handler that a process without an event loop has for the signal."""
    handler = signal.getsignal(number)
    while isinstance(handler, partial):
        handler = handler.func
    # asyncio.run and trio.run have put theirs in place of Python's own, and of no other one.
    package = getattr(handler, "__module__", None) or ""
    if number == signal.SIGINT and package.partition(".")[0] in ("asyncio", "trio"):
        return signal.default_int_handler
    return signal.getsignal(number)


def _hold_back() -> None:
    # A signal before the fork has its own handlers would go to its parent's, and be lost.
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _before)


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _forget_ours() -> None:
    if _before:
        # A signal to the fork would be told to its parent's event loop, through one socket.
        signal.set_wakeup_fd(-1)
    for number, handler in _before.items():
        if handler is not None:  # one that C code has set stays
            signal.signal(number, handler)
    _let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_back, after_in_parent=_let_go, after_in_child=_forget_ours)
