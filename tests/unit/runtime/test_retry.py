"""What becomes of a run that ended in an error: the next run, or none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from mega.control import Reject, Retry, Snooze
from mega.options import Backoff, JobOptions
from mega.runtime.retry import LONGEST_DELAY, Fate, NextRun, fate_of, max_attempts
from mega.wire.message import Message

STEADY = Backoff(initial=10, max=60, jitter=False)
ERROR = ValueError("no")


class Panic(BaseException):
    """What extensions written in Rust raise."""


def job(**overrides: object) -> Message:
    return Message(id="1", subject="email.send", body=b"null", **overrides)  # type: ignore[arg-type]


def fate(error: BaseException, attempt: int = 1, **options: object) -> Fate:
    declared = JobOptions(**{"backoff": STEADY, **options})  # type: ignore[arg-type]
    return fate_of(error, attempt, job(), declared)


@pytest.mark.parametrize(
    ("declared", "enqueued", "runs"), [(3, None, 4), (0, None, 1), (3, 0, 1), (0, 5, 6)]
)
def test_the_enqueue_says_how_often_or_else_the_declaration(
    declared: int, enqueued: int | None, runs: int
) -> None:
    assert runs == max_attempts(job(retries=enqueued), JobOptions(retries=declared))


def test_a_failed_run_is_followed_by_the_next_after_the_backoff() -> None:
    following = [fate(ERROR, attempt, retries=3) for attempt in (1, 2, 3, 4)]
    assert [NextRun(2, 10), NextRun(3, 20), NextRun(4, 40), "retries"] == following


def test_the_last_run_is_followed_by_none_also_when_the_number_is_beyond_the_limit() -> None:
    assert "retries" == fate(ERROR, 7, retries=3)


def test_the_backoff_of_the_enqueue_goes_before_that_of_the_declaration() -> None:
    message = job(backoff=Backoff(initial=100, max=100, jitter=False))
    assert NextRun(2, 100) == fate_of(ERROR, 1, message, JobOptions(backoff=STEADY))


@pytest.mark.parametrize("attempt", [16, 44, 47, 1075, 10_000])
@pytest.mark.parametrize(
    ("backoff", "delay"),
    [
        (STEADY, 60),
        (Backoff(initial=1000, max=30, jitter=False), 30),
        (Backoff(initial=0, max=30, factor=5, jitter=False), 0),
        (Backoff(initial=5, max=1e300, factor=5, jitter=False), LONGEST_DELAY),
    ],
)
def test_a_very_late_attempt_waits_the_longest_time(
    attempt: int, backoff: Backoff, delay: float
) -> None:
    assert NextRun(attempt + 1, delay) == fate(ERROR, attempt, retries=20_000, backoff=backoff)


@pytest.mark.parametrize(("drawn", "delay"), [(0.0, 5.0), (0.5, 7.5), (1.0, 10.0)])
def test_jitter_is_between_half_and_the_whole_and_can_be_drawn(drawn: float, delay: float) -> None:
    assert delay == Backoff(initial=10).delay(1, draw=lambda: drawn)


def test_the_longest_waits_of_a_declaration_can_be_told() -> None:
    assert (1, 2, 4) == JobOptions().retry_delays
    assert () == JobOptions(retries=0).retry_delays


def test_retry_says_how_long_to_wait() -> None:
    assert NextRun(2, 7) == fate(Retry("busy", after=7))
    assert NextRun(2, 0) == fate(Retry("busy", after=0))
    assert NextRun(3, 90) == fate(Retry("busy", after=timedelta(seconds=90)), 2)
    assert NextRun(2, 10) == fate(Retry("busy"))
    assert NextRun(2, LONGEST_DELAY) == fate(Retry("busy", after=1e300))


def test_retry_is_a_failed_attempt_so_the_last_one_is_the_end() -> None:
    assert "retries" == fate(Retry("busy", after=7), 4, retries=3)


def test_reject_is_the_end_at_once() -> None:
    assert "rejected" == fate(Reject("no such user"), 1, retries=3)


def test_a_snooze_keeps_the_number_also_of_the_last_attempt() -> None:
    assert NextRun(1, 60) == fate(Snooze(60))
    assert NextRun(1, 60) == fate(Snooze(60), 1, retries=0)
    assert NextRun(9, LONGEST_DELAY) == fate(Snooze(1e300), 9)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(), NextRun(2, 10)),
        (ConnectionError(), NextRun(2, 10)),
        (ValueError(), "rejected"),
        (ExceptionGroup("two", [OSError(), OSError()]), "rejected"),
    ],
)
def test_an_error_that_retry_on_leaves_out_is_the_end(error: Exception, expected: Fate) -> None:
    assert expected == fate(error, retry_on=lambda error: isinstance(error, OSError))


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), Panic(), GeneratorExit()])
def test_retry_on_is_not_asked_of_what_is_no_exception(error: BaseException) -> None:
    assert NextRun(2, 10) == fate(error, retry_on=lambda error: False)


@pytest.mark.parametrize(
    ("control", "expected"),
    [(Retry("busy"), NextRun(2, 10)), (Snooze(5), NextRun(1, 5)), (Reject("no"), "rejected")],
)
def test_retry_on_is_not_asked_of_what_steers_the_job(control: Exception, expected: Fate) -> None:
    assert expected == fate(control, retry_on=lambda error: expected == "rejected")


def test_the_limit_holds_whatever_retry_on_says() -> None:
    assert "retries" == fate(ERROR, 4, retries=3, retry_on=lambda error: True)


def raising(error: BaseException) -> Callable[[Exception], bool]:
    def retry_on(asked: Exception) -> bool:
        raise error

    return retry_on


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), SystemExit(1)])
def test_a_retry_on_that_raises_is_logged_and_the_job_is_retried(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    assert NextRun(2, 10) == fate(ERROR, retry_on=raising(error))
    assert "retry_on raised for ValueError: no; the job is retried" in caplog.text
    assert "retries" == fate(ERROR, 4, retry_on=raising(error))
