from __future__ import annotations

import math

from mega.adapters.pool.budget import CrashBudget


def test_it_opens_above_the_limit() -> None:
    budget = CrashBudget(2, 60.0)
    assert [False, False, True] == [budget.spend(now) for now in (0.0, 1.0, 2.0)]
    assert (3, 50.0) == (budget.recent, budget.retry_after(12.0))


def test_crashes_outside_the_window_are_forgotten() -> None:
    budget = CrashBudget(1, 60.0)
    assert [False, False, False] == [budget.spend(now) for now in (0.0, 61.0, 130.0)]
    assert 1 == budget.recent


def test_a_crash_while_open_does_not_prolong_it() -> None:
    budget = CrashBudget(0, 60.0)
    assert [True, False] == [budget.spend(0.0), budget.spend(30.0)]
    assert 1.0 == budget.retry_after(59.0)


def test_on_trial_the_next_crash_opens_it_again() -> None:
    budget = CrashBudget(3, 10.0)
    assert [budget.spend(0.0) for _ in range(4)][-1]
    assert 0 == budget.retry_after(10.0)
    assert budget.spend(50.0)
    assert 10.0 == budget.retry_after(50.0)


def test_on_trial_an_answer_closes_it() -> None:
    budget = CrashBudget(1, 10.0)
    budget.spend(0.0)
    budget.spend(0.0)
    budget.answered(5.0)  # of a healthy worker, while it is open
    assert 5.0 == budget.retry_after(5.0)
    budget.answered(11.0)
    assert [False, 0] == [budget.spend(12.0), budget.retry_after(12.0)]


def test_without_a_window_all_crashes_count_and_it_stays_open() -> None:
    budget = CrashBudget(1, None)
    assert [False, True] == [budget.spend(0.0), budget.spend(1e9)]
    assert budget.retry_after(1e12) == math.inf
