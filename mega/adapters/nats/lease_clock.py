"""The clock of leases, which the server counts while a machine sleeps."""

from __future__ import annotations

import time

__all__ = ["lease_clock"]

# The monotonic clock of Linux stands still while the machine sleeps; the server's doesn't.
BOOT_TIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def lease_clock() -> float:
    """Return seconds that go on while this process, or the machine, is stopped."""
    return time.monotonic() if BOOT_TIME is None else time.clock_gettime(BOOT_TIME)
