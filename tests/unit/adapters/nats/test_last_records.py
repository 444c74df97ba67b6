"""What is remembered of a job, and which of two records tells more of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from mega.adapters.nats.last_records import MOST_BYTES, REMEMBERED, LastRecords, Written, is_behind
from mega.wire.history import Death
from mega.wire.record import JobRecord, JobState

THEN, LATER = (datetime(2026, 11, day, tzinfo=UTC) for day in (1, 2))
DEATH = Death(reason="retries", error_type="OSError", attempts=1, failed_at=THEN, worker="vm:1")


def record(state: JobState, **more: object) -> JobRecord:
    return JobRecord(id="a", subject="s", state=state, enqueued_at=THEN, **more)  # type: ignore[arg-type]


#: The lives of one job's record, each further on than the one before.
STEPS = [
    record("waiting"),
    record("running", started_at=THEN),
    record("running", started_at=LATER),
    record("running", started_at=LATER, error="OSError"),
    record("retrying", started_at=LATER, error="OSError"),
    record("running", attempt=2, started_at=LATER),
    record("waiting", attempt=2, started_at=LATER),
    record("waiting", attempt=2, copies=1),
    record("running", attempt=1, copies=2, started_at=THEN),
    record("done", started_at=THEN),
]


@pytest.mark.parametrize(("before", "after"), list(pairwise(STEPS)))
def test_a_record_goes_forward_alone(before: JobRecord, after: JobRecord) -> None:
    assert (True, False) == (is_behind(before, after), is_behind(after, before))


@pytest.mark.parametrize("ours", STEPS)
def test_an_end_stays(ours: JobRecord) -> None:
    assert not is_behind(record("failed"), ours)


@pytest.mark.parametrize(
    "stored",
    [
        JobRecord(id="a", subject="s", state="waiting", enqueued_at=LATER),
        record("waiting", earlier_deaths=(DEATH,)),
    ],
)
def test_another_life_is_left_alone(stored: JobRecord) -> None:
    assert not is_behind(stored, record("done"))


@pytest.mark.parametrize("apart", [timedelta(seconds=-3), timedelta(seconds=3)])
def test_the_producers_record_bears_the_time_of_another_clock(apart: timedelta) -> None:
    stored = JobRecord(id="a", subject="s", state="waiting", enqueued_at=THEN + apart)
    assert is_behind(stored, record("done", started_at=THEN))


def test_the_memory_is_bounded_by_number() -> None:
    last = LastRecords()
    for number in range(3 * REMEMBERED):
        last.keep(str(number), Written(b"", 1.0))

    assert last.find(str(3 * REMEMBERED - 1))
    assert last.find(str(2 * REMEMBERED))
    assert last.find("0") is None


def test_the_memory_is_bounded_by_size() -> None:
    last = LastRecords()
    for number in range(8):
        last.keep(str(number), Written(b"x" * (MOST_BYTES // 2), 1.0))

    assert ["6", "7"] == [str(number) for number in range(8) if last.find(str(number))]
