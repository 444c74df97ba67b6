"""What happened in a chaos run, as plain records: orders, runs, dead letters, faults, lives.

All times are seconds of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from tests.chaos.worker import Order, app

__all__ = ["Fault", "History", "Letter", "Life", "Passing", "Placed", "Run", "Trouble"]

#: The lease that the workers of a chaos run have.
ACK_WAIT = 2.0
#: An outage this short can't end a lease: it is renewed each third of `ack_wait`.
HARMLESS = ACK_WAIT / 4
#: An answer is on its way, and the server writes down what it was told, in about this time.
MOMENT = 1.0
#: A try to connect (2 s), the wait before the next (2 s), and the next renewal.
RECOVERY = 5.0

Outcome: TypeAlias = Literal["done", "error", "cancelled"]
Trouble: TypeAlias = Literal[
    "kill", "stop", "freeze", "stall", "cut", "flap", "blackhole", "hold", "refuse"
]


@dataclass
class Placed:
    """An enqueue. `stored_at` is None while, or if, none of its tries was confirmed."""

    job_id: str
    subject: str
    order: Order = field(default_factory=Order)
    delay: float = 0.0
    tries: list[float] = field(default_factory=list)
    stored_at: float | None = None

    @property
    def limit(self) -> int:
        """How many runs it may have."""
        return app.registry.jobs[self.subject].options.retries + 1

    @property
    def is_tracked(self) -> bool:
        """Whether it has a record."""
        return app.registry.jobs[self.subject].options.track


@dataclass
class Run:
    """One start of a handler. Without an outcome its process ended or froze first."""

    job_id: str
    worker: str
    attempt: int
    start: float
    end: float = math.inf
    outcome: Outcome | None = None


@dataclass(frozen=True)
class Letter:
    """A dead letter. `attempts` is the number of the run that it ends; `place` names it."""

    place: str
    job_id: str
    subject: str
    reason: str
    error_type: str
    error: str
    attempts: int
    at: float


@dataclass
class Fault:
    """Something that the driver did to a worker's slot, the server or the producer."""

    what: Trouble
    target: str
    begin: float
    end: float = math.inf

    @property
    def is_harmless(self) -> bool:
        """Whether it is too short to end a lease."""
        is_short = self.end - self.begin < HARMLESS
        return self.what == "cut" or (is_short and not self.is_server_kill)

    @property
    def is_server_kill(self) -> bool:
        """Whether the server may have forgotten what it was told last."""
        return self.what == "kill" and self.target == "server"

    def touches(self, since: float, until: float, *, after: float = 0.0) -> bool:
        """Whether it, or the time `after` it, falls into that time."""
        return self.begin <= until and since <= self.end + after


@dataclass
class Life:
    """One process of a worker's slot. `how` is what the driver did to end it."""

    worker: str
    slot: str
    begin: float
    end: float = math.inf
    how: Literal["kill", "stop"] | None = None
    code: int | None = None


@dataclass(frozen=True)
class Passing:
    """A hand-over, or what a worker answered to one, as it passed the worker's proxy.

    `copy` is the stream sequence of the job's message, `number` counts its hand-overs.
    """

    at: float
    slot: str
    what: str
    copy: int
    number: int


@dataclass
class History:
    """All that is known of a round; `settled` are the jobs of earlier ones.

    `clock_steps` are when the machine's clock was found to be set, and by how many seconds.
    """

    placed: dict[str, Placed] = field(default_factory=dict)
    runs: dict[str, list[Run]] = field(default_factory=dict)
    letters: list[Letter] = field(default_factory=list)
    passings: dict[str, list[Passing]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    lives: dict[str, Life] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    settled: set[str] = field(default_factory=set)
    clock_steps: list[tuple[float, float]] = field(default_factory=list)
    known_letters: set[str] = field(default_factory=set)
    lines_read: int = 0

    def begin_round(self) -> None:
        """Forget what is over, except that it is: an hour's history would not be checked in one."""
        self.settled |= self.placed.keys() | self.runs.keys()
        self.known_letters |= {letter.place for letter in self.letters}
        for records in (self.placed, self.runs, self.passings, self.letters, self.states):
            records.clear()
        since = time.monotonic() - RECOVERY
        self.faults[:] = [fault for fault in self.faults if fault.end > since]
        for life in [life for life in self.lives.values() if life.end < since]:
            del self.lives[life.worker]

    def add_letters(self, letters: Iterable[Letter]) -> None:
        """Take the dead letters that were not there before."""
        self.letters[:] = [letter for letter in letters if letter.place not in self.known_letters]

    def read_runs(self, path: Path) -> None:
        """Take what the workers wrote since the last time."""
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines[self.lines_read :]:
            _add(self, line.split())
        self.lines_read = len(lines)

    def stepped_forward(self, since: float, until: float) -> float:
        """Return by how many seconds the machine's clock was set forward then."""
        return sum(max(0.0, step) for at, step in self.clock_steps if since <= at <= until)

    def going_on(self) -> list[str]:
        """Return a line for each run that still goes on."""
        return [
            f"{run.worker}: run {run.attempt} of {run.job_id} goes on"
            for runs in self.runs.values()
            for run in runs
            if run.outcome is None and self.lives[run.worker].code is None
        ]

    def faults_of(self, slot: str) -> Iterator[Fault]:
        """Yield what was done to that slot, to the server, or to all."""
        return (fault for fault in self.faults if fault.target in (slot, "server", "all"))

    def has_met(self, slot: str, since: float, until: float, *, after: float = 0.0) -> bool:
        """Whether something was done to the slot or the server then, or its process ended.

        What was done up to `after` seconds before counts, too.
        """
        ends = (life.end for life in self.lives.values() if life.slot == slot)
        faults = (fault.touches(since, until, after=after) for fault in self.faults_of(slot))
        return any(since <= end <= until for end in ends) or any(faults)

    def over_at(self, job_id: str) -> float:
        """Return when the job was first done or a dead letter."""
        ends = [run.end for run in self.runs_of(job_id) if run.outcome == "done"]
        return min([*ends, *(letter.at for letter in self.letters_of(job_id))], default=math.inf)

    def slot_of(self, run: Run) -> str:
        """Return the slot whose process made the run."""
        return self.lives[run.worker].slot

    def stood_still(self, slot: str, since: float, until: float) -> bool:
        """Whether a handler blocked the event loop of the slot's process then."""
        return any(True for _ in self.standing_still(slot, since, until))

    def standing_still(self, slot: str, since: float, until: float) -> Iterator[Run]:
        """Yield the runs that blocked the event loop of the slot's process then."""
        for job_id, runs in self.runs.items():
            if job_id in self.placed and self.placed[job_id].subject == "chaos.blocking":
                for run in runs:
                    is_then = run.start <= until and since <= self.end_of(run)
                    if is_then and self.slot_of(run) == slot:
                        yield run

    def trouble(self, job_id: str) -> int:
        """Count what may cost one start more: runs and enqueues that met a fault.

        That is a run whose answer was not safe with the server yet, and an enqueue that was
        tried again after the server was killed, which then forgets the ids of jobs that ended.
        """
        met = sum(
            self.has_met(
                self.slot_of(run), self.got_at(run), self.sent_at(run) + MOMENT, after=MOMENT
            )
            for run in self.runs_of(job_id)
        )
        tries = sorted(self.tries_of(job_id))
        kills = [fault.begin for fault in self.faults if fault.is_server_kill]
        return met + sum(any(tries[0] <= kill <= later for kill in kills) for later in tries[1:])

    def tries_of(self, job_id: str) -> Iterator[float]:
        """Yield when it was enqueued, or may have been: a child is by each run of its parent."""
        if job_id in self.placed:
            placed = self.placed[job_id]
            yield from placed.tries
            if placed.stored_at is not None:  # one try sends again until there is an answer
                yield placed.stored_at
        parent, _, is_child = job_id.rpartition(".")
        if is_child == "child":
            yield from (run.start for run in self.runs.get(parent, ()))

    def got_at(self, run: Run) -> float:
        """Return when the run's process was handed the job; it may begin it much later."""
        passings = self.passings.get(run.job_id, ())
        mine = (each for each in passings if each.slot == self.slot_of(run))
        before = (each.at for each in mine if each.what == "hand-over" and each.at <= run.start)
        return max(before, default=run.start)

    def sent_at(self, run: Run) -> float:
        """Return when the run's answer has left its process, whose event loop may stand still."""
        end = self.end_of(run)
        still = self.standing_still(self.slot_of(run), end - MOMENT, end)
        return max([end, *(self.end_of(blocking) for blocking in still)])

    def came_late(self, job_id: str, since: float, until: float) -> bool:
        """Whether what a worker sent of the job may have come then, and not when it was sent.

        It got the job, and then it was frozen, or what it sent was held up.
        """
        slots = {passing.slot for passing in self.passings.get(job_id, ())}
        slots |= {self.slot_of(run) for run in self.runs.get(job_id, ())}
        return any(
            fault.what in ("freeze", "hold", "stall") and since <= fault.end + MOMENT
            for slot in slots
            for fault in self.faults_of(slot)
            if fault.target != "server" and fault.begin <= until
        )

    def runs_of(self, job_id: str) -> list[Run]:
        """Return the job's runs in the order of their starts."""
        return sorted(self.runs.get(job_id, []), key=lambda run: run.start)

    def letters_of(self, job_id: str) -> list[Letter]:
        """Return the job's dead letters."""
        return [letter for letter in self.letters if letter.job_id == job_id]

    def end_of(self, run: Run) -> float:
        """Return when a run was over at the latest: its process may have ended before it."""
        return min(run.end, self.lives[run.worker].end)


def _add(history: History, fields: list[str]) -> None:
    at, worker, what, job_id, attempt, *key = fields
    runs = history.runs.setdefault(job_id, [])
    if what == "start":
        runs.append(Run(job_id, worker, int(attempt), float(at)))
        if key:
            # It may be there although its enqueue failed: then nobody else knows its id.
            order = Order(key=key[0])
            placed = Placed(job_id, "chaos.unique", order, tries=[float(at)])
            history.placed.setdefault(job_id, placed)
    elif what == "stored":
        new = Placed(job_id, "chaos.child", tries=[float(at)], stored_at=float(at))
        history.placed.setdefault(job_id, new)
    else:
        run = _open_run(runs, worker, int(attempt))
        if run is None:  # it began in an earlier round, which did not settle
            run = Run(job_id, worker, int(attempt), float(at))
            runs.append(run)
        run.end, run.outcome = float(at), what  # type: ignore[assignment]  # the file has these


def _open_run(runs: Iterable[Run], worker: str, attempt: int) -> Run | None:
    for run in runs:
        if run.worker == worker and run.attempt == attempt and run.outcome is None:
            return run
    return None
