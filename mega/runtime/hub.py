"""Events on their way to logs and subscribers.

Emitting never waits and never raises. Each subscriber has a queue and a task of its own, so
that one which raises, is slow or hangs holds up neither a job nor another subscriber.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

import anyio
from anyio.abc import TaskGroup

from mega.context import NAMED
from mega.control import Control
from mega.errors import capped_traceback, one_line
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
from mega.runtime.subscriber import Subscriber
from mega.runtime.traces import from_handler, place_of_error

__all__ = ["Hub"]

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
IDENTITY = ("subject", "name", "job_id", "pool", "task")
RUN_FIELDS = ("job_id", "subject", "attempt")


class Hub:
    """Takes events in, logs those that matter, and hands them to their subscribers."""

    def __init__(self, subscribers: list[tuple[type[Event], Callable[[Any], Any]]]) -> None:
        self._subscribers: list[Subscriber] = []
        self._by_event: dict[type[Event], list[Subscriber]] = {}
        self._wanted: dict[type[Event], bool] = {}
        self._tasks: TaskGroup | None = None
        self._closing = anyio.Event()
        for event, subscriber in subscribers:
            self.subscribe(event, subscriber)

    def subscribe(self, event: type[Event], subscriber: Callable[[Any], Any]) -> None:
        """Hand every such event, and those of derived classes, to `subscriber`."""
        self._by_event.setdefault(event, []).append(self._known(subscriber))
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
            _log(event, level)
        for subscriber in self._listeners(type(event)):
            subscriber.put(event)

    async def run(self) -> None:
        """Hand events to their subscribers until `close`, and then what is still queued."""
        async with anyio.create_task_group() as self._tasks:
            for subscriber in self._subscribers:
                self._tasks.start_soon(subscriber.run)
            await self._closing.wait()

    def close(self) -> None:
        """Take no more events; `run` returns when the queued ones are handed over."""
        self._closing.set()
        for subscriber in self._subscribers:
            subscriber.close()

    def _known(self, fn: Callable[[Any], Any]) -> Subscriber:
        """Return the one subscriber of a function: it is told of all its events in order."""
        for subscriber in self._subscribers:
            if subscriber.fn == fn:
                return subscriber
        self._subscribers.append(Subscriber(fn))
        if self._tasks is not None:
            self._tasks.start_soon(self._subscribers[-1].run)
        return self._subscribers[-1]

    def _listeners(self, event: type[Event]) -> list[Subscriber]:
        return [one for base in event.__mro__ for one in self._by_event.get(base, ())]


def level_of(event: Event) -> int | None:
    """Return the level at which an event is logged, or None."""
    if isinstance(event, ScheduleSkipped) and event.reason in ("taken", "paused"):
        # With two schedulers one of them says this at every tick, and all is well.
        return logging.DEBUG
    if isinstance(event, LockStoreDown) and event.again:
        return logging.DEBUG
    return LOGGED.get(type(event))


def describe(event: Event) -> str:
    """Return one line that says what happened to whom, and why."""
    facts = {name: value for name, value in vars(event).items() if value not in ("", None)}
    who = [facts.pop(name) for name in IDENTITY if name in facts]
    error = facts.pop("error", None)
    line = " ".join([event.kind, *map(str, who), *(f"{k}={_short(v)}" for k, v in facts.items())])
    return f"{line}: {one_line(error)}" if error is not None else line


def _log(event: Event, level: int) -> None:
    line, error = describe(event), error_of_handler(event)
    trace = None if error is None else from_handler(error)
    if error is None or trace is None:
        logger.log(level, line, extra=_extra(event))
    elif not is_brief(event, error):
        logger.log(level, line, extra=_extra(event), exc_info=(type(error), error, trace))
    else:
        shown = (type(error), error, trace) if logger.isEnabledFor(logging.DEBUG) else None
        line = f"{line} ({place_of_error(error)})"
        logger.log(level, line, extra=_extra(event), exc_info=shown)


def error_of_handler(event: Event) -> BaseException | None:
    """Return what a run raised, if that is what the event tells."""
    match event:
        case JobRetried(error=error):
            return error
        case JobFailed(error=error, phase="retries" | "rejected" | "too_large"):
            return error
        case ScheduleFailed(error=error, phase="run" | "retry"):
            return error
        case _:
            return None


def is_brief(event: Event, error: BaseException) -> bool:
    """Whether a line is enough: the run is tried again, or the handler meant to end it so."""
    is_retried = isinstance(event, JobRetried) or getattr(event, "phase", "") == "retry"
    return is_retried or isinstance(error, Control)


def _cap_traceback(record: logging.LogRecord) -> bool:
    """Write out a traceback for all handlers: the text of an error may have megabytes."""
    if record.exc_info and record.exc_info[1] is not None:
        _, error, trace = record.exc_info
        record.exc_text = capped_traceback(error, trace).rstrip()
    return True


logger.addFilter(_cap_traceback)


def _extra(event: Event) -> dict[str, Any]:
    """Return the fields of the log record, whose text names the run."""
    facts = {name: value for name, value in vars(event).items() if name in RUN_FIELDS}
    return {"event": event.kind, **NAMED, **facts}


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{_rounded(value)} s"
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _rounded(seconds: float) -> str:
    if abs(seconds) >= 100:
        return f"{seconds:.0f}"
    return f"{seconds:.3g}" if abs(seconds) >= 0.001 else "0"
