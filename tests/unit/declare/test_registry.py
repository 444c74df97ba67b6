"""What an app has declared: names are unique, and nothing is added once it has started."""

from __future__ import annotations

import pytest

from mega import App, Group
from mega.declare.registry import Registry
from mega.errors import BadOption, BadSubject, DeclarationError, DuplicateName, UnknownLock
from mega.options import Role


def task() -> None: ...


def with_job(group: Group, subject: str, roles: tuple[Role, ...] = ("worker",)) -> Group:
    @group.job(subject, roles=roles)
    async def run() -> None: ...

    return group


def with_schedule(group: Group, name: str) -> Group:
    @group.schedule(every=60, name=name)
    async def run() -> None: ...

    return group


def test_declarations_keep_their_order() -> None:
    group = Group()
    for subject in ("b", "a", "c"):
        with_job(group, subject)
    assert ["b", "a", "c"] == list(group.registry.jobs)


def test_two_jobs_of_one_subject_are_refused_with_both_places() -> None:
    group = with_job(Group(), "email.send")
    with pytest.raises(DuplicateName, match="two jobs use the subject") as refused:
        with_job(group, "email.send")
    assert 2 == refused.value.where.count("test_registry.py:")
    assert "Give one of them another subject." == refused.value.hint


def test_two_schedules_of_one_name_are_refused_with_both_places() -> None:
    group = with_schedule(Group(), "nightly")
    with pytest.raises(DuplicateName, match='two schedules have the name "nightly"') as refused:
        with_schedule(group, "nightly")
    assert 2 == refused.value.where.count("test_registry.py:")


def test_two_cpu_tasks_of_one_name_are_refused() -> None:
    group = Group()
    group.cpu_task()(task)
    with pytest.raises(DuplicateName, match='two CPU tasks have the name "task"'):
        group.cpu_task()(task)


def test_two_pools_of_one_name_are_refused() -> None:
    group = Group()
    group.pool("reports")
    with pytest.raises(DuplicateName, match='two pools have the name "reports"'):
        group.pool("reports", size=2)


@pytest.mark.parametrize(("one", "other"), [("a.b", "a_b"), ("a_b.c", "a.b_c"), ("a_b", "a.b")])
def test_two_subjects_that_would_share_a_stream_are_refused(one: str, other: str) -> None:
    group = with_job(Group(), one)
    with pytest.raises(BadSubject, match="would share the stream") as refused:
        with_job(group, other)
    assert 2 == refused.value.where.count("test_registry.py:")
    assert [one] == list(group.registry.jobs)


def test_subjects_that_differ_in_case_have_streams_of_their_own() -> None:
    group = with_job(with_job(Group(), "email"), "Email")
    assert ["email", "Email"] == list(group.registry.jobs)


def test_a_job_and_a_schedule_may_have_one_name() -> None:
    group = with_schedule(with_job(Group(), "nightly"), "nightly")
    assert (1, 1) == (len(group.registry.jobs), len(group.registry.schedules))


def test_an_included_group_clashes_as_one_of_its_own() -> None:
    app = App("shop")
    app.include(with_job(Group(), "a.b"))
    with pytest.raises(DuplicateName):
        app.include(with_job(Group(), "a.b"))
    with pytest.raises(BadSubject):
        app.include(with_job(Group(), "a_b"))


@pytest.mark.parametrize(
    ("role", "subjects"),
    [
        ("all", ["work", "page", "both"]),
        ("worker", ["work", "both"]),
        ("web", ["page", "both"]),
        ("scheduler", []),
    ],
)
def test_a_role_runs_the_jobs_that_name_it(role: Role, subjects: list[str]) -> None:
    group = Group()
    with_job(group, "work")
    with_job(group, "page", roles=("web",))
    with_job(group, "both", roles=("web", "worker"))
    assert subjects == [job.subject for job in group.registry.jobs_for(role)]


def test_freezing_declares_the_default_pool() -> None:
    registry = Registry()
    registry.freeze()
    assert ["default"] == list(registry.pools)


def test_a_task_of_an_unknown_pool_is_refused_with_what_was_meant() -> None:
    group = Group()
    group.pool("reports")
    group.cpu_task(pool="report")(task)
    with pytest.raises(BadOption, match='the pool "report", which is not declared') as refused:
        group.registry.freeze()
    assert 'Did you mean "reports"?' in refused.value.hint
    assert "test_registry.py" in refused.value.where


def test_the_tasks_of_a_pool_are_those_that_name_it() -> None:
    group = Group()
    group.cpu_task(pool="reports")(task)
    assert ["task"] == [spec.name for spec in group.registry.tasks_of("reports")]
    assert [] == group.registry.tasks_of("default")


def test_nothing_is_added_once_it_is_frozen() -> None:
    group = Group()
    group.registry.freeze()
    for declare in (
        lambda: with_job(group, "email.send"),
        lambda: with_schedule(group, "nightly"),
        lambda: group.cpu_task()(task),
        lambda: group.pool("reports"),
    ):
        with pytest.raises(DeclarationError, match="has started already"):
            declare()


@pytest.mark.parametrize(
    ("lock", "key"), [(None, "mega:schedule:nightly"), (True, "mega:schedule:nightly")]
)
def test_the_claim_record_of_a_schedule_is_named_as_the_seed_names_it(
    lock: bool | None, key: str
) -> None:
    group = Group()

    @group.schedule(every=60, lock=lock)
    async def nightly() -> None: ...

    assert key == nightly.spec.key


def with_lock(group: Group, store: str) -> Group:
    @group.schedule(every=60, lock=store)
    async def locked() -> None: ...

    return group


def test_a_lock_store_that_the_app_does_not_have_is_refused_on_the_line() -> None:
    app = App("shop", locks={"main": "redis://a"})
    with_lock(app, "main")
    with pytest.raises(UnknownLock, match="no lock store 'mian'") as refused:
        with_lock(app, "mian")
    assert 'Did you mean "main"?' in refused.value.hint
    assert "test_registry.py:" in refused.value.where


def test_the_lock_store_of_a_group_is_looked_for_when_it_is_included() -> None:
    inner, outer = with_lock(Group(), "main"), Group()
    outer.include(inner)
    with pytest.raises(UnknownLock, match="no lock store 'main'") as refused:
        App("shop", locks={"mane": "redis://a"}).include(outer)
    assert 'Did you mean "mane"?' in refused.value.hint
    assert refused.value.where.endswith(" locked")

    App("shop", locks={"main": "redis://a"}).include(outer)


def test_a_bad_lock_store_is_refused_where_the_app_is_made() -> None:
    with pytest.raises(BadOption, match="starts with 'http'") as refused:
        App("shop", locks={"main": "http://a"})
    assert refused.value.where.startswith("test_registry.py:")
