"""What must hold of each job's history, whatever was done to the processes and connections.

1. **Nothing is lost.** A stored job has a run that was done, or a dead letter, and nothing is
   left in the streams. A job whose enqueue failed may be there or not; if it ran, the same holds.
2. **Never twice at the same time.** A run may begin while another one of its job goes on only
   when the lease of that one may have ended: within `ack_wait` before, its worker was frozen or
   cut off, or the server was frozen or away, for longer than a renewal can wait
   (`Fault.is_harmless`); or the server was killed during the run, as it then forgets the
   hand-overs and renewals of its last moment. A connection that is cut and may come back at
   once ends no lease. Nor may it when a third worker lost its lease and what it had sent came
   late: its next copy of an untracked job, or its record of a tracked one.
3. **Never handed out again without a reason.** A copy of a job is handed out again only after
   something was done to the worker that had it, or to the server, or while a handler blocked the
   worker's event loop, so that nobody took what came.
4. **Never run again without a reason.** A job has one run, one more for each that ended in an
   error or was given back, and one more for each that met a fault before its answer was safe.
5. **No more starts than allowed.** No run has a number above `retries` + 1; a run that met a
   fault costs a job one start more, and not its chain of retries once more.
6. **Each dead letter is explained.** `retries` comes only for jobs that fail, at the last run,
   with the error that was ordered; `crashed` only when no run is left, and rule 3 explains the
   hand-overs that it counts. A second one, or one for a job that was done, takes a run that met
   a fault, or a hand-over that never arrived.
7. **No worker ends by itself**, but for poison and a server that it can't reach at its start;
   and what is told to stop does so.
8. **No delayed job is early**, by the clock of the machine, which may be set meanwhile.
9. **One job of a unique key at a time.** None begins between the first start of another one of
   its key and the end of that one, by whatever it ends.
10. **A record tells the end.** When a tracked job is done or a dead letter, its record says so,
   unless it was begun once more after that, or what another worker had sent before came later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.history import ACK_WAIT, MOMENT, RECOVERY, History, Letter, Life, Placed, Run

__all__ = ["Finding", "check"]

EARLY = 0.05
FAILING = {
    "chaos.failing": "Planned",
    "chaos.flaky": "Planned",
    "chaos.parent": "BrokerUnavailable",
}
POISON = "chaos.poison"
KILLED = -9
UNREACHED = 3
#: SIGTERM to a process that has not come to listen to it yet.
UNHEARD, START = -15, 10.0


@dataclass(frozen=True)
class Finding:
    """A rule that was broken, and by whom: a job's id, a worker's name, or a stream's."""

    rule: str
    who: str
    text: str


def check(history: History) -> list[Finding]:
    """Return all that should not have happened."""
    found = [Finding("left", line.partition(":")[0], line) for line in history.left]
    written = {letter.job_id for letter in history.letters}
    for job_id in sorted({*history.placed, *history.runs, *written}):
        placed = history.placed.get(job_id)
        texts = broken(history, placed) if placed else [("lost", strange(history, job_id))]
        found += [Finding(rule, job_id, text) for rule, text in texts]
    ends = ((life, ended(history, life)) for life in history.lives.values())
    return found + [Finding("ended", life.worker, text) for life, text in ends if text]


def strange(history: History, job_id: str) -> str:
    if job_id in history.settled:
        return "it came back when all was over"
    return "nobody enqueued it"


def broken(history: History, placed: Placed) -> Iterator[tuple[str, str]]:
    """Yield the rules that a job's history breaks, with what it did."""
    for rule in RULES:
        for text in rule(history, placed):
            yield rule.__name__, text


def lost(history: History, placed: Placed) -> Iterator[str]:
    runs = history.runs_of(placed.job_id)
    is_there = placed.stored_at is not None or bool(runs)
    is_done = any(run.outcome == "done" for run in runs)
    if is_there and not is_done and not history.letters_of(placed.job_id):
        yield "it is neither done nor among the dead letters"


def twice(history: History, placed: Placed) -> Iterator[str]:
    runs = history.runs_of(placed.job_id)
    for index, second in enumerate(runs):
        for first in runs[:index]:
            if second.start < history.end_of(first) and not may_overlap(history, first, second):
                yield f"run {second.attempt} began while run {first.attempt} went on"


def may_overlap(history: History, first: Run, second: Run) -> bool:
    for fault in history.faults_of(history.slot_of(first)):
        since = first.start if fault.is_server_kill else second.start - ACK_WAIT - MOMENT
        if not fault.is_harmless and fault.touches(since, second.start, after=RECOVERY):
            return True
    placed = history.placed[first.job_id]
    earlier = [run for run in history.runs_of(first.job_id) if run.start < first.start]
    if placed.is_tracked:
        return bool(earlier) and history.came_late(first.job_id, first.start, second.start)
    return any(was_cut_off(history, run, second.start) for run in earlier)


def was_cut_off(history: History, run: Run, until: float) -> bool:
    faults = history.faults_of(history.slot_of(run))
    return any(not fault.is_harmless and fault.touches(run.start, until) for fault in faults)


def handed_again(history: History, placed: Placed) -> Iterator[str]:
    passings = history.passings.get(placed.job_id, ())
    hand_overs = [passing for passing in passings if passing.what == "hand-over"]
    hand_overs.sort(key=lambda each: (each.copy, each.number, each.at))
    for first, second in pairwise(hand_overs):
        # The proxy sees a hand-over only when it comes to read it.
        since, until = sorted((first.at, second.at))
        is_well = not (
            history.has_met(first.slot, since, until, after=MOMENT)
            or history.stood_still(first.slot, since - 2 * MOMENT, until)
        )
        # The thread of the leases may listen on the same inbox, so that one hand-over comes twice.
        is_echo = (first.slot, first.number) == (second.slot, second.number)
        if first.copy == second.copy and not is_echo and is_well:
            yield f"hand-over {second.number} of copy {second.copy} came, and {first.slot} was well"


def again(history: History, placed: Placed) -> Iterator[str]:
    runs = history.runs_of(placed.job_id)
    followed = sum(run.outcome in ("error", "cancelled") for run in runs)
    allowed = 1 + followed + history.trouble(placed.job_id)
    if len(runs) > allowed:
        yield f"{len(runs)} runs, and reasons for {allowed}"


def too_often(history: History, placed: Placed) -> Iterator[str]:
    runs = history.runs_of(placed.job_id)
    last = max((run.attempt for run in runs), default=0)
    if last > placed.limit:
        yield f"run {last} of at most {placed.limit}"
    given_back = sum(run.outcome == "cancelled" for run in runs)
    allowed = placed.limit + given_back + history.trouble(placed.job_id)
    if len(runs) > allowed:
        yield f"{len(runs)} starts of at most {allowed}"


def unexplained(history: History, placed: Placed) -> Iterator[str]:
    letters = history.letters_of(placed.job_id)
    for letter in letters:
        if text := EXPLAIN.get(letter.reason, by_surprise)(history, placed, letter):
            yield f"dead letter {letter.reason!r} at attempt {letter.attempts}: {text}"
    was_done = any(run.outcome == "done" for run in history.runs_of(placed.job_id))
    spare = len(letters) + was_done - 1
    if spare > 0 and not history.trouble(placed.job_id) and not missed(history, placed):
        yield f"{len(letters)} dead letters, {'done' if was_done else 'not done'}"


def missed(history: History, placed: Placed) -> bool:
    """Whether a hand-over never became a run: what has the next number may follow it."""
    runs = [run.attempt for run in history.runs_of(placed.job_id)]
    return any(number not in runs for number in range(1, max(runs, default=0)))


def by_retries(history: History, placed: Placed, letter: Letter) -> str:
    runs, error = history.runs_of(placed.job_id), f"{letter.error_type}: {letter.error}"
    # A letter that takes two tries, with a kill between, has the error as the record kept it.
    if letter.subject not in FAILING or FAILING[letter.subject] not in error:
        return f"it can't fail with {error}"
    if letter.attempts != placed.limit:
        return f"it may have {placed.limit} runs"
    if not any(run.attempt == letter.attempts and run.outcome == "error" for run in runs):
        return "that run did not fail"
    return ""


def by_crashes(history: History, placed: Placed, letter: Letter) -> str:
    return "" if letter.attempts >= placed.limit else f"it may have {placed.limit} runs"


def by_surprise(history: History, placed: Placed, letter: Letter) -> str:
    return f"{letter.error_type}: {letter.error}"


def early(history: History, placed: Placed) -> Iterator[str]:
    due_at = placed.tries[0] + placed.delay
    for run in history.runs_of(placed.job_id)[:1]:
        due_at -= history.stepped_forward(placed.tries[0], run.start)
        if placed.delay and run.start < due_at - EARLY:
            yield f"it began {due_at - run.start:.2f} s before it was due"


def unique(history: History, placed: Placed) -> Iterator[str]:
    runs, end = history.runs_of(placed.job_id), history.over_at(placed.job_id)
    for other in history.placed.values() if placed.order.key and runs else ():
        if other.order.key == placed.order.key and other is not placed:
            for run in history.runs_of(other.job_id)[:1]:
                if runs[0].start < run.start < end:
                    yield f"{other.job_id} of the same key began meanwhile, at {run.start:.3f}"


def record(history: History, placed: Placed) -> Iterator[str]:
    state, runs = history.states.get(placed.job_id), history.runs_of(placed.job_id)
    was_done = any(run.outcome == "done" for run in runs)
    ends = ["done"] * was_done + ["failed"] * bool(history.letters_of(placed.job_id))
    over_at = history.over_at(placed.job_id)
    was_late = any(run.start > over_at for run in runs)
    was_late = was_late or history.came_late(placed.job_id, over_at, math.inf)
    if state is not None and ends and state not in ends and not was_late:
        yield f"its record says {state!r}, and it is {' and '.join(ends)}"


def ended(history: History, life: Life) -> str:
    """Return what was wrong with the end of a worker, or an empty text."""
    if life.code is None or life.how == "kill" or may_end(history, life):
        return ""
    how = "was told to stop and" if life.how == "stop" else "was left alone and"
    return f"it {how} ended with {life.code}"


def may_end(history: History, life: Life) -> bool:
    if life.code == KILLED:
        return any(took_poison(history, life, job_id) for job_id in history.runs)
    if life.code == UNREACHED:
        faults = history.faults_of(life.slot)
        return any(fault.touches(life.begin, life.end, after=RECOVERY) for fault in faults)
    if life.how == "stop":
        return life.code == 0 or (life.code == UNHEARD and life.end - life.begin < START)
    return False


def took_poison(history: History, life: Life, job_id: str) -> bool:
    placed = history.placed.get(job_id)
    return (
        placed is not None
        and placed.subject == POISON
        and any(run.worker == life.worker and run.outcome is None for run in history.runs[job_id])
    )


Rule = Callable[[History, Placed], Iterator[str]]
RULES: tuple[Rule, ...] = (
    lost,
    twice,
    handed_again,
    again,
    too_often,
    unexplained,
    early,
    unique,
    record,
)
EXPLAIN: dict[str, Callable[[History, Placed, Letter], str]] = {
    "retries": by_retries,
    "crashed": by_crashes,
}
