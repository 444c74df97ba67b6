"""A chaos run in words: how much of what there was, and what happened in order of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import TypeAlias

from tests.chaos.check import Finding
from tests.chaos.history import History

__all__ = ["counts", "describe", "digest", "journal"]

BEFORE, AFTER = 4.0, 4.0
IN_FULL = 12

Event: TypeAlias = tuple[float, str]


def counts(history: History) -> str:
    """Return one line of figures."""
    faults = Counter(f"{fault.what} {fault.target.partition('-')[0]}" for fault in history.faults)
    reasons = Counter(letter.reason for letter in history.letters)
    runs = sum(map(len, history.runs.values()))
    stored = sum(placed.stored_at is not None for placed in history.placed.values())
    return (
        f"{len(history.placed)} jobs, {stored} stored, {runs} runs, "
        f"dead letters {dict(sorted(reasons.items()))}, faults {dict(sorted(faults.items()))}"
    )


def describe(history: History, finding: Finding) -> str:
    """Return the finding with what happened to its job, or its worker, and around it."""
    title = f"{finding.rule}: {finding.who}: {finding.text}"
    life = history.lives.get(finding.who)
    own = [(life.begin, ""), (life.end, "")] if life else without_renewals(history, finding.who)
    if not own:
        return title
    begin, end = min(own)[0], max(own)[0]
    around = [event for event in of_all(history) if begin - BEFORE < event[0] < end + AFTER]
    return "\n".join([title, *table([*own, *around], begin)])


def without_renewals(history: History, job_id: str) -> list[Event]:
    """Return the events of a job but for those that come by the dozen; the journal has them."""
    return [event for event in of_job(history, job_id) if "renewal" not in event[1]]


def digest(reports: list[str]) -> str:
    """Return the first reports in full, and the first line of the others."""
    rest = [report.partition("\n")[0] for report in reports[IN_FULL:]]
    return "\n\n".join([*reports[:IN_FULL], "\n".join(rest)]).rstrip()


def journal(history: History) -> str:
    """Return all that happened, one line for each event."""
    begin = min(life.begin for life in history.lives.values())
    job_ids = {*history.placed, *history.runs}
    events = [event for job_id in job_ids for event in of_job(history, job_id, f"{job_id} ")]
    return "\n".join(table([*events, *of_all(history)], begin))


def table(events: Iterable[Event], begin: float) -> list[str]:
    return [f"{at - begin:+9.3f}  {text}" for at, text in sorted(events) if text and isfinite(at)]


def of_job(history: History, job_id: str, prefix: str = "") -> Iterator[Event]:
    """Yield what happened to one job."""
    for at, text in _of_job(history, job_id):
        yield at, f"{prefix}{text}"


def _of_job(history: History, job_id: str) -> Iterator[Event]:
    placed = history.placed.get(job_id)
    if placed is not None:
        what = f"enqueue, delay {placed.delay:.1f} s, {placed.order}"
        yield from ((at, what) for at in placed.tries)
        if placed.stored_at is not None:
            yield placed.stored_at, "stored"
    for run in history.runs_of(job_id):
        yield run.start, f"run {run.attempt} starts on {run.worker}"
        if run.outcome is not None:
            yield run.end, f"run {run.attempt} on {run.worker}: {run.outcome}"
    for passing in history.passings.get(job_id, ()):
        where = f"{passing.number} of copy {passing.copy}, {passing.slot}"
        yield passing.at, f"  {passing.what} {where}"
    for letter in history.letters_of(job_id):
        yield letter.at, f"dead letter {letter.reason}, attempts {letter.attempts}: {letter.error}"


def of_all(history: History) -> Iterator[Event]:
    """Yield what was done to the processes and connections, and what became of them."""
    for fault in history.faults:
        yield fault.begin, f"        {fault.what} {fault.target}"
        yield fault.end, f"        end of {fault.what} {fault.target}"
    for life in history.lives.values():
        yield life.begin, f"        {life.worker} starts"
        yield life.end, f"        {life.worker} ended: {life.how}, code {life.code}"
