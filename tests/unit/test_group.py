"""What a group refuses: arguments of its own, and a decorator over what another one left."""

from __future__ import annotations

from typing import Any

import pytest

from mega.errors import BadHandler, BadOption
from mega.group import Group


def double(number: int) -> int:
    return 2 * number


def declared(group: Group) -> dict[str, Any]:
    @group.schedule(every=60)
    async def nightly() -> None: ...

    @group.schedule(every=60)
    @group.job("report.send")
    async def send_report() -> None: ...

    @group.job("email.send")
    async def send_email() -> None: ...

    task = group.cpu_task()(double)
    return {"schedule": nightly, "of a job": send_report, "job": send_email, "task": task}


@pytest.mark.parametrize(
    ("decorator", "below", "hint"),
    [
        ("job", "schedule", "Put @app.schedule above @app.job."),
        ("job", "of a job", "Put @app.schedule above @app.job."),
        ("job", "task", "`await double.run(…)` in the handler of a job"),
        ("job", "job", "app.job(…)(send_email.fn)"),
        ("schedule", "schedule", "a function for each schedule"),
        ("schedule", "of a job", "a function for each schedule"),
        ("schedule", "task", "`await double.run(…)` in the function of a schedule"),
        ("cpu_task", "schedule", "over a plain function"),
        ("cpu_task", "job", "over a plain function"),
        ("cpu_task", "task", "over a plain function"),
    ],
)
def test_a_decorator_over_what_another_one_left_is_refused(
    decorator: str, below: str, hint: str
) -> None:
    group = Group()
    handle = declared(group)[below]
    over: dict[str, Any] = {
        "job": lambda: group.job("other"),
        "schedule": lambda: group.schedule(every=5, name="other"),
        "cpu_task": group.cpu_task,
    }
    before = len(group._handles)
    with pytest.raises(BadHandler, match=rf"@app\.{decorator} can't be put over <") as refused:
        over[decorator]()(handle)
    assert hint in refused.value.hint
    assert f" {handle.__name__}" in refused.value.where
    assert before == len(group._handles)


@pytest.mark.parametrize("arguments", [("mail",), (1, 2)])
def test_a_group_has_no_name(arguments: tuple[Any, ...]) -> None:
    for call in (lambda: Group(*arguments), lambda: Group(name="mail")):  # type: ignore[arg-type]
        with pytest.raises(BadOption, match="a group has no name") as refused:
            call()
        assert "Write Group()" in refused.value.hint
        assert refused.value.where.startswith("test_group.py:")


def test_a_schedule_over_a_job_is_taken_and_so_is_its_function_for_another_job() -> None:
    group = Group()
    handles = declared(group)
    group.schedule(every=5, name="often")(handles["job"])
    group.job("email.again")(handles["job"].fn)
    assert {"often", "nightly", "send_report"} == set(group.registry.schedules)
