"""Wait for an answer of the server, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

ASK_EVERY = 0.02


async def until_answer(
    ask: Callable[[], Awaitable[T]], is_right: Callable[[T], object], *, what: str
) -> T:
    """Ask until the answer is right, and return it; fail the test after ten seconds."""
    give_up_at = time.monotonic() + 10
    while not is_right(answer := await ask()):
        assert time.monotonic() < give_up_at, f"not within 10 s: {what}; last: {answer!r}"
        await asyncio.sleep(ASK_EVERY)
    return answer
