"""The check of a chaos run finds what it is there to find, and nothing in what is right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.check import check
from tests.chaos.history import Fault, History, Letter, Life, Passing, Placed, Run
from tests.chaos.worker import Order

JOB = "1-flaky"
FAR = 100.0


def history(
    *runs: Run,
    faults: Iterable[Fault] = (),
    letters: Iterable[Letter] = (),
    passings: Iterable[Passing] = (),
    **placed: Any,
) -> History:
    job = Placed(JOB, "chaos.flaky", tries=[0.0], stored_at=0.1)
    lives = [Life(f"{slot}.1", slot, -1.0) for slot in ("worker-1", "worker-2")]
    return History(
        placed={JOB: replace(job, **placed)},
        runs={JOB: list(runs)},
        letters=list(letters),
        faults=list(faults),
        passings={JOB: list(passings)},
        lives={life.worker: life for life in lives},
    )


def run(attempt: int, start: float, end: float, outcome: Any = "done", slot: int = 1) -> Run:
    return Run(JOB, f"worker-{slot}.1", attempt, start, end, outcome)


def letter(reason: str, attempts: int, error_type: str = "tests.Planned") -> Letter:
    return Letter(
        f"{reason} {attempts}", JOB, "chaos.flaky", reason, error_type, "some text", attempts, FAR
    )


def hand_over(number: int, at: float, slot: int = 1) -> Passing:
    return Passing(at, f"worker-{slot}", "hand-over", 7, number)


def rules(broken: History) -> list[str]:
    return [finding.rule for finding in check(broken)]


def test_a_job_that_fails_and_then_is_done_breaks_no_rule() -> None:
    passings = [hand_over(1, 1)]
    fine = history(run(1, 1, 2, "error"), run(2, 3, 4), passings=passings)
    assert [] == check(fine)


def test_a_stored_job_that_never_ran_is_lost() -> None:
    assert ["lost"] == rules(history())


def test_a_job_whose_enqueue_failed_need_not_run_but_must_end_if_it_did() -> None:
    assert [] == check(history(stored_at=None))
    assert ["lost"] == rules(history(run(1, 1, 2, "error"), stored_at=None))


def test_a_job_that_nobody_enqueued_is_found() -> None:
    strange = history(run(1, 1, 2))
    strange.placed.clear()
    assert ["lost"] == rules(strange)


def test_jobs_that_are_left_in_the_streams_are_found() -> None:
    broken = history(run(1, 1, 2))
    broken.left = ["MEGA_JOBS_chaos_flaky: 1 left"]
    assert ["left"] == rules(broken)


OVERLAP = (run(1, 1, 9), run(2, 5, 8, slot=2))


def test_two_runs_at_the_same_time_are_found() -> None:
    assert ["twice", "again"] == rules(history(*OVERLAP))


@pytest.mark.parametrize(
    ("fault", "is_allowed"),
    [
        (Fault("freeze", "worker-1", 2, 5), True),
        (Fault("freeze", "worker-2", 2, 5), False),
        (Fault("freeze", "worker-1", 4, 4.2), False),
        (Fault("blackhole", "worker-1", 2, 4), True),
        (Fault("cut", "worker-1", 3, 3), False),
        (Fault("kill", "server", 1.5, 1.6), True),
        (Fault("kill", "server", 6, 7), False),
        (Fault("stall", "all", 2, 4), True),
        (Fault("refuse", "producer", 2, 4), False),
    ],
)
def test_two_runs_at_the_same_time_are_allowed_when_the_lease_may_have_ended(
    fault: Fault, is_allowed: bool
) -> None:
    assert is_allowed == ("twice" not in rules(history(*OVERLAP, faults=[fault])))


@pytest.mark.parametrize(
    ("fault", "is_allowed"),
    [
        (Fault("hold", "worker-1", 2, 5), True),
        (Fault("blackhole", "worker-1", 2, 5), False),
        (Fault("hold", "worker-3", 2, 5), False),
    ],
)
def test_a_third_worker_may_have_sent_its_record_late(fault: Fault, is_allowed: bool) -> None:
    """And so let a copy begin while another worker had begun the one before it again."""
    late = history(run(1, 1, 2, "error"), run(2, 4, 9, slot=2), run(2, 5, 8, slot=2))
    late.faults.append(fault)
    assert is_allowed == ("twice" not in rules(late))


def test_a_run_whose_worker_was_killed_is_over() -> None:
    killed = history(run(1, 1, FAR, None), run(2, 5, 6, slot=2))
    killed.lives["worker-1.1"] = Life("worker-1.1", "worker-1", 0, 2, "kill", -9)
    assert [] == check(killed)


def test_a_copy_that_is_handed_out_again_takes_a_fault_of_who_had_it() -> None:
    passings = [hand_over(1, 1), hand_over(2, 3, slot=2)]
    done = run(1, 3, 4, slot=2)
    assert ["handed_again"] == rules(history(done, passings=passings))
    cut = [Fault("cut", "worker-1", 1.5, 1.6)]
    assert [] == check(history(done, passings=passings, faults=cut))


def test_one_hand_over_may_be_heard_twice_by_its_worker_alone() -> None:
    done = run(1, 1, 2)
    assert [] == check(history(done, passings=[hand_over(1, 1), hand_over(1, 1.001)]))
    to_two = [hand_over(1, 1), hand_over(1, 1.001, slot=2)]
    assert ["handed_again"] == rules(history(done, passings=to_two))


def test_a_done_job_runs_again_only_after_a_fault_that_may_have_lost_its_ack() -> None:
    runs = [run(1, 1, 2), run(2, 5, 6, slot=2)]
    assert ["again"] == rules(history(*runs))
    assert [] == check(history(*runs, faults=[Fault("cut", "worker-1", 2.1, 2.2)]))
    assert ["again"] == rules(history(*runs, faults=[Fault("cut", "worker-1", 30, 31)]))


def test_a_child_is_enqueued_by_each_run_of_its_parent() -> None:
    """The server forgets the id of a job that is done when it is killed."""
    child = f"{JOB}.child"
    runs = [replace(run(1, 1, 2), job_id=child), replace(run(1, 7, 8, slot=2), job_id=child)]
    twice = history(run(1, 0.5, 1.5), run(2, 6, 9, slot=2))
    twice.placed[child] = Placed(child, "chaos.child", tries=[6.5], stored_at=6.5)
    twice.runs[child] = runs
    assert "again" in rules(twice)
    twice.faults.append(Fault("kill", "server", 4, 4.5))
    assert child not in [finding.who for finding in check(twice)]


def test_an_answer_that_waits_for_a_blocked_event_loop_may_get_lost() -> None:
    runs = [run(1, 1, 2), run(2, 5, 6, slot=2)]
    late = history(*runs, faults=[Fault("cut", "worker-1", 3.8, 3.9)])
    assert ["again"] == rules(late)
    late.placed["2"] = Placed("2", "chaos.blocking", tries=[0.0])
    late.runs["2"] = [Run("2", "worker-1.1", 1, 1.5, 3.5, "done")]
    assert [] == check(late)


def test_a_hand_over_may_be_forgotten_before_its_run_begins() -> None:
    runs = [run(1, 4, 5), run(2, 8, 9, slot=2)]
    faults = [Fault("kill", "server", 2, 2.5)]
    assert "again" in rules(history(*runs, faults=faults))
    passings = [hand_over(1, 1), hand_over(2, 8, slot=2)]
    assert [] == check(history(*runs, faults=faults, passings=passings))


def test_an_enqueue_is_sent_again_until_it_is_answered() -> None:
    runs = [run(1, 0.1, 0.2), run(1, 9, 10, slot=2)]
    faults = [Fault("kill", "server", 4, 4.5)]
    assert ["again"] == rules(history(*runs, faults=faults))
    assert [] == check(history(*runs, faults=faults, stored_at=6.0))


def test_a_run_above_the_last_attempt_is_found() -> None:
    assert ["too_often"] == rules(history(run(8, 1, 2)))


def test_a_fault_that_forks_the_chain_of_retries_is_found() -> None:
    chain = [run(attempt, attempt, attempt + 0.5, "error") for attempt in range(1, 8)]
    fork = [run(attempt, attempt + 10, attempt + 10.5, "error") for attempt in range(2, 8)]
    cut = [Fault("cut", "worker-1", 1.6, 1.6)]
    forked = history(*chain, *fork, letters=[letter("retries", 7)], faults=cut)
    assert "too_often" in rules(forked)


def test_a_dead_letter_by_retries_takes_the_last_run_and_its_error() -> None:
    failed = [run(attempt, attempt, attempt + 0.5, "error") for attempt in range(1, 8)]
    assert [] == check(history(*failed, letters=[letter("retries", 7)]))
    assert ["unexplained"] == rules(history(*failed[:3], letters=[letter("retries", 3)]))
    other = letter("retries", 7, "builtins.ValueError")
    assert ["unexplained"] == rules(history(*failed, letters=[other]))


def test_a_dead_letter_by_crashes_comes_only_when_no_run_is_left() -> None:
    assert [] == check(history(letters=[letter("crashed", 7)]))
    assert ["unexplained"] == rules(history(letters=[letter("crashed", 6)]))


def test_any_other_reason_of_a_dead_letter_is_found() -> None:
    assert ["unexplained"] == rules(history(letters=[letter("malformed", 1)]))


def test_a_job_that_was_done_is_a_dead_letter_only_after_a_fault() -> None:
    both = history(run(1, 1, 2), letters=[letter("crashed", 8)])
    assert ["unexplained"] == rules(both)
    both.faults.append(Fault("cut", "worker-1", 2, 2))
    assert [] == check(both)


def test_a_delayed_job_that_runs_early_is_found() -> None:
    assert ["early"] == rules(history(run(1, 1, 2), delay=1.5))
    assert [] == check(history(run(1, 1.6, 2), delay=1.5))
    set_forward = history(run(1, 1, 2), delay=1.5)
    set_forward.clock_steps = [(0.5, 1.0)]
    assert [] == check(set_forward)
    set_forward.clock_steps = [(0.5, 0.1), (0.6, -1.0), (3.0, 1.0)]
    assert ["early"] == rules(set_forward)


@pytest.mark.parametrize(
    ("life", "is_found"),
    [
        (Life("worker-1.1", "worker-1", 0, 60, "kill", -9), False),
        (Life("worker-1.1", "worker-1", 0, 60, "stop", 0), False),
        (Life("worker-1.1", "worker-1", 0, 60, "stop", -9), True),
        (Life("worker-1.1", "worker-1", 0, 1, "stop", -15), False),
        (Life("worker-1.1", "worker-1", 0, 60, "stop", -15), True),
        (Life("worker-1.1", "worker-1", 0, 60, None, 1), True),
        (Life("worker-1.1", "worker-1", 0, 60, None, 3), True),
    ],
)
def test_a_worker_ends_only_as_it_was_told(life: Life, is_found: bool) -> None:
    lived = history(run(1, 1, 2, slot=2))
    lived.lives[life.worker] = life
    assert is_found == ("ended" in rules(lived))


def test_two_jobs_of_one_key_at_a_time_are_found() -> None:
    one = history(run(1, 1, 5), order=Order(key="a"))
    other = Placed("2-flaky", "chaos.flaky", Order(key="a"), tries=[0.0], stored_at=0.1)
    one.placed[other.job_id] = other
    one.runs[other.job_id] = [Run(other.job_id, "worker-2.1", 1, 3, 4, "done")]
    assert ["unique"] == rules(one)
    other.order.key = "b"
    assert [] == check(one)


def test_a_record_that_does_not_tell_the_end_is_found() -> None:
    done = history(run(1, 1, 5))
    done.states[JOB] = "running"
    assert ["record"] == rules(done)
    done.faults.append(Fault("hold", "worker-2", 2, 6))
    assert ["record"] == rules(done)
    done.passings[JOB] = [hand_over(1, 1, slot=2)]
    assert [] == check(done)
    done.states[JOB] = "done"
    assert [] == check(done)


def test_a_job_that_comes_back_in_a_later_round_is_found() -> None:
    late = history(run(1, 1, 5))
    late.begin_round()
    assert [] == check(late)
    late.add_letters([letter("retries", 7)])
    assert ["lost"] == rules(late)
