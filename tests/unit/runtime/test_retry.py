"""What becomes of a run that ended in an error: the next run, or none."""

from __future__ import annotations

import pytest

from mega.options import Backoff, JobOptions
from mega.runtime.retry import NextRun, max_attempts, next_run_after
from mega.wire.message import Message

STEADY = Backoff(initial=10, max=60, jitter=False)


def job(**overrides: object) -> Message:
    return Message(id="1", subject="email.send", body=b"null", **overrides)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("declared", "enqueued", "runs"), [(3, None, 4), (0, None, 1), (3, 0, 1), (0, 5, 6)]
)
def test_the_enqueue_says_how_often_or_else_the_declaration(
    declared: int, enqueued: int | None, runs: int
) -> None:
    assert runs == max_attempts(job(retries=enqueued), JobOptions(retries=declared))


def test_a_failed_run_is_followed_by_the_next_after_the_backoff() -> None:
    options = JobOptions(retries=3, backoff=STEADY)
    following = [next_run_after(attempt, job(), options) for attempt in (1, 2, 3, 4)]
    assert [NextRun(2, 10), NextRun(3, 20), NextRun(4, 40), None] == following


def test_the_last_run_is_followed_by_none_also_when_the_number_is_beyond_the_limit() -> None:
    assert next_run_after(7, job(), JobOptions(retries=3)) is None


def test_the_backoff_of_the_enqueue_goes_before_that_of_the_declaration() -> None:
    message = job(backoff=Backoff(initial=100, max=100, jitter=False))
    assert NextRun(2, 100) == next_run_after(1, message, JobOptions(backoff=STEADY))


def test_a_very_late_attempt_waits_the_longest_time() -> None:
    options = JobOptions(retries=20_000, backoff=STEADY)
    assert NextRun(10_001, 60) == next_run_after(10_000, job(), options)
