"""The start screen: what was understood of the app, before anything runs."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from mega.declare.registry import CpuSpec, JobSpec, Registry, ScheduleSpec
from mega.options import DEFAULT_LOCK, JobOptions, Role
from mega.pool_options import PoolOptions

__all__ = ["screen", "warn_of_nothing"]

logger = logging.getLogger("mega")

Row = tuple[str, ...]

MOST_SUMMED = 10_000
YEAR = 365 * 24 * 3600.0


def screen(registry: Registry, *, title: str, broker: str, role: Role, now: datetime) -> str:
    """Return the start screen as text: one line per declaration."""
    rows = [_schedule(spec, now) for spec in registry.schedules_for(role)]
    rows += [_job(spec) for spec in registry.jobs_for(role)]
    rows += [_cpu_task(spec, registry) for spec in registry.cpu_tasks.values()]
    return "\n".join([title, f"  broker    {broker}", *_aligned(rows)])


def warn_of_nothing(registry: Registry, role: Role) -> None:
    """Say that a process of this role has nothing to run; a module was not imported, mostly."""
    if registry.jobs_for(role) or registry.schedules_for(role):
        return
    is_empty = not registry.jobs and not registry.schedules
    what = "is declared" if is_empty else f"is there for the role {role}"
    remedy = "import the modules that declare them, and app.include() their groups"
    logger.warning("no job or schedule %s: %s", what, remedy)


def _schedule(spec: ScheduleSpec, now: datetime) -> Row:
    zone = spec.timezone or ""
    return ("schedule", spec.name, spec.timetable.text, zone, _lock(spec), _next(spec, now))


def _lock(spec: ScheduleSpec) -> str:
    if spec.lock is None or spec.subject is not None:
        return ""  # over a job it only names the store of the ticks
    where = "" if spec.store == DEFAULT_LOCK else f" in {spec.store}"
    return f"lock {_seconds(spec.lock.ttl)}{where}"


def _next(spec: ScheduleSpec, now: datetime) -> str:
    tick = spec.timetable.next(now)
    if tick is None:
        return "never again"
    local = tick.astimezone(ZoneInfo(spec.timezone) if spec.timezone else None)
    day = "" if tick - now < timedelta(days=1) else f"{local:%Y-%m-%d} "
    clock = f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"
    return f"next {day}{clock} (in {_span(tick - now)})"


def _job(spec: JobSpec) -> Row:
    parts = {"p": spec.codec.describe, "c": "ctx"}
    arguments = ", ".join(parts[letter] for letter in spec.handler.shape)
    call = f"{spec.handler.name}({arguments})"
    concurrency = f"concurrency {spec.options.concurrency}"
    return ("job", spec.subject, call, _retries(spec.options), concurrency)


def _retries(options: JobOptions) -> str:
    """Return how often a job is retried, and how long that takes at most, if it isn't for ever."""
    count = "1 retry" if options.retries == 1 else f"{options.retries} retries"
    if options.retries > MOST_SUMMED:
        return count
    span = sum(options.retry_delays)
    return f"{count} in {_span(timedelta(seconds=span))}" if 0 < span < YEAR else count


def _cpu_task(spec: CpuSpec, registry: Registry) -> Row:
    options = registry.pools[spec.pool]
    return ("cpu", spec.name, f"pool {spec.pool}", _workers(options))


def _workers(options: PoolOptions) -> str:
    one, many = ("thread", "threads") if options.mode == "thread" else ("process", "processes")
    if options.size is None:
        return many if options.mode == "thread" else ""
    return f"1 {one}" if options.size == 1 else f"{options.size} {many}"


def _aligned(rows: list[Row]) -> list[str]:
    """Return the rows with the cells of one kind of row in columns."""
    name_width = max((len(row[1]) for row in rows), default=0)
    lines = []
    for row in rows:
        same = [other for other in rows if other[0] == row[0]]
        widths = [max(len(other[i]) for other in same) for i in range(2, len(row))]
        cells = [cell.ljust(width) for cell, width in zip(row[2:], widths, strict=True) if width]
        lines.append("  ".join([f"  {row[0]:<8}", row[1].ljust(name_width), *cells]).rstrip())
    return lines


def _seconds(value: object) -> str:
    return f"{value:g} s" if isinstance(value, int | float) else str(value)


def _span(span: timedelta) -> str:
    """Return a duration in its two largest units."""
    if span < timedelta(seconds=1):
        return f"{max(0.0, span.total_seconds()):.1g} s"
    minutes, seconds = divmod(round(span.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    shown = [f"{count} {unit}" for count, unit in parts if count] or ["0 s"]
    return " ".join(shown[:2])
