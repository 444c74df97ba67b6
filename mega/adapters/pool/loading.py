"""Rebuilding what a worker has sent: a large value in a thread, so that the event loop turns."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
from anyio import to_thread

from mega.adapters.pool.frames import Frame, Part

__all__ = ["aside_if_large", "load"]

T = TypeVar("T")

LARGE = 8 << 20
STEP = 1 << 20


class PartReader:
    """A file for the unpickler, in Python on purpose.

    `pickle.loads` keeps the GIL from its begin to its end, in whatever thread it runs: 0.6 s
    for 200 MB. Each call of a Python function lets the event loop's thread have it.
    """

    def __init__(self, content: Part) -> None:
        self._content = memoryview(content)
        self._position = 0

    def read(self, size: int) -> bytes:
        return bytes(self._next(size))

    def readinto(self, target: Any) -> int:
        with memoryview(target) as view:
            for start in range(0, len(view), STEP):
                part = view[start : start + STEP]
                part[:] = self._next(len(part))
            return len(view)

    def readline(self) -> bytes:
        raise pickle.UnpicklingError("protocol 5 has no lines")

    def _next(self, size: int) -> memoryview:
        start = self._position
        self._position += size
        return self._content[start : self._position]


def load(frame: Frame) -> Any:
    """Return what the frame carries; a large one without keeping the GIL."""
    if not _is_large(frame):
        return frame.load()
    return pickle.Unpickler(PartReader(frame.data), buffers=frame.buffers).load()


async def aside_if_large(work: Callable[[str, Frame], T], task: str, frame: Frame) -> T:
    """Return `work(task, frame)`, done in a thread if the frame is large."""
    if not _is_large(frame):
        return work(task, frame)
    return await to_thread.run_sync(work, task, frame, limiter=anyio.CapacityLimiter(1))


def _is_large(frame: Frame) -> bool:
    # Its buffers don't count: they become part of the value as they are.
    return len(frame.data) > LARGE
