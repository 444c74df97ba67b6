"""A thread that watches the event loop, and says which handler keeps it from turning.

It costs nothing per job: the loop notes the time now and then, and the thread reads it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from types import FrameType

import anyio

from mega.runtime.guilty import accuse
from mega.runtime.long_runs import LongRuns

__all__ = ["Watchdog"]

logger = logging.getLogger("mega")

LIMIT = 5.0
LOOKS_PER_LIMIT = 5
JOIN_WITHIN = 1.0
#: A process that used less CPU than this part of the time did not run.
AT_WORK = 0.05


class Watchdog:
    """Watches the loop that `run` runs in, and the runs that go on for long.

    A loop that is late by `limit` seconds is logged with the stack that holds it, and again
    whenever that time doubles; once it turns, so is the whole time.
    """

    def __init__(self, long_runs: LongRuns, *, limit: float = LIMIT) -> None:
        self._long_runs = long_runs
        self._limit = limit
        self._every = limit / LOOKS_PER_LIMIT
        self._is_over = threading.Event()
        self._loop_thread = threading.get_ident()
        self._due_at = self._looked_at = time.monotonic()
        self._cpu = time.process_time()
        self._told_next = limit
        self._stuck_since: float | None = None

    async def run(self) -> None:
        """Watch until cancelled."""
        self._loop_thread = threading.get_ident()
        self._due_at = self._looked_at = time.monotonic()
        thread = threading.Thread(target=self._watch, name="mega-watchdog", daemon=True)
        thread.start()
        try:
            while True:
                self._due_at = time.monotonic() + self._every
                await anyio.sleep(self._every)
        finally:
            self._is_over.set()
            thread.join(JOIN_WITHIN)

    def _watch(self) -> None:
        while not self._is_over.wait(self._every):
            try:
                self._look_at_loop(time.monotonic(), time.process_time())
                self._long_runs.look()
            except Exception:
                logger.exception("the watchdog of the event loop went wrong and goes on")

    def _look_at_loop(self, now: float, cpu: float) -> None:
        gap, worked = now - self._looked_at, cpu - self._cpu
        self._looked_at, self._cpu = now, cpu
        if gap > self._limit and worked < gap * AT_WORK:
            # Else a machine that was asleep would blame whatever handler it woke up in.
            logger.warning("this process stood still for %.1f s: suspended, or stopped", gap)
            self._due_at = now
        stuck_for = now - self._due_at
        if stuck_for >= self._told_next:
            self._tell(stuck_for)
        elif self._stuck_since is not None and self._stuck_since != self._due_at:
            self._tell_end(self._due_at - self._every - self._stuck_since)

    def _tell(self, seconds: float) -> None:
        self._stuck_since = self._due_at
        while self._told_next <= seconds:
            self._told_next *= 2
        frame: FrameType | None = sys._current_frames().get(self._loop_thread)
        logger.warning("the event loop has not turned for %.1f s: %s", seconds, accuse(frame))

    def _tell_end(self, seconds: float) -> None:
        self._stuck_since, self._told_next = None, self._limit
        logger.warning("the event loop turns again after %.1f s", seconds)
