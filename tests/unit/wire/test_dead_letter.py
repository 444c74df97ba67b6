"""The envelope of a dead letter: nothing of the job is lost, whatever it was."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mega.options import Backoff
from mega.wire.dead_letter import Envelope, revive, seal, unseal
from mega.wire.history import Crash
from mega.wire.message import Message

ENQUEUED = datetime(2030, 1, 1, tzinfo=UTC)
FAILED = datetime(2030, 1, 1, 0, 1, tzinfo=UTC)


def sealed(error: BaseException, body: bytes = b"null") -> dict[str, Any]:
    message = Message(id="7", subject="email.send", body=body, headers={"Tenant": "acme"})
    letter = seal(
        message,
        error,
        reason="retries",
        attempts=4,
        enqueued_at=ENQUEUED,
        failed_at=FAILED,
        worker="host:1",
    )
    envelope: dict[str, Any] = json.loads(letter)
    return envelope


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_it_tells_what_happened_to_which_job() -> None:
    expected = {
        "id": "7",
        "subject": "email.send",
        "reason": "retries",
        "error_type": "builtins.ValueError",
        "error": "no",
        "payload": {"to": "ada"},
        "headers": {"Tenant": "acme"},
        "attempts": 4,
        "enqueued_at": "2030-01-01T00:00:00Z",
        "failed_at": "2030-01-01T00:01:00Z",
        "worker": "host:1",
    }
    assert expected == sealed(ValueError("no"), b'{"to": "ada"}')


def test_it_can_be_read_back() -> None:
    message = Message(id="7", subject="email.send", body=b"[1, 2]")
    letter = seal(
        message,
        ValueError("no"),
        reason="retries",
        attempts=4,
        enqueued_at=ENQUEUED,
        failed_at=FAILED,
        worker="host:1",
    )
    envelope = msgspec.json.decode(letter, type=Envelope)
    assert (ENQUEUED, FAILED) == (envelope.enqueued_at, envelope.failed_at)
    assert isinstance(envelope.payload, msgspec.Raw)
    assert b"[1, 2]" == bytes(envelope.payload)


@given(st.recursive(st.none() | st.booleans() | st.text(), st.lists))
def test_a_body_of_json_is_kept_as_json(payload: Any) -> None:
    assert payload == sealed(ValueError("no"), json.dumps(payload).encode()).get("payload")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b"nul", b"NaN"])
def test_a_body_that_is_not_json_is_kept_raw(body: bytes) -> None:
    envelope = sealed(ValueError("no"), body)
    assert "payload" not in envelope
    assert body == base64.b64decode(envelope["raw"])


def test_the_traceback_names_the_line() -> None:
    traceback = sealed(raised(ValueError("no")))["traceback"]
    assert "in raised" in traceback
    assert traceback.endswith("ValueError: no\n")


def test_an_error_that_was_never_raised_has_no_traceback() -> None:
    assert "traceback" not in sealed(ValueError("no"))


def test_a_long_error_keeps_its_begin_and_its_end() -> None:
    envelope = sealed(raised(ValueError("begin" + "x" * 1_000_000 + "end")))
    for text in (envelope["error"], envelope["traceback"].removesuffix("\n")):
        assert len(text) < 9 * 1024
        assert "characters left out" in text
        assert text.endswith("end")
    assert envelope["error"].startswith("begin")


def test_an_error_type_is_named_with_its_module() -> None:
    class Away(Exception):
        pass

    name = sealed(Away())["error_type"]
    assert name == f"{__name__}.test_an_error_type_is_named_with_its_module.<locals>.Away"


def test_an_error_that_can_not_tell_its_text_is_sealed_all_the_same() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise AttributeError("no response")

    assert "its text can't be had" in sealed(raised(Unprintable()))["error"]


def test_the_name_of_a_file_that_is_not_utf_8_is_sealed_all_the_same() -> None:
    envelope = sealed(raised(OSError("caf\udce9.txt is not there")))
    assert r"caf\udce9.txt is not there" == envelope["error"]
    assert r"caf\udce9.txt" in envelope["traceback"]


def buried(message: Message) -> Envelope:
    facts = {"attempts": 4, "enqueued_at": ENQUEUED, "failed_at": FAILED, "worker": "host:1"}
    return unseal(seal(message, ValueError("no"), reason="retries", **facts))  # type: ignore[arg-type]


@pytest.mark.parametrize("body", [b'{"to": "ada"}', b"[1,  2]", b"", b"{", b"\xff\xfe", b"NaN"])
def test_a_job_is_revived_to_the_byte_with_all_its_retries(body: bytes) -> None:
    message = Message(
        id="7",
        subject="email.send",
        body=body,
        attempt=4,
        enqueued_at=ENQUEUED,
        retries=3,
        backoff=Backoff(initial=5),
        headers={"Tenant": "acme"},
        crashes=(Crash(number=2),),
    )
    again = revive(buried(message))
    assert (body, 1, ENQUEUED) == (again.body, again.attempt, again.enqueued_at)
    assert (3, Backoff(initial=5)) == (again.retries, again.backoff)
    assert ("7", "email.send", {"Tenant": "acme"}) == (again.id, again.subject, again.headers)
    assert () == again.crashes
    assert [(4, 1)] == [(death.attempts, death.crashes) for death in again.deaths]


def test_each_death_is_added_and_none_is_nested() -> None:
    message = Message(id="7", subject="email.send", body=b'{"to": "ada"}')
    for number in range(1, 4):
        envelope = buried(message)
        assert (number - 1, number) == (len(envelope.earlier_deaths), len(envelope.deaths))
        assert b'{"to": "ada"}' == envelope.body
        message = revive(envelope)


@pytest.mark.parametrize("letter", [b"", b"{", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_what_is_no_letter_is_refused(letter: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        unseal(letter)
