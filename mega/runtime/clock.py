"""The time of this machine."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import anyio

__all__ = ["SystemClock"]


class SystemClock:
    """The clock that everything outside tests runs by."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)
