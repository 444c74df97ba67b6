"""What the worker makes of bytes that somebody else put into the queue."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypedDict

import pytest

from mega.errors import PayloadInvalid
from mega.wire.payload import Codec

DEEP = b"[" * 200_000 + b"]" * 200_000


@dataclass
class Signup:
    email: str
    new_user: bool


@dataclass
class SignupWithDefault:
    email: str
    new_user: bool
    locale: str = "en"


@dataclass
class SignupWithMore:
    email: str
    locale: str
    new_user: bool


class Row(TypedDict):
    email: str


@dataclass
class Account:
    owners: list[Signup]


@dataclass
class Checked:
    age: int

    def __post_init__(self) -> None:
        if self.age < 0:
            raise ValueError("age is below 0")


@dataclass
class Broken:
    name: str

    def __post_init__(self) -> None:
        raise KeyError("oops")


SIGNUP = b'{"email":"a@b.c","new_user":true}'


def reason(declared: Any, body: bytes) -> str:
    codec = Codec[Any](declared, job="x")
    with pytest.raises(PayloadInvalid) as caught:
        codec.decode(body)
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(b"\xef\xbb\xbf{}", "JSON is malformed", id="malformed-04 byte order mark"),
        pytest.param(b'"\\ud800"', "input data was truncated", id="malformed-04 surrogate"),
        pytest.param(b"NaN", "JSON is malformed", id="malformed-04 NaN"),
        pytest.param(b"[1,]", "trailing comma", id="malformed-04 trailing comma"),
        pytest.param(b"1e400", "number out of range", id="malformed-04 1e400"),
        # From Python 3.12 on the decoder takes some thousands of levels.
        pytest.param(DEEP, "nested too deeply", id="malformed-04 nesting"),
        pytest.param(2**64, "payload is an integer of over 64 bits", id="malformed-04 big integer"),
        pytest.param(-(2**63) - 1, "payload is an integer of over 64 bits", id="big negative"),
        pytest.param(b'{"a":[1,1%s]}' % (b"0" * 34), "payload.a[1] is an integer", id="10 ** 34"),
        pytest.param(b"", "input data was truncated", id="malformed-01 empty"),
        pytest.param(b"\xff\xfe", "JSON is malformed", id="malformed-01 no UTF-8"),
        pytest.param(b"{", "input data was truncated", id="malformed-01 open brace"),
        pytest.param(b"[" * 900_000, "nested too deeply", id="malformed-01 900 kB of ["),
        pytest.param(gzip.compress(SIGNUP)[:20], "JSON is malformed", id="malformed-01 gzip"),
        pytest.param(b'"\xff"', "UTF-8", id="malformed-01 text of no UTF-8"),
    ],
)
def test_an_untyped_job_refuses_what_is_no_json(body: bytes | int, expected: str) -> None:
    raw = b"%d" % body if isinstance(body, int) else body

    assert expected in reason(Any, raw)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(b"null", "payload: expected Signup, got null", id="malformed-01 null"),
        pytest.param(b"[1,2]", "payload: expected Signup, got array", id="malformed-01 array"),
        pytest.param(b'"x"', "payload: expected Signup, got str", id="malformed-01 text"),
        pytest.param(b"", "payload: input data was truncated", id="malformed-01 empty"),
        pytest.param(b"{}", 'payload: object missing required field "email"', id="empty object"),
    ],
)
def test_a_typed_job_refuses_what_does_not_fit(body: bytes, expected: str) -> None:
    assert f'"x" takes Signup: {expected}.' == reason(Signup, body)


@pytest.mark.parametrize(
    ("declared", "body", "expected"),
    [
        (Account, b'{"owners":[{"email":3}]}', "payload.owners[0].email: expected str, got int"),
        (
            Account,
            b'{"owners":[{"email":""}]}',
            "payload.owners[0]: object missing",
        ),
        (dict[int, int], b'{"a":1}', "a key of payload: expected int, got str"),
        (Checked, b'{"age":-1}', "payload: age is below 0"),
        (Broken, b'{"name":"a"}', "payload: KeyError: 'oops'"),
        (list[int], b"[18446744073709551616]", "payload[0] is an integer of over 64 bits"),
    ],
)
def test_the_reason_names_the_place(declared: Any, body: bytes, expected: str) -> None:
    assert expected in reason(declared, body)


@pytest.mark.parametrize(
    ("declared", "body", "expected"),
    [
        pytest.param(
            SignupWithDefault,
            SIGNUP,
            SignupWithDefault("a@b.c", True),
            id="schema-01 new field with a default",
        ),
        pytest.param(
            Signup,
            b'{"email":"a@b.c","new_user":true,"plan":{"x":1}}',
            Signup("a@b.c", True),
            id="schema-02 unknown field, dataclass",
        ),
        pytest.param(Row, SIGNUP, {"email": "a@b.c"}, id="schema-02 unknown field, TypedDict"),
    ],
)
def test_schema_change_decodes(declared: Any, body: bytes, expected: Any) -> None:
    assert expected == Codec[Any](declared, job="x").decode(body)


def test_schema_01_a_new_required_field_is_named() -> None:
    assert 'missing required field "locale"' in reason(SignupWithMore, SIGNUP)


@pytest.mark.parametrize(
    ("declared", "body", "expected"),
    [
        (Any, b"18446744073709551615", 2**64 - 1),
        (Any, b"1234567890123456789", 1234567890123456789),
        (Any, b'"18446744073709551616"', "18446744073709551616"),
        (Any, b"0.12345678901234567890123", 0.12345678901234568),
        (Decimal, b"18446744073709551616", Decimal(2**64)),
    ],
)
def test_a_long_number_that_is_exact_is_taken(declared: Any, body: bytes, expected: Any) -> None:
    assert expected == Codec[Any](declared, job="x").decode(body)


@pytest.mark.parametrize("body", [b"", b"null", b" null "])
def test_a_job_without_a_payload_takes_an_empty_body(body: bytes) -> None:
    codec = Codec[None](None, job="ping")

    assert codec.is_none
    assert codec.decode(body) is None


def test_a_job_without_a_payload_refuses_one() -> None:
    assert '"x" takes no payload: payload: expected None, got int.' == reason(None, b"3")
