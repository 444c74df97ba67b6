"""Events: frozen records, each with the name that the seed systems gave it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import mega.events
from mega.errors import UnknownEvent
from mega.events import EVENTS, Event, JobDone, JobEvent, event_class

KINDS = {
    "job.dispatch": "JobEnqueued",
    "job.start": "JobStarted",
    "job.done": "JobDone",
    "job.retry": "JobRetried",
    "job.fail": "JobFailed",
    "job.dlq": "JobDeadLettered",
    "job.snooze": "JobSnoozed",
    "thread.left": "ThreadLeft",
    "schedule.run": "ScheduleRun",
    "schedule.skip": "ScheduleSkipped",
    "schedule.done": "ScheduleDone",
    "schedule.fail": "ScheduleFailed",
    "schedule.misfire": "ScheduleMisfired",
    "lock.lost": "LockLost",
    "lock.down": "LockStoreDown",
    "cpu.dispatch": "CpuDispatched",
    "cpu.done": "CpuDone",
    "cpu.fail": "CpuFailed",
    "cpu.crash": "CpuCrashed",
    "cpu.stopped": "CpuStopped",
}


def test_each_event_has_the_name_that_the_seed_gave_it() -> None:
    assert KINDS == {kind: event.__name__ for kind, event in EVENTS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_is_found_by_its_name_and_by_its_class(kind: str) -> None:
    event = getattr(mega.events, KINDS[kind])
    assert event is event_class(kind)
    assert event is event_class(event)


@pytest.mark.parametrize("base", [Event, JobEvent])
def test_a_base_class_can_be_asked_for(base: type[Event]) -> None:
    assert base is event_class(base)


@pytest.mark.parametrize("name", ["job.dead", "JobDone", "", "JOB.DONE", None, 5, int, JobDone])
def test_anything_else_is_a_value_error(name: Any) -> None:
    wrong = JobDone(job_id="7", subject="a", seconds=1) if name is JobDone else name
    with pytest.raises(UnknownEvent, match="there is no event"):
        event_class(wrong)
    assert issubclass(UnknownEvent, ValueError)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("job.failed", 'Did you mean "job.fail"?'),
        ("schedule.skipped", 'Did you mean "schedule.skip"?'),
        ("cpu.crashed", 'Did you mean "cpu.crash"?'),
    ],
)
def test_what_was_meant_is_told(word: str, hint: str) -> None:
    with pytest.raises(UnknownEvent) as refused:
        event_class(word)
    assert hint == refused.value.hint


def test_all_names_are_told_when_none_is_near() -> None:
    with pytest.raises(UnknownEvent) as refused:
        event_class("zzz")
    assert all(kind in refused.value.hint for kind in KINDS)


def test_an_event_can_not_be_changed() -> None:
    event: Any = JobDone(job_id="7", subject="email.send", seconds=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.subject = "other"


@pytest.mark.parametrize("kind", KINDS)
def test_the_fields_are_given_by_name(kind: str) -> None:
    event: Any = EVENTS[kind]
    with pytest.raises(TypeError):
        event("7", "email.send")
