"""The tables of one run: medians, spread, and the ratios to the reference and to the peers."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from benchmarks.contenders import CONTENDERS, EXECUTOR, PEERS
from benchmarks.goals import GOALS, Against, Rows, ratios, verdict

__all__ = ["report"]

#: The values that are shown of each measurement, and what they are.
SHOWN = {
    "drain": {
        "jobs/s": "drain: no-op jobs a second in one worker process",
        "cpu": "drain: CPU µs of the worker for each job",
        "MB": "drain: MB that the worker holds",
        "lost": "drain: jobs lost",
    },
    "enqueue": {
        "one by one/s": "enqueue: jobs a second, one by one",
        "64 at once/s": "enqueue: jobs a second, from 64 tasks",
        "in bulk/s": "enqueue: jobs a second, in bulk",
        "one by one cpu": "enqueue: CPU µs of the producer for each job, one by one",
        "64 at once cpu": "enqueue: CPU µs of the producer for each job, from 64 tasks",
        "in bulk cpu": "enqueue: CPU µs of the producer for each job, in bulk",
    },
    "latency": {
        "p50": "latency: ms from the enqueue to the start on an idle worker, p50",
        "p99": "latency: ms from the enqueue to the start on an idle worker, p99",
        "lost": "latency: jobs lost",
    },
    "kill": {
        "recovered": "kill: seconds from the restart to the last job's end",
        "lost": "kill: jobs lost",
        "repeated": "kill: jobs run twice",
        "cut": "kill: jobs that the kill has cut",
    },
    "schedules": {
        "next": "schedules: CPU µs for the next tick of an expression, on average",
        "year": "schedules: CPU seconds for a year of minutes over both changes of the clock",
        "burst": "schedules: seconds until 1,000 of 10,000 schedules have begun at one instant",
        "idle": "schedules: CPUs that 10,000 schedules use while none is due",
    },
    "memory": {
        "worker": "memory: MB that the worker holds at the end",
        "worker growth": "memory: MB that the worker has grown by after the first 100,000 jobs",
        "producer": "memory: MB that the producer holds at the end",
        "producer growth": "memory: MB that the producer has grown by after the first 100,000 jobs",
        "lost": "memory: jobs lost",
    },
    "cpu": {
        "one by one/s": "cpu: calls a second, one by one",
        "64 at once/s": "cpu: calls a second, from 64 tasks",
        "one by one cpu": "cpu: CPU µs of the caller for each call, one by one",
        "64 at once cpu": "cpu: CPU µs of the caller for each call, from 64 tasks",
        "lag p50": "cpu: ms by which the event loop is late while all workers are busy, p50",
        "lag p99": "cpu: ms by which the event loop is late while all workers are busy, p99",
    },
}
AGAINST: tuple[Against, ...] = ("reference", "better peer", "executor")


def report(rows: Rows) -> str:
    """Return the tables of all that was measured, and a verdict for each goal."""
    tables = [
        table(rows, what, value, title)
        for what, values in SHOWN.items()
        for value, title in values.items()
    ]
    verdicts = ["goals", *(verdict(goal, rows) for goal in GOALS)]
    return "\n\n".join([*filter(None, tables), "\n".join(verdicts)])


def table(rows: Rows, what: str, value: str, title: str) -> str:
    lines = [
        line(rows, what, contender, value)
        for contender in (*CONTENDERS, EXECUTOR)
        if any(value in values for values in rows.get((what, contender), {}).values())
    ]
    return "\n".join([title, *lines]) if lines else ""


def line(rows: Rows, what: str, contender: str, value: str) -> str:
    found = [values[value] for values in rows[what, contender].values() if value in values]
    cells = [f"  {contender:16}", f"{shown(found):>30}"]
    cells += [f"{text:>34}" for text in compared(rows, what, contender, value)]
    return "".join(cells).rstrip()


def compared(rows: Rows, what: str, contender: str, value: str) -> Iterator[str]:
    for against in AGAINST:
        is_itself = contender == against or (against == "better peer" and contender in PEERS)
        found = [] if is_itself else ratios(rows, what, contender, value, against)
        yield f"{shown(found)} × {against}" if found else ""


def shown(found: list[float]) -> str:
    spread = f" ({number(min(found))} to {number(max(found))})" if len(found) > 1 else ""
    return f"{number(median(found))}{spread}"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"
