"""What an app has declared. Nothing here does I/O, and nothing can be added once it is frozen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from mega.cron.timetable import Timetable
from mega.declare.naming import place_of
from mega.declare.signature import Handler
from mega.errors import (
    BadHandler,
    BadOption,
    BadSubject,
    DeclarationError,
    DuplicateName,
    did_you_mean,
)
from mega.events import Event
from mega.options import DEFAULT_LOCK, JobOptions, Lock, Role, ScheduleOptions, check_lock
from mega.pool_options import PoolOptions
from mega.wire.message import stream_name
from mega.wire.payload import Codec

__all__ = [
    "DEFAULT_POOL",
    "CpuSpec",
    "JobSpec",
    "Middleware",
    "Registry",
    "ScheduleSpec",
    "StartUp",
]

T = TypeVar("T")
#: A coroutine function of the context and of what calls the next one, ending in the handler.
Middleware: TypeAlias = Callable[[Any, Callable[[], Awaitable[Any]]], Awaitable[Any]]
DEFAULT_POOL = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A declared job."""

    subject: str
    handler: Handler
    codec: Codec[Any]
    result_codec: Codec[Any]
    options: JobOptions
    roles: tuple[Role, ...]

    @property
    def place(self) -> str:
        """Where it is declared."""
        return self.handler.place


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec:
    """A declared schedule: a handler that runs in place, or the subject of a job to enqueue.

    `timezone` is the zone of a cron expression, None for an interval.
    """

    name: str
    timetable: Timetable
    timezone: str | None
    is_host_zone: bool
    lock: Lock | None
    handler: Handler
    options: ScheduleOptions = field(default_factory=ScheduleOptions)
    subject: str | None = None

    @property
    def place(self) -> str:
        """Where it is declared."""
        return self.handler.place

    @property
    def store(self) -> str:
        """Which lock store decides its ticks."""
        return self.lock.store if self.lock else DEFAULT_LOCK

    @property
    def key(self) -> str:
        """The record of its ticks, shared by all processes."""
        return f"mega:schedule:{self.name}"

    @property
    def lock_key(self) -> str:
        """The record of its lock: that of its ticks, unless schedules share a lock."""
        return (self.lock and self.lock.key) or self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSpec:
    """A declared CPU task. `ref` is `module:qualname`."""

    name: str
    ref: str
    pool: str
    timeout: float | None
    place: str


@dataclass(frozen=True, slots=True)
class StartUp:
    """A function that is called at start: in each process, or `once` in all that start together."""

    fn: Callable[[], Any]
    once: bool

    @property
    def name(self) -> str:
        """The function's name, by which the processes of one app know it."""
        return str(getattr(self.fn, "__name__", type(self.fn).__name__))

    @property
    def place(self) -> str:
        """Where it is declared."""
        return place_of(self.fn)


@dataclass(slots=True)
class Registry:
    """All declarations of one app or group, in the order in which they were made."""

    jobs: dict[str, JobSpec] = field(default_factory=dict)
    schedules: dict[str, ScheduleSpec] = field(default_factory=dict)
    cpu_tasks: dict[str, CpuSpec] = field(default_factory=dict)
    pools: dict[str, PoolOptions] = field(default_factory=dict)
    subscribers: list[tuple[type[Event], Callable[[Any], Any]]] = field(default_factory=list)
    middleware: list[Middleware] = field(default_factory=list)
    startup: list[StartUp] = field(default_factory=list)
    shutdown: list[Callable[[], Any]] = field(default_factory=list)
    closed_because: str = ""
    #: The names that `Lock.store` may have. A group doesn't know them before it is included.
    lock_stores: tuple[str, ...] | None = None

    def add_job(self, spec: JobSpec) -> None:
        """Add a job. Raises: DuplicateName, BadSubject."""
        self._add(self.jobs, spec.subject, spec, "jobs use the subject", "another subject")
        for other in self.jobs.values():
            is_same = stream_name(other.subject) == stream_name(spec.subject)
            if is_same and other is not spec:
                del self.jobs[spec.subject]
                raise BadSubject(
                    f'the subjects "{other.subject}" and "{spec.subject}" would share the '
                    f'stream "{stream_name(spec.subject)}".',
                    where=_both(other.place, spec.place),
                    hint="Give one of them another subject.",
                )

    def add_schedule(self, spec: ScheduleSpec) -> None:
        """Add a schedule. Raises: DuplicateName, UnknownLock."""
        if spec.lock is not None:
            check_lock(spec.lock, stores=self.lock_stores, where=spec.place)
        self._add(self.schedules, spec.name, spec, "schedules have the name", "another name=")

    def add_cpu_task(self, spec: CpuSpec) -> None:
        """Add a CPU task. Raises: DuplicateName."""
        self._add(self.cpu_tasks, spec.name, spec, "CPU tasks have the name", "another name")

    def add_pool(self, name: str, options: PoolOptions) -> None:
        """Add a CPU pool. Raises: DuplicateName."""
        self._check_open()
        if name in self.pools:
            raise DuplicateName(f'two pools have the name "{name}".')
        self.pools[name] = options

    def add_subscriber(self, event: type[Event], fn: Callable[[Any], Any]) -> None:
        """Add a subscriber. Raises: DeclarationError."""
        self._check_open()
        self.subscribers.append((event, fn))

    def add_middleware(self, fn: Middleware) -> None:
        """Put middleware inside of all that is there. Raises: DeclarationError."""
        self._check_open()
        self.middleware.append(fn)

    def add_startup(self, hook: StartUp) -> None:
        """Add a function to call at start, after all that are there. Raises: DuplicateName."""
        self._check_open()
        for other in self.startup:
            if hook.once and other.once and hook.name == other.name:
                raise DuplicateName(
                    f'two start-up hooks that run once are called "{hook.name}".',
                    where=_both(other.place, hook.place),
                    hint="Rename one: the processes that start know them by name.",
                )
        self.startup.append(hook)

    def add_shutdown(self, fn: Callable[[], Any]) -> None:
        """Add a function to call at the end. Raises: DeclarationError."""
        self._check_open()
        self.shutdown.append(fn)

    def include(self, other: Registry) -> None:
        """Add all that `other` holds. Raises: DuplicateName, BadSubject, UnknownLock."""
        for job in other.jobs.values():
            self.add_job(job)
        for schedule in other.schedules.values():
            self.add_schedule(schedule)
        for task in other.cpu_tasks.values():
            self.add_cpu_task(task)
        for name, options in other.pools.items():
            self.add_pool(name, options)
        for hook in other.startup:
            self.add_startup(hook)
        self.subscribers += other.subscribers
        self.middleware += other.middleware
        self.shutdown += other.shutdown
        other.closed_because = "the group is included already"

    def freeze(self) -> None:
        """Check what only the whole shows, and refuse additions from now on.

        Raises: BadOption, BadHandler.
        """
        self.pools.setdefault(DEFAULT_POOL, PoolOptions())
        for task in self.cpu_tasks.values():
            self._check_pool(task)
        for schedule in self.schedules.values():
            self._check_subject(schedule)
        self.closed_because = "the app has started already"

    def tasks_of(self, pool: str) -> list[CpuSpec]:
        """Return the CPU tasks that run in a pool."""
        return [task for task in self.cpu_tasks.values() if task.pool == pool]

    def jobs_for(self, role: Role) -> list[JobSpec]:
        """Return the jobs that a process of this role runs."""
        return [job for job in self.jobs.values() if role == "all" or role in job.roles]

    def schedules_for(self, role: Role) -> list[ScheduleSpec]:
        """Return the schedules that a process of this role starts."""
        return list(self.schedules.values()) if role in ("all", "scheduler") else []

    def _add(self, table: dict[str, T], name: str, spec: T, what: str, remedy: str) -> None:
        self._check_open()
        if name in table:
            places = _both(getattr(table[name], "place", ""), getattr(spec, "place", ""))
            raise DuplicateName(
                f'two {what} "{name}".', where=places, hint=f"Give one of them {remedy}."
            )
        table[name] = spec

    def _check_pool(self, task: CpuSpec) -> None:
        if task.pool not in self.pools:
            raise BadOption(
                f'the CPU task "{task.name}" uses the pool "{task.pool}", which is not declared.',
                where=task.place,
                hint=f'Declare it with app.pool("{task.pool}"). '
                + did_you_mean(task.pool, self.pools),
            )

    def _check_subject(self, schedule: ScheduleSpec) -> None:
        if schedule.subject is not None and schedule.subject not in self.jobs:
            raise BadHandler(
                f'the schedule "{schedule.name}" enqueues the job "{schedule.subject}", which '
                "this app doesn't have.",
                where=schedule.place,
                hint="Add app.include(group) for the group that declares the job.",
            )

    def _check_open(self) -> None:
        if self.closed_because:
            raise DeclarationError(
                f"{self.closed_because}, so nothing can be declared any more.",
                hint="Import all modules with jobs before app.include(), app.run() and "
                "`async with app`.",
            )


def _both(*places: Any) -> str:
    return "    ".join(place for place in places if place)
