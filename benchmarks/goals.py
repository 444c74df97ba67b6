"""What was promised, and whether a run holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias

from benchmarks.contenders import PEERS
from benchmarks.measure import Values

__all__ = ["GOALS", "Goal", "Rows", "ratios", "verdict"]

#: The values of each repetition, by measurement and contender.
Rows: TypeAlias = dict[tuple[str, str], dict[int, Values]]
Against: TypeAlias = Literal["reference", "better peer", "executor", ""]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One promise about one value of one contender.

    A ratio goes by the median of the repetitions; without `against` the value itself must hold
    in each of them. `is_most`: `limit` is the most that it may be.
    """

    text: str
    what: str
    value: str
    contender: str
    limit: float
    against: Against = ""
    is_most: bool = False


def at_least(limit: float, against: Against, what: str, value: str, contender: str) -> Goal:
    text = f"{what}, {value}: {contender} at least {limit:g} × the {against}"
    return Goal(
        text=text, what=what, value=value, contender=contender, limit=limit, against=against
    )


def at_most(limit: float, against: Against, what: str, value: str, contender: str) -> Goal:
    of = f" × the {against}" if against else ""
    return Goal(
        text=f"{what}, {value}: {contender} at most {limit:g}{of}",
        what=what,
        value=value,
        contender=contender,
        limit=limit,
        against=against,
        is_most=True,
    )


GOALS = (
    at_least(4, "better peer", "drain", "jobs/s", "mega-untracked"),
    at_least(0.4, "reference", "drain", "jobs/s", "mega-untracked"),
    at_least(3, "better peer", "drain", "jobs/s", "mega"),
    at_most(2, "reference", "drain", "cpu", "mega-untracked"),
    at_least(0.9, "reference", "enqueue", "one by one/s", "mega"),
    at_least(0.9, "reference", "enqueue", "one by one/s", "mega-untracked"),
    at_least(1.5, "reference", "enqueue", "64 at once/s", "mega-untracked"),
    at_least(2, "reference", "enqueue", "in bulk/s", "mega-untracked"),
    at_most(1.3, "reference", "latency", "p50", "mega"),
    at_most(2, "reference", "latency", "p99", "mega"),
    at_most(0, "", "kill", "lost", "mega"),
    at_most(1, "", "kill", "over ack_wait", "mega"),
    at_most(200, "", "schedules", "next", "mega"),
    at_most(5, "", "schedules", "year", "mega"),
    at_most(1, "", "schedules", "burst", "mega"),
    at_most(0.05, "", "schedules", "idle", "mega"),
    at_most(0, "", "memory", "lost", "mega"),
    at_most(10, "", "memory", "worker growth", "mega"),
    at_most(10, "", "memory", "producer growth", "mega"),
    at_least(2, "executor", "cpu", "one by one/s", "mega"),
    at_least(1, "executor", "cpu", "64 at once/s", "mega"),
    at_most(50, "", "cpu", "lag p99", "mega"),
)


def ratios(rows: Rows, what: str, contender: str, value: str, against: Against) -> list[float]:
    """Return the ratio of each repetition in which both sides have the value."""
    others = PEERS if against == "better peer" else (against,)
    better: Callable[[Sequence[float]], float] = max if value.endswith("/s") else min
    found = []
    for repetition, values in rows.get((what, contender), {}).items():
        rivals = [rows.get((what, other), {}).get(repetition, {}) for other in others]
        known = [rival[value] for rival in rivals if rival.get(value)]
        if value in values and known:
            found.append(values[value] / better(known))
    return found


def verdict(goal: Goal, rows: Rows) -> str:
    """Return one line: met or missed, or that this run doesn't say."""
    if goal.against:
        found = ratios(rows, goal.what, goal.contender, goal.value, goal.against)
    else:
        repetitions = rows.get((goal.what, goal.contender), {}).values()
        found = [values[goal.value] for values in repetitions if goal.value in values]
    if not found:
        return f"  not measured  {goal.text}"
    holds = [one <= goal.limit if goal.is_most else one >= goal.limit for one in found]
    middle = median(found)
    is_met = middle <= goal.limit if goal.is_most else middle >= goal.limit
    is_met = is_met if goal.against else all(holds)
    spread = f" ({min(found):.2f} to {max(found):.2f})" if len(found) > 1 else ""
    return f"  {'met' if is_met else 'MISSED':12}  {goal.text}: {middle:.2f}{spread}"
