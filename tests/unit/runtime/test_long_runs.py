"""Runs that go on for long are told of after a minute, and whenever that doubles."""

from __future__ import annotations

import pytest

from mega.context import RunContext
from mega.runtime.long_runs import LongRuns
from mega.testing import job_context


class Watch:
    """Long runs, looked at every second by a clock of their own."""

    def __init__(self, caplog: pytest.LogCaptureFixture, **options: float) -> None:
        self.in_hand: dict[RunContext, float] = {}
        self.now = 1000.0
        self._runs = LongRuns(self.in_hand, now=lambda: self.now, **options)
        self._caplog = caplog

    def pass_by(self, seconds: int) -> list[str]:
        """Let the seconds pass and return what was logged meanwhile."""
        self._caplog.clear()
        for _ in range(seconds):
            self.now += 1
            self._runs.look()
        return [record.message for record in self._caplog.records]


def test_a_run_is_told_of_at_doubling_times(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(caplog)
    watch.in_hand[job_context(subject="crawl", id="7")] = watch.now
    assert [] == watch.pass_by(59)
    assert ["crawl 7 attempt 1 has been running for 60 s"] == watch.pass_by(1)
    assert [
        f"crawl 7 attempt 1 has been running for {seconds} s" for seconds in (120, 240, 480)
    ] == watch.pass_by(600)


def test_a_run_that_has_ended_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(caplog)
    run = job_context(subject="crawl", id="7")
    watch.in_hand[run] = watch.now
    watch.pass_by(100)
    del watch.in_hand[run]
    assert [] == watch.pass_by(600)
    assert {} == watch._runs._told_next


def test_each_run_has_its_own_time(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(caplog, after=10)
    watch.in_hand[job_context(id="1")] = watch.now
    watch.pass_by(5)
    watch.in_hand[job_context(id="2")] = watch.now
    lines = watch.pass_by(20)
    assert [
        "test 1 attempt 1 has been running for 10 s",
        "test 2 attempt 1 has been running for 10 s",
        "test 1 attempt 1 has been running for 20 s",
        "test 2 attempt 1 has been running for 20 s",
    ] == lines


def test_a_late_look_tells_of_a_run_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(caplog, after=10)
    watch.in_hand[job_context(id="1")] = watch.now
    watch.now += 100
    assert ["test 1 attempt 1 has been running for 101 s"] == watch.pass_by(1)
    assert ["test 1 attempt 1 has been running for 160 s"] == watch.pass_by(100)
