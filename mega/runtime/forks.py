"""What a handler forks is no worker: the signals that end a worker are the system's again in it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["handled_here_alone"]

_before: dict[signal.Signals, Any] = {}


@contextmanager
def handled_here_alone(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Keep forks from inheriting the handlers that are set for these signals inside the block."""
    _before.update({number: signal.getsignal(number) for number in numbers})
    try:
        yield
    finally:
        _before.clear()


def _forget_ours() -> None:
    if _before:
        # A signal to the fork would be told to its parent's event loop, through one socket.
        signal.set_wakeup_fd(-1)
    for number, handler in _before.items():
        signal.signal(number, handler)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_ours)
