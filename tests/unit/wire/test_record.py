"""What is known of a job, as JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest

from mega.wire.history import Crash
from mega.wire.record import JobRecord, JobState, decode_record, encode_record

FULL = JobRecord(
    id="7",
    subject="email.send",
    state="done",
    attempt=2,
    error="ValueError: café",
    result=msgspec.Raw(b'{"sent":true}'),
    enqueued_at=datetime(2030, 1, 1, tzinfo=UTC),
    started_at=datetime(2030, 1, 1, 0, 0, 1, 250, tzinfo=UTC),
    ended_at=datetime(2030, 1, 1, 9, 0, 2, tzinfo=timezone(timedelta(hours=9))),
    due_at=None,
    worker="host:1",
    crashes=(Crash(number=1, worker="host:0", started_at=datetime(2030, 1, 1, tzinfo=UTC)),),
)


def test_it_comes_out_as_it_went_in() -> None:
    again = decode_record(encode_record(FULL))
    assert bytes(FULL.result) == bytes(again.result)
    assert msgspec.structs.asdict(FULL) | {"result": None} == (
        msgspec.structs.asdict(again) | {"result": None}
    )


def test_the_result_is_json_within_json() -> None:
    assert {"sent": True} == json.loads(encode_record(FULL))["result"]


def test_what_is_not_known_is_left_out() -> None:
    record = JobRecord(id="7", subject="email.send", state="waiting")
    expected = {"id": "7", "subject": "email.send", "state": "waiting"}
    assert expected == json.loads(encode_record(record))


def test_without_a_result_it_is_null() -> None:
    body = b'{"id":"7","subject":"email.send","state":"done"}'
    assert b"null" == bytes(decode_record(body).result)


def test_fields_of_a_newer_version_are_passed_over() -> None:
    body = b'{"id":"7","subject":"email.send","state":"done","progress":0.5}'
    assert "done" == decode_record(body).state


@pytest.mark.parametrize(
    ("state", "is_final"),
    [
        ("waiting", False),
        ("running", False),
        ("retrying", False),
        ("done", True),
        ("failed", True),
    ],
)
def test_a_job_ends_done_or_failed(state: JobState, is_final: bool) -> None:
    assert is_final == JobRecord(id="7", subject="email.send", state=state).is_final


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"id":7}', b"\xff"])
def test_what_is_no_record_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_record(body)
