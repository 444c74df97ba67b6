"""Every case of tests/cases: inputs from public bug reports, and 15 zones at their jumps."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from mega.cron import CronTimetable, is_valid, validate
from mega.errors import BadCron

CASES = Path(__file__).parents[2] / "cases"


def load(name: str, *kinds: str) -> list[Any]:
    rows = [json.loads(line) for line in (CASES / name).read_text().splitlines()]
    chosen = [row for row in rows if not kinds or row["kind"] in kinds]
    return [
        pytest.param(row, id=f"{row['id']} {row.get('source', row.get('what'))}") for row in chosen
    ]


def series(query: dict[str, Any], direction: str) -> list[datetime | None]:
    timetable = CronTimetable(query["expr"], query["tz"])
    step = timetable.next if direction == "next" else timetable.previous
    answers: list[datetime | None] = []
    moment: datetime | None = datetime.fromisoformat(query["start"])
    while moment is not None and len(answers) < query["n"]:
        moment = step(moment)
        answers.append(moment)
    return answers


def instants(texts: list[str]) -> list[datetime]:
    return [datetime.fromisoformat(text) for text in texts]


def expression(case: dict[str, Any]) -> str:
    expr = case["input"]["expr"]
    if isinstance(expr, str):
        return expr
    unit, times = expr["repeat"]
    return str(unit * times + expr["tail"])


@pytest.mark.parametrize("case", load("dst.jsonl"))
def test_a_jump_of_the_clock(case: dict[str, Any]) -> None:
    assert instants(case["expected"]) == series(case, case["dir"])


@pytest.mark.parametrize("case", load("cron.jsonl", "next", "prev"))
def test_a_calendar_question_that_was_answered_wrongly_elsewhere(case: dict[str, Any]) -> None:
    assert instants(case["expected"]) == series(case["input"], case["kind"])


@pytest.mark.parametrize("case", load("cron.jsonl", "accept"))
def test_an_expression_that_was_refused_elsewhere(case: dict[str, Any]) -> None:
    validate(expression(case))


@pytest.mark.parametrize("case", load("cron.jsonl", "reject", "never"))
def test_an_expression_that_was_accepted_elsewhere(case: dict[str, Any]) -> None:
    assert is_valid(expression(case)) is False
    with pytest.raises(BadCron):
        validate(expression(case))
