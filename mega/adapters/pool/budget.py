"""How many crashes a pool takes before it refuses calls for a while. Pure: time is passed in."""

from __future__ import annotations

import math
from collections import deque

__all__ = ["CrashBudget"]


class CrashBudget:
    """A circuit breaker: more than `most` crashes within `window` seconds open it.

    After another `window` it is on trial: the next crash opens it again, the next answer
    closes it. Without a window the crashes of the whole life count, and it stays open.
    """

    def __init__(self, most: int, window: float | None) -> None:
        self._most = most
        self._window = math.inf if window is None else window
        self._crashes: deque[float] = deque()
        self._open_until: float | None = None

    @property
    def recent(self) -> int:
        return len(self._crashes)

    def spend(self, now: float) -> bool:
        """Count a crash. Return whether it has opened the breaker."""
        while self._crashes and now - self._crashes[0] > self._window:
            self._crashes.popleft()
        self._crashes.append(now)
        if self.retry_after(now) or (self._open_until is None and self.recent <= self._most):
            return False
        self._open_until = now + self._window
        return True

    def answered(self, now: float) -> None:
        """Count a worker that has answered."""
        if self._open_until is not None and not self.retry_after(now):
            self._open_until = None
            self._crashes.clear()

    def retry_after(self, now: float) -> float:
        """Return for how many seconds calls are refused; 0 when they are not."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - now)
