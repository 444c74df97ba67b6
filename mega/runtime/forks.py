"""What a handler forks is no worker: the signals that end a worker are the system's again in it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["handled_here_alone"]

_before: dict[signal.Signals, Any] = {}
_held = threading.local()


@contextmanager
def handled_here_alone(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Keep forks from inheriting the handlers that are set for these signals inside the block."""
    _before.update({number: signal.getsignal(number) for number in numbers})
    try:
        yield
    finally:
        _before.clear()


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
        signal.signal(number, handler)
    _let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_back, after_in_parent=_let_go, after_in_child=_forget_ours)
