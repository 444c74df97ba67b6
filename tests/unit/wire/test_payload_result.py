"""A handler's result: taken as far as JSON goes, and never changed into a null."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from mega.errors import BadHandler, PayloadInvalid, PayloadNotSerializable
from mega.wire.payload import Codec


class Shade(enum.StrEnum):
    DARK = "dark"


class Text(str):
    __slots__ = ()


@dataclass
class Report:
    name: str
    _secret: int = 0


class Model(pydantic.BaseModel):
    name: str


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.fixture
def codec() -> Codec[Any]:
    return Codec(Any, job="x", noun="result")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(None, b"null", id="nothing"),
        pytest.param([None, {"a": None}], b'[null,{"a":null}]', id="with nulls"),
        pytest.param((1, "a"), b'[1,"a"]', id="tuple"),
        pytest.param({1}, b"[1]", id="set"),
        pytest.param({1: "a"}, b'{"1":"a"}', id="int key"),
        pytest.param(Shade.DARK, b'"dark"', id="enum"),
        pytest.param(Text("a"), b'"a"', id="subclass"),
        pytest.param([None, Text("a")], b'[null,"a"]', id="subclass with a null"),
        pytest.param(dt.date(2026, 1, 2), b'"2026-01-02"', id="date"),
        pytest.param(Report("a", 3), b'{"name":"a","_secret":3}', id="private field"),
        pytest.param(Model(name="a"), b'{"name":"a"}', id="model"),
        pytest.param("a\ud800", b'"a?"', id="unser-05 surrogate"),
        pytest.param({"\udcff": ["\ud800", None]}, b'{"?":["?",null]}', id="unser-05 nested"),
    ],
)
def test_a_result_is_encoded(codec: Codec[Any], value: Any, expected: bytes) -> None:
    assert expected == codec.encode_result(value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(float("nan"), "result is nan, which JSON has no form for", id="alter-02"),
        pytest.param({"a": [float("inf")]}, "result.a[0] is inf", id="alter-02 nested"),
        pytest.param([2**64], "result[0] is an integer of over 64 bits", id="big integer"),
        pytest.param({"f": lambda: 1}, "result.f is a function", id="unser-01 function"),
        pytest.param(circular(), "result[0] contains itself", id="unser-01 circular"),
    ],
)
def test_a_result_without_a_json_form_is_refused(
    codec: Codec[Any], value: Any, reason: str
) -> None:
    with pytest.raises(PayloadNotSerializable) as caught:
        codec.encode_result(value)

    assert f'"x" can\'t send this result: {reason}' in str(caught.value)


def test_a_result_is_decoded_to_its_type() -> None:
    codec = Codec[Report](Report, job="x", noun="result")

    assert Report("a", 3) == codec.decode_result(codec.encode_result(Report("a", 3)))
    with pytest.raises(PayloadInvalid, match='"x" returns Report: result: expected Report, got'):
        codec.decode_result(b"3")


def test_a_result_type_is_checked_at_declaration() -> None:
    with pytest.raises(BadHandler, match='The result of "x" is declared as complex'):
        Codec(complex, job="x", noun="result")
