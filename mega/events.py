"""Records of what happened, for subscribers of `@app.on(...)`, logs and metrics.

Each event class has a `kind`, the word under which the seed systems knew it; both the
class and the word can be subscribed to.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from mega.errors import UnknownEvent, did_you_mean

__all__ = [
    "CpuCrashed",
    "CpuDispatched",
    "CpuDone",
    "CpuFailed",
    "CpuStopped",
    "Event",
    "JobDeadLettered",
    "JobDone",
    "JobEnqueued",
    "JobEvent",
    "JobFailed",
    "JobRetried",
    "JobSnoozed",
    "JobStarted",
    "LockLost",
    "LockStoreDown",
    "ScheduleDone",
    "ScheduleEvent",
    "ScheduleFailed",
    "ScheduleMisfired",
    "ScheduleRun",
    "ScheduleSkipped",
    "ThreadLeft",
    "event_class",
]


@dataclass(frozen=True, kw_only=True)
class Event:
    """What all events have. `kind` is the event's name in text."""

    kind: ClassVar[str] = ""


@dataclass(frozen=True, kw_only=True)
class JobEvent(Event):
    """Something that happened to one job. `attempt` counts from 1."""

    job_id: str
    subject: str
    attempt: int = 1


@dataclass(frozen=True, kw_only=True)
class JobEnqueued(JobEvent):
    """The broker has stored the job. `duplicate` is true when it was there already."""

    kind: ClassVar[str] = "job.dispatch"
    duplicate: bool = False


@dataclass(frozen=True, kw_only=True)
class JobStarted(JobEvent):
    """The handler is about to run."""

    kind: ClassVar[str] = "job.start"


@dataclass(frozen=True, kw_only=True)
class JobDone(JobEvent):
    """The handler returned and the job is acknowledged.

    `lapsed`: the worker could not renew the job's lease in time, so that it may have been run
    elsewhere too.
    """

    kind: ClassVar[str] = "job.done"
    seconds: float
    lapsed: bool = False


@dataclass(frozen=True, kw_only=True)
class JobRetried(JobEvent):
    """An attempt failed and the next one is stored; it is due after `delay` seconds."""

    kind: ClassVar[str] = "job.retry"
    error: BaseException
    delay: float


@dataclass(frozen=True, kw_only=True)
class JobSnoozed(JobEvent):
    """The handler put its job off by `delay` seconds, which costs no attempt."""

    kind: ClassVar[str] = "job.snooze"
    delay: float
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class JobFailed(JobEvent):
    """The job will not run again by itself.

    `phase` says why: `retries` (the last attempt failed), `rejected` (another run can't help),
    `crashed` (it killed its workers), `payload` or `malformed` (it can't be read), `too_large`
    (its next copy, with all headers, is over what the broker takes). Or it is `dead_letter`, and
    the job has not ended: `error` kept its dead letter from being stored, which is tried again;
    told at each refusal.
    """

    kind: ClassVar[str] = "job.fail"
    error: BaseException
    phase: str = "retries"


@dataclass(frozen=True, kw_only=True)
class JobDeadLettered(JobEvent):
    """The job is stored among the dead letters of its subject."""

    kind: ClassVar[str] = "job.dlq"
    error: BaseException


@dataclass(frozen=True, kw_only=True)
class ThreadLeft(Event):
    """A plain handler or CPU task did not end in time, and its thread goes on without it.

    It ran a job, or the schedule of that name, or a CPU task of a pool of threads. `left` are
    all such threads of the handlers of this process, or of that pool.
    """

    kind: ClassVar[str] = "thread.left"
    job_id: str | None = None
    subject: str | None = None
    attempt: int | None = None
    schedule: str | None = None
    pool: str | None = None
    task: str | None = None
    left: int


@dataclass(frozen=True, kw_only=True)
class ScheduleEvent(Event):
    """Something that happened to a schedule. `due_at` is the tick; None for a manual run."""

    name: str
    due_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class ScheduleRun(ScheduleEvent):
    """A run starts; the tick is claimed, and the lock held if there is one."""

    kind: ClassVar[str] = "schedule.run"
    lateness: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ScheduleSkipped(ScheduleEvent):
    """A tick or manual run did not start. `by` names the process that stood in the way."""

    kind: ClassVar[str] = "schedule.skip"
    reason: str
    by: str = ""
    error: BaseException | None = None


@dataclass(frozen=True, kw_only=True)
class ScheduleDone(ScheduleEvent):
    """A run ended without an error."""

    kind: ClassVar[str] = "schedule.done"
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ScheduleFailed(ScheduleEvent):
    """A run raised (`phase` `run`), or its lock could not be released (`release`).

    After a run of the phase `retry` the tick is run once more.
    """

    kind: ClassVar[str] = "schedule.fail"
    error: BaseException
    phase: str = "run"


@dataclass(frozen=True, kw_only=True)
class ScheduleMisfired(ScheduleEvent):
    """Ticks were missed; `due_at` is the latest of them and the one that runs now, if any."""

    kind: ClassVar[str] = "schedule.misfire"
    missed_since: datetime
    lateness: float


@dataclass(frozen=True, kw_only=True)
class LockLost(ScheduleEvent):
    """Another owner holds the lease of a run that still went on; the run is cancelled."""

    kind: ClassVar[str] = "lock.lost"
    by: str


@dataclass(frozen=True, kw_only=True)
class LockStoreDown(ScheduleEvent):
    """The lock store did not answer; `again`: it did not the time before either."""

    kind: ClassVar[str] = "lock.down"
    error: BaseException
    again: bool = False


@dataclass(frozen=True, kw_only=True)
class CpuEvent(Event):
    """Something that happened in a CPU pool."""

    pool: str
    task: str = ""
    pid: int | None = None


@dataclass(frozen=True, kw_only=True)
class CpuDispatched(CpuEvent):
    """A call was handed to a worker process."""

    kind: ClassVar[str] = "cpu.dispatch"


@dataclass(frozen=True, kw_only=True)
class CpuDone(CpuEvent):
    """A call returned after `seconds`."""

    kind: ClassVar[str] = "cpu.done"
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CpuFailed(CpuEvent):
    """A call raised, timed out, or lost its process."""

    kind: ClassVar[str] = "cpu.fail"
    error: BaseException | None = None


@dataclass(frozen=True, kw_only=True)
class CpuCrashed(CpuEvent):
    """A worker process died by itself; `recent` counts crashes within the restart window."""

    kind: ClassVar[str] = "cpu.crash"
    returncode: int | None = None
    recent: int = 0


@dataclass(frozen=True, kw_only=True)
class CpuStopped(CpuEvent):
    """The pool has stopped."""

    kind: ClassVar[str] = "cpu.stopped"


def _leaves(base: type[Event]) -> list[type[Event]]:
    below = [leaf for child in base.__subclasses__() for leaf in _leaves(child)]
    return ([base] if base.kind else []) + below


EVENTS: dict[str, type[Event]] = {event.kind: event for event in _leaves(Event)}


def event_class(name: str | type[Event]) -> type[Event]:
    """Return the event class for a class or a kind such as `"job.dlq"`. Raises: UnknownEvent."""
    if isinstance(name, type) and issubclass(name, Event):
        return name
    if isinstance(name, str) and name in EVENTS:
        return EVENTS[name]
    word = name if isinstance(name, str) else getattr(name, "__name__", repr(name))
    raise UnknownEvent(f"there is no event {word!r}.", hint=did_you_mean(word, EVENTS))
