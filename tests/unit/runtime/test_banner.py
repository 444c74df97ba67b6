"""The start screen: one line per declaration, in columns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from mega.context import JobContext
from mega.declare.registry import Registry
from mega.group import Group
from mega.options import Lock, Role
from mega.runtime.banner import screen, warn_of_nothing

NOW = datetime(2026, 1, 1, 10, 48, tzinfo=UTC)


@dataclass
class Email:
    to: str


def render(page: str) -> bytes:
    return page.encode()


def shop() -> Registry:
    group = Group()
    group.pool("reports", size=1)

    @group.schedule("0 3 * * *", timezone="Asia/Seoul", lock=Lock(ttl=60))
    async def nightly() -> None: ...

    @group.schedule(every=30)
    async def heartbeat() -> None: ...

    @group.job("email.send")
    async def send_email(email: Email, ctx: JobContext) -> None: ...

    @group.job("ping", retries=1, concurrency=16)
    async def ping() -> None: ...

    group.cpu_task(pool="reports")(render)
    group.registry.freeze()
    return group.registry


def show(registry: Registry, role: Role = "all", now: datetime = NOW) -> str:
    return screen(registry, title="mega 0.1.0 · shop", broker="memory:", role=role, now=now)


def test_it_lists_what_was_understood() -> None:
    expected = """\
mega 0.1.0 · shop
  broker    memory:
  schedule  nightly     0 3 * * *   Asia/Seoul  lock 60 s  next 03:00 (in 7 h 12 m)
  schedule  heartbeat   every 30 s                         next 10:48:30 (in 30 s)
  job       email.send  send_email(Email, ctx)  3 retries in 7 s  concurrency 1
  job       ping        ping()                  1 retry in 1 s    concurrency 16
  cpu       render      pool reports  1 process"""
    assert expected == show(shop())


@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ({"mode": "thread"}, "  threads"),
        ({"mode": "thread", "size": 1}, "  1 thread"),
        ({"size": 2}, "  2 processes"),
        ({}, ""),
    ],
)
def test_a_pool_shows_what_its_workers_are(options: dict[str, Any], workers: str) -> None:
    group = Group()
    group.pool("reports", **options)
    group.cpu_task(pool="reports")(render)
    assert show(group.registry).endswith(f"pool reports{workers}")


@pytest.mark.parametrize(
    ("role", "kinds"),
    [
        ("all", {"broker", "schedule", "job", "cpu"}),
        ("worker", {"broker", "job", "cpu"}),
        ("scheduler", {"broker", "schedule", "cpu"}),
        ("web", {"broker", "cpu"}),
    ],
)
def test_a_role_shows_what_it_runs(role: Role, kinds: set[str]) -> None:
    lines = show(shop(), role).splitlines()[1:]
    assert kinds == {line.split()[0] for line in lines}


def test_an_app_without_declarations_shows_its_broker() -> None:
    assert "mega 0.1.0 · shop\n  broker    memory:" == show(Registry())


@pytest.mark.parametrize(
    ("cron", "next_run"),
    [
        ("* * * * *", "next 10:49 (in 1 m)"),
        ("30 48 10 * * *", "next 10:48:30 (in 30 s)"),
        ("0 10 * * *", "next 10:00 (in 23 h 12 m)"),
        ("0 11 2 1 *", "next 2026-01-02 11:00 (in 1 d 12 m)"),
        ("0 0 1 1 *", "next 2027-01-01 00:00 (in 364 d 13 h)"),
    ],
)
def test_the_next_run_is_told_with_the_time_until_then(cron: str, next_run: str) -> None:
    group = Group()

    @group.schedule(cron, timezone="UTC")
    async def job() -> None: ...

    assert show(group.registry).endswith(next_run)


def test_a_schedule_that_has_ended_says_so() -> None:
    group = Group()

    @group.schedule("0 0 0 1 1 * 2099", timezone="UTC")
    async def job() -> None: ...

    later = datetime(2099, 6, 1, tzinfo=UTC)
    assert show(group.registry, now=later).endswith("never again")


def test_a_schedule_over_a_job_shows_as_both() -> None:
    group = Group()

    @group.schedule("0 * * * *", timezone="UTC")
    @group.job("report.send")
    async def send_report() -> None: ...

    assert ["broker", "schedule", "job"] == [
        line.split()[0] for line in show(group.registry).splitlines()[1:]
    ]


def test_a_lock_outside_of_the_broker_says_where_it_is() -> None:
    group = Group()
    group.registry.lock_stores = ("default", "main")

    @group.schedule("0 3 * * *", timezone="UTC", lock=Lock(ttl=60, store="main"))
    async def nightly() -> None: ...

    assert "  lock 60 s in main  " in show(group.registry)


def test_over_a_job_a_lock_only_names_a_store_and_is_not_shown() -> None:
    group = Group()
    group.registry.lock_stores = ("default", "main")

    @group.schedule("0 3 * * *", timezone="UTC", lock="main")
    @group.job("report.send")
    async def send_report() -> None: ...

    assert " lock " not in show(group.registry)


@pytest.mark.parametrize(
    ("role", "what"),
    [
        ("all", None),
        ("worker", None),
        ("scheduler", "no job or schedule is there for the role scheduler"),
        ("web", "no job or schedule is there for the role web"),
    ],
)
def test_a_role_that_runs_nothing_is_warned_of(
    caplog: pytest.LogCaptureFixture, role: Role, what: str | None
) -> None:
    group = Group()

    @group.job("email.send")
    async def send_email() -> None: ...

    warn_of_nothing(group.registry, role)
    assert [what] * bool(what) == [line.partition(":")[0] for line in caplog.messages]


def test_an_app_without_jobs_and_schedules_names_what_is_forgotten_mostly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warn_of_nothing(Group().registry, "all")
    (line,) = caplog.messages
    assert line.startswith("no job or schedule is declared: import the modules")
    assert "app.include()" in line
