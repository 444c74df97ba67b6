"""What is said of a server that is away, and how often."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from mega.adapters.nats.complaints import Complaints, Repeats

HOUR = 3600


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let time go by without waiting for it."""
    now = [1000.0]
    monkeypatch.setattr("mega.adapters.nats.complaints.time.monotonic", lambda: now[0])

    def go_by(seconds: float) -> None:
        now[0] += seconds

    return go_by


def test_a_thing_that_goes_on_is_said_ever_more_seldom_with_the_number_of_times(
    pass_time: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    repeats = Repeats()
    for _ in range(HOUR):
        repeats.say("refused", "the server refused it")
        pass_time(1)

    assert 7 == len(caplog.messages)
    assert "the server refused it" == caplog.messages[0]
    assert "the server refused it (and 29 times before)" == caplog.messages[1]
    assert "the server refused it (and 59 times before)" == caplog.messages[2]


def test_what_is_new_is_said_at_once(caplog: pytest.LogCaptureFixture) -> None:
    repeats = Repeats()
    repeats.say("one", "one")
    repeats.say("two", "two")
    repeats.say("one", "one")
    repeats.forget()
    repeats.say("one", "one")

    assert ["one", "two", "one"] == caplog.messages


def test_many_different_things_are_not_kept_for_ever() -> None:
    repeats = Repeats()
    for number in range(5000):
        repeats.say(str(number), "text")

    assert len(repeats._said) <= 1000


def test_an_hour_without_a_server_is_a_handful_of_lines(
    pass_time: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    complaints = Complaints()
    complaints.went_down("nats://here:4222")
    for _ in range(HOUR):
        complaints.note("nats://here:4222", ConnectionRefusedError())
        complaints.still_away("nats://here:4222")
        complaints.failed_try("nats://here:4222", "refused the connection", 2.0)
        pass_time(1)
    complaints.came_up("nats://here:4222")

    assert len(caplog.messages) <= 17
    assert "nats://here:4222 is still away after 15 s; reconnecting" in caplog.messages
    assert "nats://here:4222 is back after 3600.0 s" == caplog.messages[-1]


def test_the_first_connect_tells_each_try(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints()
    for wait in (0.5, 1.0):
        complaints.failed_try("nats://here:4222", "refused the connection", wait)

    assert 2 == len(caplog.messages)


def test_a_quiet_one_says_nothing_that_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(is_quiet=True)
    complaints.went_down("nats://here:4222")
    complaints.note("nats://here:4222", ConnectionRefusedError())
    complaints.came_up("nats://here:4222")

    assert [] == [record for record in caplog.records if record.levelno > logging.DEBUG]
