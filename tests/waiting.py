"""Wait for a condition instead of sleeping for a guessed time."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio

STEP = 0.01


async def until(predicate: Callable[[], object], *, within: float = 10.0, what: str) -> None:
    """Return once `predicate()` is true. Raises: AssertionError after `within` seconds."""
    deadline = time.monotonic() + within
    while not predicate():
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        await anyio.sleep(STEP)


def until_sync(predicate: Callable[[], object], *, within: float = 10.0, what: str) -> None:
    """As `until`, for code without an event loop."""
    deadline = time.monotonic() + within
    while not predicate():
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        time.sleep(STEP)
