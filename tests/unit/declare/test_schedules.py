"""What a schedule says: options that contradict each other, or that mean nothing over a job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mega.errors import BadOption
from mega.group import Group
from mega.options import Lock


def over_a_job(**options: Any) -> Group:
    group = Group()
    group.registry.lock_stores = ("default", "main")

    @group.schedule(every=60, **options)
    @group.job("report.send")
    async def send_report() -> None: ...

    return group


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"timeout": 5}, "Set timeout= on the job."),
        ({"retries": 1}, "Set retries= on the job."),
        ({"overlap": "allow"}, "Set concurrency= on the job"),
        ({"overlap": "queue"}, "Set concurrency= on the job"),
        ({"lock": True}, "concurrency=1 on the job"),
        ({"lock": Lock()}, "concurrency=1 on the job"),
        ({"lock": Lock(ttl=60)}, "concurrency=1 on the job"),
        ({"lock": Lock(store="main", ttl=60)}, "concurrency=1 on the job"),
        ({"lock": Lock(store="main", key="archive")}, "concurrency=1 on the job"),
        ({"scope": "replica"}, "Leave it out"),
    ],
)
def test_what_a_job_says_itself_is_refused_over_it(options: dict[str, Any], hint: str) -> None:
    (name,) = options
    text = f'{name}= of the schedule "send_report" has no meaning: a job is enqueued once'
    with pytest.raises(BadOption) as refused:
        over_a_job(**options)
    assert str(refused.value).startswith(text)
    assert hint in refused.value.hint
    assert "test_schedules.py:" in refused.value.where


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": None, "retries": 0, "overlap": "skip", "lock": False, "scope": "cluster"},
        {"lock": "main"},
        {"lock": Lock(store="main")},
        {"lock": "default"},
        {"jitter": 10, "catch_up": "all", "grace": 5, "on_lock_error": "run"},
    ],
)
def test_what_has_a_meaning_over_a_job_is_taken(options: dict[str, Any]) -> None:
    assert ["send_report"] == list(over_a_job(**options).registry.schedules)


@pytest.mark.parametrize("lock", [True, "default", Lock(ttl=60)])
def test_runs_that_may_overlap_have_no_lock(lock: Any) -> None:
    with pytest.raises(BadOption, match="lock= keeps runs apart"):
        Group().schedule(every=60, overlap="allow", lock=lock)


@pytest.mark.parametrize("jitter", [60, 61.5, timedelta(minutes=2)])
def test_jitter_ends_before_the_next_tick(jitter: Any) -> None:
    with pytest.raises(BadOption, match=r"jitter=\S+ is not less than every=60"):
        Group().schedule(every=timedelta(minutes=1), jitter=jitter)


def test_any_jitter_below_the_interval_is_taken() -> None:
    Group().schedule(every=60, jitter=59.9)
    Group().schedule("* * * * *", timezone="UTC", jitter=3600)
