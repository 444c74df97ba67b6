"""Waits that end early when the process drains."""

from __future__ import annotations

import anyio

from mega.ports import Clock

__all__ = ["cancel_when_set", "has_slept"]


async def cancel_when_set(event: anyio.Event, scope: anyio.CancelScope) -> None:
    """Cancel `scope` once the event is set."""
    await event.wait()
    scope.cancel()


async def has_slept(clock: Clock, seconds: float, *, draining: anyio.Event) -> bool:
    """Return True after that many seconds, or False at once when `draining` is set."""
    async with anyio.create_task_group() as group:
        group.start_soon(cancel_when_set, draining, group.cancel_scope)
        await clock.sleep(seconds)
        group.cancel_scope.cancel()
    return not draining.is_set()
