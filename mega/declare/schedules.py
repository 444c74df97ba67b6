"""What the line of a schedule says: checked there, and again when it is known what it starts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NoReturn

from mega.cron import validate
from mega.cron.timetable import CronTimetable, IntervalTimetable, Timetable
from mega.declare.naming import check_name
from mega.declare.registry import ScheduleSpec
from mega.declare.signature import Handler
from mega.errors import BadOption
from mega.options import (
    DEFAULT_LOCK,
    Lock,
    ScheduleOptions,
    Seconds,
    kept_seconds,
    to_lock,
    to_seconds,
)

__all__ = ["ScheduleDraft"]

#: What a job says by options of its own, and how it does.
SAID_BY_THE_JOB = {
    "timeout": "Set timeout= on the job.",
    "retries": "Set retries= on the job.",
    "overlap": "Set concurrency= on the job: 1, the default, keeps its runs apart.",
    "lock": "Leave it out, and concurrency=1 on the job, the default, keeps its runs apart. "
    'Only the name of a store has a meaning, such as lock="main": it keeps the ticks.',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDraft:
    """All of a schedule but its function, or its job.

    `keeps_apart`: its lock says more than which store notes the ticks.
    """

    name: str | None
    timetable: Timetable
    is_host_zone: bool
    lock: Lock | None
    keeps_apart: bool
    options: ScheduleOptions

    @classmethod
    def of(
        cls,
        cron: str | None,
        *,
        every: Seconds | None,
        timezone: str | None,
        name: str | None,
        lock: bool | str | Lock | None,
        stores: Collection[str] | None,
        **others: Any,
    ) -> ScheduleDraft:
        """Check what stands on the line; `others` are the fields of ScheduleOptions.

        Raises: DeclarationError.
        """
        timetable, checked_lock = _timetable(cron, every, timezone), to_lock(lock, stores=stores)
        options = ScheduleOptions(**others)
        _check_together(options, lock=checked_lock, every=every)
        return cls(
            name=name,
            timetable=timetable,
            is_host_zone=cron is not None and timezone is None,
            lock=checked_lock,
            keeps_apart=checked_lock is not None and not _is_a_store(lock),
            options=options,
        )

    def spec(self, handler: Handler, *, subject: str | None) -> ScheduleSpec:
        """Return the schedule of a function, or of the job of that subject. Raises: BadOption."""
        spec = ScheduleSpec(
            name=check_name(handler.name if self.name is None else self.name, what="a schedule"),
            timetable=self.timetable,
            timezone=getattr(self.timetable, "timezone", None),
            is_host_zone=self.is_host_zone,
            lock=self.lock,
            handler=handler,
            options=self.options,
            subject=subject,
        )
        if subject is not None:
            self._check_over_job(spec)
        return spec

    def _check_over_job(self, spec: ScheduleSpec) -> None:
        options, defaults = self.options, ScheduleOptions()
        if options.scope == "replica":
            _refuse("scope", spec, hint="Leave it out, or schedule a function.")
        for name in ("timeout", "retries", "overlap"):
            if getattr(options, name) != getattr(defaults, name):
                _refuse(name, spec, hint=SAID_BY_THE_JOB[name])
        if self.keeps_apart:
            _refuse("lock", spec, hint=SAID_BY_THE_JOB["lock"])


def _timetable(cron: str | None, every: Seconds | None, timezone: str | None) -> Timetable:
    if (cron is None) == (every is None):
        raise BadOption(
            "a schedule has either a cron expression or every=.",
            hint='Write @app.schedule("0 3 * * *") or @app.schedule(every=30).',
        )
    if cron is not None:
        validate(cron)
        return CronTimetable(cron, timezone)
    if timezone is not None:
        raise BadOption("every= has no timezone=: it counts seconds.")
    return IntervalTimetable(to_seconds(every, option="every"))


def _is_a_store(lock: object) -> bool:
    """Whether `lock=` is the name of a store, or a Lock that says nothing beside it."""
    if isinstance(lock, Lock):
        return lock.store != DEFAULT_LOCK and lock == Lock(store=lock.store)
    return isinstance(lock, str)


def _check_together(options: ScheduleOptions, *, lock: Lock | None, every: Seconds | None) -> None:
    """Refuse what contradicts each other. Raises: BadOption."""
    if lock is not None and options.scope == "replica":
        raise BadOption(
            'lock= keeps processes apart, and scope="replica" runs in each of them.',
            hint="Leave one of them out.",
        )
    if lock is not None and options.overlap == "allow":
        raise BadOption(
            'lock= keeps runs apart, and overlap="allow" lets them run beside each other.',
            hint="Leave one of them out.",
        )
    jitter = kept_seconds(options.jitter)
    if every is not None and jitter >= to_seconds(every, option="every"):
        raise BadOption(
            f"jitter={jitter:g} is not less than every={to_seconds(every, option='every'):g}, "
            "so a run could begin after the next tick.",
            hint="Make jitter= a part of the time between two ticks.",
        )


def _refuse(option: str, spec: ScheduleSpec, *, hint: str) -> NoReturn:
    raise BadOption(
        f'{option}= of the schedule "{spec.name}" has no meaning: a job is enqueued once for '
        "each tick.",
        where=spec.place,
        hint=hint,
    )
