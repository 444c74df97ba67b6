"""Events on their way to logs and subscribers.

Emitting never waits and never raises: subscribers run in a task of their own, one event
after the other, so that one which raises or is slow holds up no job.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeAlias

import anyio
from anyio import to_thread

from mega.declare.signature import is_coroutine_function
from mega.errors import text_of
from mega.events import (
    CpuCrashed,
    Event,
    JobDeadLettered,
    JobFailed,
    JobRetried,
    LockLost,
    LockStoreDown,
    ScheduleFailed,
    ScheduleMisfired,
    ScheduleSkipped,
)

__all__ = ["Hub", "Subscriber"]

Subscriber: TypeAlias = Callable[[Any], Awaitable[None]]

logger = logging.getLogger("mega.events")

#: What is worth a line although nobody subscribed (SEEDS S1-28), and at which level.
LOGGED: dict[type[Event], int] = {
    JobRetried: logging.WARNING,
    JobFailed: logging.ERROR,
    JobDeadLettered: logging.WARNING,
    ScheduleSkipped: logging.WARNING,
    ScheduleFailed: logging.ERROR,
    ScheduleMisfired: logging.WARNING,
    LockLost: logging.ERROR,
    LockStoreDown: logging.ERROR,
    CpuCrashed: logging.ERROR,
}
BACKLOG = 10_000
IDENTITY = ("subject", "name", "job_id", "pool", "task")


class Hub:
    """Takes events in, logs those that matter, and hands them to their subscribers."""

    def __init__(self, subscribers: list[tuple[type[Event], Callable[[Any], Any]]]) -> None:
        self._subscribers: dict[type[Event], list[Subscriber]] = {}
        self._send, self._receive = anyio.create_memory_object_stream[Event](BACKLOG)
        self._wanted: dict[type[Event], bool] = {}
        for event, subscriber in subscribers:
            self.subscribe(event, subscriber)

    def subscribe(self, event: type[Event], subscriber: Callable[[Any], Any]) -> None:
        """Hand every such event, and those of derived classes, to `subscriber`."""
        self._subscribers.setdefault(event, []).append(as_async(subscriber))
        self._wanted.clear()

    def wants(self, event: type[Event]) -> bool:
        """Return whether anybody would see such an event; the hot path asks before it makes one."""
        wanted = self._wanted.get(event)
        if wanted is None:
            wanted = self._wanted[event] = event in LOGGED or bool(self._listeners(event))
        return wanted

    def emit(self, event: Event) -> None:
        """Log the event if it matters, and queue it for its subscribers."""
        level = level_of(event)
        if level is not None:
            logger.log(level, describe(event), extra={"event": event.kind})
        if self._listeners(type(event)):
            try:
                self._send.send_nowait(event)
            except anyio.WouldBlock:
                logger.error("%s is dropped: its subscribers are %d behind", event.kind, BACKLOG)
            except anyio.ClosedResourceError:
                logger.debug("%s came after the last subscriber had gone", event.kind)

    async def run(self) -> None:
        """Hand events to their subscribers until `close`, and then what is still queued."""
        with self._receive:
            async for event in self._receive:
                for subscriber in self._listeners(type(event)):
                    await _call(subscriber, event)

    def close(self) -> None:
        """Take no more events; `run` returns when the queued ones are handed over."""
        self._send.close()

    def _listeners(self, event: type[Event]) -> list[Subscriber]:
        return [fn for base in event.__mro__ for fn in self._subscribers.get(base, ())]


def level_of(event: Event) -> int | None:
    """Return the level at which an event is logged, or None."""
    if isinstance(event, ScheduleSkipped) and event.reason == "taken":
        # With two schedulers one of them says this at every tick, and all is well.
        return logging.DEBUG
    return LOGGED.get(type(event))


def as_async(subscriber: Callable[[Any], Any]) -> Subscriber:
    """Return a coroutine function for any subscriber; a plain one runs in a thread."""
    if is_coroutine_function(subscriber):
        return subscriber

    async def in_thread(event: Event) -> None:
        await to_thread.run_sync(subscriber, event, abandon_on_cancel=True)

    return in_thread


def describe(event: Event) -> str:
    """Return one line that says what happened to whom, and why."""
    facts = {name: value for name, value in vars(event).items() if value not in ("", None)}
    who = [facts.pop(name) for name in IDENTITY if name in facts]
    error = facts.pop("error", None)
    line = " ".join([event.kind, *map(str, who), *(f"{k}={_short(v)}" for k, v in facts.items())])
    return f"{line}: {type(error).__name__}: {text_of(error)}" if error is not None else line


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g} s"
    return value.isoformat() if isinstance(value, datetime) else str(value)


async def _call(subscriber: Subscriber, event: Event) -> None:
    try:
        await subscriber(event)
    except GeneratorExit:
        raise
    except BaseException as error:
        # A cancellation that nobody asked for is an error of the subscriber's own.
        is_cancelled = anyio.get_current_task().has_pending_cancellation()
        if is_cancelled and not isinstance(error, Exception):
            raise
        logger.exception("a subscriber of %s raised", event.kind)
