"""The benchmarks still run, and they judge as they say. What is measured here means nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.goals import Rows, at_least, at_most, ratios, verdict
from benchmarks.record import Record
from benchmarks.report import report

ROOT = Path(__file__).parents[2]

DRAINS: Rows = {
    ("drain", "reference"): {0: {"jobs/s": 1000.0}, 1: {"jobs/s": 2000.0}},
    ("drain", "mega"): {0: {"jobs/s": 500.0}, 1: {"jobs/s": 500.0}, 2: {"jobs/s": 1.0}},
    ("drain", "taskiq-nats"): {0: {"jobs/s": 100.0}},
    ("drain", "faststream"): {0: {"jobs/s": 50.0}, 1: {"jobs/s": 250.0}},
}


@pytest.mark.parametrize(
    ("what", "contenders", "jobs"),
    [
        ("drain,latency", "reference", 20),
        ("enqueue", "mega-untracked", 200),
        ("kill,memory", "mega", 200),
        ("cpu", "executor,mega", 100),
    ],
)
def test_every_measurement_runs(what: str, contenders: str, jobs: int, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    options = [f"--what={what}", f"--contenders={contenders}", f"--out={out}"]
    sizes = ["--reps=1", *(f"--{name}={jobs}" for name in ("jobs", "memory-jobs", "calls"))]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *options, *sizes, "--ack-wait=1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    expected = [(name, one) for name in what.split(",") for one in contenders.split(",")]
    assert expected == [(row["what"], row["contender"]) for row in rows]
    assert [] == [row for row in rows if row.get("lost") or row.get("error")]
    assert "goals" in done.stdout


def test_a_record_outlives_who_wrote_it(tmp_path: Path) -> None:
    written = Record(tmp_path / "record", 3)
    written.begin(0)
    written.end(0)
    written.begin(2)
    written.begin(2)
    read = Record(tmp_path / "record", 3)
    assert (2, 1, 1) == (read.started(), read.done(), read.repeated())
    assert [True, False, True] == [moment > 0 for moment in read.start_times()]


def test_a_ratio_is_taken_within_a_repetition() -> None:
    assert [0.5, 0.25] == ratios(DRAINS, "drain", "mega", "jobs/s", "reference")


def test_the_better_peer_is_that_of_the_repetition() -> None:
    assert [5.0, 2.0] == ratios(DRAINS, "drain", "mega", "jobs/s", "better peer")


def test_the_better_peer_is_the_one_with_less_where_less_is_better() -> None:
    rows: Rows = {
        ("latency", "mega"): {0: {"p50": 4.0}},
        ("latency", "taskiq-nats"): {0: {"p50": 2.0}},
        ("latency", "faststream"): {0: {"p50": 8.0}},
    }
    assert [2.0] == ratios(rows, "latency", "mega", "p50", "better peer")


def test_a_ratio_is_judged_by_its_median() -> None:
    met = verdict(at_least(3, "better peer", "drain", "jobs/s", "mega"), DRAINS)
    missed = verdict(at_least(0.4, "reference", "drain", "jobs/s", "mega"), DRAINS)
    assert "met" == met.split()[0]
    assert "MISSED" == missed.split()[0]


def test_a_number_must_hold_in_every_repetition() -> None:
    rows: Rows = {("kill", "mega"): {0: {"lost": 0.0}, 1: {"lost": 1.0}, 2: {"lost": 0.0}}}
    assert "MISSED" == verdict(at_most(0, "", "kill", "lost", "mega"), rows).split()[0]


def test_what_was_not_measured_is_no_verdict() -> None:
    assert "not measured" in verdict(at_most(0, "", "kill", "lost", "mega"), DRAINS)


def test_the_report_compares_each_contender() -> None:
    lines = report(DRAINS).split("\n\n")[0].splitlines()
    names = ["drain:", "reference", "mega", "taskiq-nats", "faststream"]
    assert names == [line.split()[0] for line in lines]
    assert "500 (1 to 500)" in lines[2]
    assert "0.38 (0.25 to 0.50) × reference" in lines[2]
    assert "3.50 (2 to 5) × better peer" in lines[2]
    assert "better peer" not in lines[3]
