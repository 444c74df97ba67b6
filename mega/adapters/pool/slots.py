"""Who may call next: first come, first served, and who waits can be turned away."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import anyio

from mega.errors import CpuQueueFull

__all__ = ["Slots"]


class Waiter:
    def __init__(self) -> None:
        self.done = anyio.Event()
        self.error: Exception | None = None


class Slots:
    """A number of slots. Not thread-safe: it lives on one event loop."""

    def __init__(self, size: int, *, max_queue: int | None) -> None:
        self.size = size
        self._free = size
        self._max_queue = max_queue
        self._waiting: deque[Waiter] = deque()
        self._all_free: anyio.Event | None = None

    async def take(self) -> None:
        """Wait for a slot. Raises: CpuQueueFull, or what `turn_away` was given."""
        if self._free:
            self._free -= 1
            return
        self._refuse_if_full()
        waiter = Waiter()
        self._waiting.append(waiter)
        try:
            await waiter.done.wait()
        except BaseException:
            self._forget(waiter)
            raise
        if waiter.error is not None:
            raise waiter.error

    def give(self) -> None:
        if self._waiting:
            self._waiting.popleft().done.set()
            return
        self._free += 1
        if self._all_free is not None and self._free == self.size:
            self._all_free.set()

    def turn_away(self, error: Callable[[], Exception]) -> None:
        """Raise an error of its own in each call that waits."""
        while self._waiting:
            waiter = self._waiting.popleft()
            waiter.error = error()
            waiter.done.set()

    async def all_free(self) -> None:
        while self._free < self.size:
            if self._all_free is None or self._all_free.is_set():
                self._all_free = anyio.Event()
            await self._all_free.wait()

    def _forget(self, waiter: Waiter) -> None:
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif waiter.error is None:
            self.give()

    def _refuse_if_full(self) -> None:
        if self._max_queue is not None and len(self._waiting) >= self._max_queue:
            raise CpuQueueFull(
                f"{len(self._waiting)} calls wait for a worker process (max_queue).",
                hint="Call again later, or give the pool a larger size or max_queue.",
            )
