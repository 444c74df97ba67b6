"""The server's clock, as nearly as it can be known here: delays are counted by it alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from mega.adapters.nats.client import ApiError, Client
from mega.adapters.nats.layout import STATE
from mega.errors import BrokerUnavailable

__all__ = ["ServerClock", "utc_now"]

logger = logging.getLogger("mega.broker")

KNOWN_FOR = 60.0
#: The wall clock was set, or the machine slept, when it moved on by that much more or less.
STEP = 0.1
#: An answer that took longer says too little of when it was given.
QUICK = 0.05
TRIES = 3
WORTH_A_LINE = 0.5


def utc_now() -> datetime:
    """Return the instant by the clock of this machine."""
    return datetime.now(UTC)


class ServerClock:
    """The local clock, set right by the server's answers. `now` is the local one."""

    def __init__(self, client: Client, now: Callable[[], datetime]) -> None:
        self._client = client
        self._local_now = now
        self._offset = timedelta()
        self._measured_at: tuple[datetime, float] | None = None
        self._has_warned = False

    def now(self) -> datetime:
        """Return the server's instant, as it was last known."""
        return self._local_now() + self._offset

    async def measured_now(self) -> datetime:
        """Return the server's instant, asked for anew when that may have become wrong."""
        if not self._is_known():
            await self.measure()
        return self.now()

    async def measure(self) -> None:
        """Compare the clocks. A server that doesn't say leaves what was known before."""
        quickest = float("inf")
        for _ in range(TRIES):
            begun, local = time.monotonic(), self._local_now()
            try:
                info = await self._client.api(f"STREAM.INFO.KV_{STATE}")
            except (ApiError, BrokerUnavailable) as error:
                logger.debug("the server's clock can't be read: %s", error)
                return
            took = time.monotonic() - begun
            if took < quickest:
                quickest = took
                # As if it had answered at once: no job is due early, and none late by more.
                self._offset = instant(info["ts"]) - local
                self._measured_at = local, begun
            if took < QUICK:
                break
        self._warn_once()

    def _is_known(self) -> bool:
        if self._measured_at is None:
            return False
        local, begun = self._measured_at
        age = time.monotonic() - begun
        return age < KNOWN_FOR and abs((self._local_now() - local).total_seconds() - age) < STEP

    def _warn_once(self) -> None:
        seconds = self._offset.total_seconds()
        if abs(seconds) > WORTH_A_LINE and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the clock of this machine is %.1f s %s that of %s, by which delays are counted",
                abs(seconds),
                "behind" if seconds > 0 else "ahead of",
                self._client.where,
            )


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
