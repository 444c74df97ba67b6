"""A queue for many takers on one event loop, which wakes as few of them as it can."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from time import monotonic
from typing import Any, Generic, TypeVar

__all__ = ["Handoff", "TimeSlice"]

T = TypeVar("T")

FAN_OUT = 2
#: Seconds. The end of a slice costs the loop a look at its sockets, as much as one short job.
LONGEST_SLICE = 0.01


class TimeSlice:
    """How long the takers of all queues may go on before the event loop looks around again.

    Without it 256 jobs of 10 ms that never wait kept the loop, and every other queue, for
    2.8 s. One item of each queue is always handed out, so that none waits for the others' end.
    """

    def __init__(self) -> None:
        self.ends_at = -math.inf
        self._unlucky: dict[Handoff[Any], None] = {}

    def begin(self) -> None:
        """Begin a slice; it ends with the loop's next look around."""
        self.ends_at = monotonic() + LONGEST_SLICE
        asyncio.get_running_loop().call_soon(self._end)

    def wait_for_next(self, handoff: Handoff[Any]) -> None:
        """Call the handoff at the beginning of the next slice."""
        self._unlucky[handoff] = None

    @property
    def has_begun(self) -> bool:
        return self.ends_at > -math.inf

    def _end(self) -> None:
        self.ends_at = -math.inf
        unlucky, self._unlucky = self._unlucky, {}
        for handoff in unlucky:
            handoff.go_first()


class Handoff(Generic[T]):
    """Items for whoever is free.

    `asyncio.Queue` wakes a task for each item. Here a woken taker wakes two more while items
    are left: a hundred takers are up after seven turns of the loop, and short jobs that never
    wait are done by one taker in a row, without a switch of tasks for each.
    """

    def __init__(self, time_slice: TimeSlice) -> None:
        self.waiting: deque[T] = deque()
        self._slice = time_slice
        self._is_first = False
        self._takers: list[asyncio.Future[None]] = []
        self._woken = 0

    def put(self, item: T) -> None:
        """Add an item."""
        self.waiting.append(item)
        if not self._woken:
            self._wake()

    async def take(self) -> T:
        """Return the oldest item, when there is one and there is time for it."""
        waiting, time_slice = self.waiting, self._slice
        is_rested = False
        while not waiting or (monotonic() >= time_slice.ends_at and not self._may_go_on()):
            await self._sleep()
            is_rested = True
        item = waiting.popleft()
        if is_rested:
            for _ in range(min(FAN_OUT, len(waiting))):
                self._wake()
        if waiting and not self._woken:
            self._wake()
        return item

    def go_first(self) -> None:
        """Hand out one item, however little time is left of this slice."""
        self._is_first = True
        if self.waiting and not self._woken:
            self._wake()

    def _may_go_on(self) -> bool:
        if not self._slice.has_begun:
            self._slice.begin()
        elif not self._is_first:
            self._slice.wait_for_next(self)
            return False
        self._is_first = False
        return True

    async def _sleep(self) -> None:
        taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._takers.append(taker)
        try:
            await taker
        finally:
            if not taker.cancelled():
                self._woken -= 1

    def _wake(self) -> None:
        while self._takers:
            taker = self._takers.pop()
            if not taker.done():
                taker.set_result(None)
                self._woken += 1
                return
