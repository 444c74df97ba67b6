"""The five public functions, with the named examples of the first system's guide."""

from __future__ import annotations

import doctest
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta

import pytest

import mega.cron
from mega.cron import is_valid, next_run, next_runs, previous_run, validate
from mega.errors import BadCron, BadOption, BadTimezone

MONDAY_NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def test_the_public_names_are_these_five() -> None:
    expected = {"is_valid", "validate", "next_run", "next_runs", "previous_run"}

    assert expected == set(mega.cron.__all__)


def test_importing_the_package_does_not_load_croniter() -> None:
    code = "import sys, mega.cron; print('croniter' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert b"False" == result.stdout.strip()


def test_examples_in_docstrings_hold() -> None:
    assert 0 == doctest.testmod(mega.cron).failed


def test_is_valid_accepts_an_expression_and_refuses_a_word() -> None:
    assert is_valid("0 3 * * *") is True
    assert is_valid("nope") is False


@pytest.mark.parametrize("thing", [None, 5, 1.5, b"* * * * *", [], {}, object(), "\0", "\udc80"])
def test_is_valid_never_raises(thing: object) -> None:
    assert is_valid(thing) is False


def test_validate_raises_what_is_wrong() -> None:
    with pytest.raises(BadCron, match="'nope' has 1 fields"):
        validate("nope")
    with pytest.raises(ValueError, match="minute '61' is outside 0-59"):
        validate("61 * * * *")
    validate("0 3 * * *")


@pytest.mark.parametrize(
    ("expr", "problem"), [("0 0 30 2 *", "never fires"), ("0 0 0 1 1 * 2020", "has no run after")]
)
def test_a_schedule_that_can_not_fire_is_refused(expr: str, problem: str) -> None:
    assert is_valid(expr) is False
    with pytest.raises(BadCron, match=problem):
        validate(expr)
    with pytest.raises(BadCron, match=problem):
        next_run(expr, MONDAY_NOON, timezone="UTC")
    with pytest.raises(BadCron, match=problem):
        next_runs(expr, 3, MONDAY_NOON, timezone="UTC")


def test_a_schedule_without_a_date_has_no_previous_run() -> None:
    with pytest.raises(BadCron, match="never fires"):
        previous_run("0 0 30 2 *", MONDAY_NOON, timezone="UTC")
    with pytest.raises(BadCron, match="has no run before"):
        previous_run("0 0 0 1 1 * 2030", MONDAY_NOON, timezone="UTC")


def test_three_in_the_morning_in_seoul_is_six_in_the_evening_utc() -> None:
    run = next_run("0 3 * * *", MONDAY_NOON, timezone="Asia/Seoul")

    assert datetime(2026, 6, 1, 18, tzinfo=UTC) == run.astimezone(UTC)
    assert "2026-06-02T03:00:00+09:00" == run.isoformat()


def test_six_fields_put_seconds_first() -> None:
    runs = next_runs("*/30 * * * * *", 3, MONDAY_NOON, timezone="UTC")

    assert ["12:00:30", "12:01:00", "12:01:30"] == [str(run.time()) for run in runs]


def test_every_five_minutes() -> None:
    runs = next_runs("*/5 * * * *", 3, MONDAY_NOON, timezone="UTC")

    assert [MONDAY_NOON + timedelta(minutes=minutes) for minutes in (5, 10, 15)] == runs


def test_monday_at_midnight() -> None:
    runs = next_runs("0 0 * * 1", 2, MONDAY_NOON, timezone="UTC")

    assert [datetime(2026, 6, 8, tzinfo=UTC), datetime(2026, 6, 15, tzinfo=UTC)] == runs


def test_previous_run_undoes_next_run() -> None:
    first, second = next_runs("0 9-17 * * MON-FRI", 2, MONDAY_NOON, timezone="Europe/Berlin")

    assert first == previous_run("0 9-17 * * MON-FRI", second, timezone="Europe/Berlin")


def test_runs_around_a_repeated_hour_follow_each_other_when_fed_back() -> None:
    run, expr = datetime(2026, 10, 24, 23, 45, tzinfo=UTC), "*/30 * * * *"
    seen = []
    for _ in range(5):
        run = next_run(expr, run, timezone="Europe/Berlin")
        seen.append(run.astimezone(UTC).strftime("%H:%M"))

    assert ["00:00", "00:30", "01:00", "01:30", "02:00"] == seen


def test_without_a_start_runs_are_around_now() -> None:
    now = datetime.now(UTC)

    assert now < next_run("* * * * * *", timezone="UTC") < now + timedelta(seconds=30)
    assert previous_run("* * * * * *", timezone="UTC") > now - timedelta(seconds=2)


def test_without_a_zone_the_host_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert "2026-06-02T03:00:00+09:00" == next_run("0 3 * * *", MONDAY_NOON).isoformat()
    monkeypatch.setenv("TZ", "UTC")
    assert "2026-06-02T03:00:00+00:00" == next_run("0 3 * * *", MONDAY_NOON).isoformat()


@pytest.mark.parametrize("moment", [datetime(2026, 6, 1), date(2026, 6, 1), "2026-06-01", 0])
def test_a_start_without_a_zone_is_refused(moment: object) -> None:
    with pytest.raises(BadOption, match=r"after=.* is not a datetime with a time zone"):
        next_run("0 3 * * *", moment, timezone="UTC")  # type: ignore[arg-type]
    with pytest.raises(BadOption, match=r"before=.* is not a datetime with a time zone"):
        previous_run("0 3 * * *", moment, timezone="UTC")  # type: ignore[arg-type]


@pytest.mark.parametrize("zone", ["Asia/Seol", "", [], 9])
def test_an_unknown_zone_is_refused(zone: object) -> None:
    with pytest.raises(BadTimezone):
        next_run("0 3 * * *", MONDAY_NOON, timezone=zone)  # type: ignore[arg-type]


def test_a_list_of_runs_ends_with_the_schedule() -> None:
    runs = next_runs("0 0 0 1 1 * 2027,2028", 5, MONDAY_NOON, timezone="UTC")

    assert [2027, 2028] == [run.year for run in runs]


def test_a_count_is_not_negative() -> None:
    assert [] == next_runs("0 3 * * *", 0, timezone="UTC")
    with pytest.raises(BadOption, match="count=-1"):
        next_runs("0 3 * * *", -1, timezone="UTC")
