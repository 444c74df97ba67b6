"""What a payload may be: each comes out at the worker as it went in, or is refused by path."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import io
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pytest

from mega.errors import PayloadError, PayloadInvalid, PayloadNotSerializable
from mega.wire.payload import Codec


class Color(enum.Enum):
    RED = "red"


class Shade(enum.StrEnum):
    DARK = "dark"


class Level(enum.IntEnum):
    LOW = 1


class Pair(enum.Enum):
    BOTH = (1, 2)


class Text(str):
    __slots__ = ()


class Point(NamedTuple):
    x: int
    y: int = 0


class Options(TypedDict):
    name: str


class Job(msgspec.Struct):
    name: str
    tags: set[str] = msgspec.field(default_factory=set)


@attrs.define
class Parcel:
    weight: float
    codes: tuple[int, str] = (0, "")


@attrs.define(eq=False)
class Incomparable:
    name: str


@dataclass
class Email:
    to: str
    copies: int = 0


@dataclass
class Reply(Email):
    thread: str = ""


@dataclass
class Hidden:
    name: str
    _p: int = 0


@dataclass
class Required:
    _p: int


@dataclass
class Unseen:
    name: str
    note: Any = field(default=None, compare=False)


@dataclass
class Item:
    tag: Any = None
    price: float = 0.0


@dataclass
class Order:
    items: list[Item]


UUID = uuid.UUID("7a9d8b1e-5f0c-4c59-a6a7-3d5a1f6f2b10")
DATE, TIME = dt.date(2026, 2, 28), dt.time(1, 2, 3, 4)
NAIVE = dt.datetime(2026, 2, 28, 1, 2, 3, 4)
AWARE = NAIVE.replace(tzinfo=dt.UTC)
NEW_YORK = ZoneInfo("America/New_York")


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def circular() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


def refusal(codec: Codec[Any], payload: Any) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        codec.encode(payload)
    return caught.value


@pytest.mark.parametrize(
    ("declared", "payload"),
    [
        pytest.param(dt.datetime, NAIVE, id="unser-07 naive datetime"),
        pytest.param(dt.datetime, AWARE, id="unser-07 aware datetime"),
        pytest.param(dt.date, DATE, id="unser-07 date"),
        pytest.param(dt.time, TIME, id="unser-07 time"),
        pytest.param(dt.time, TIME.replace(tzinfo=dt.UTC), id="unser-07 time with a zone"),
        pytest.param(dt.timedelta, dt.timedelta(days=-1, microseconds=3), id="unser-07 timedelta"),
        pytest.param(uuid.UUID, UUID, id="unser-07 UUID"),
        pytest.param(Decimal, Decimal("1.10"), id="unser-07 Decimal"),
        pytest.param(Color, Color.RED, id="unser-07 Enum"),
        pytest.param(Path, Path("/srv/a.txt"), id="unser-07 Path"),
        pytest.param(bytes, b"\x00\xff", id="unser-01 bytes"),
        pytest.param(tuple[int, str], (1, "a"), id="alter-03 tuple"),
        pytest.param(Point, Point(1, 2), id="alter-03 namedtuple"),
        pytest.param(set[str], {"a", "b"}, id="alter-03 set"),
        pytest.param(frozenset[Shade], frozenset({Shade.DARK}), id="alter-03 frozenset of enums"),
        pytest.param(dict[int, str], {1: "a"}, id="alter-01 declared int keys"),
        pytest.param(dict[dt.date, int], {DATE: 1}, id="alter-01 declared date keys"),
        pytest.param(dict[Decimal, int], {Decimal("1.5"): 1}, id="alter-01 declared Decimal keys"),
        pytest.param(dict[Color, int], {Color.RED: 1}, id="alter-01 declared enum keys"),
        pytest.param(Shade, Shade.DARK, id="alter-09 declared str enum"),
        pytest.param(Level, Level.LOW, id="alter-09 declared int enum"),
        pytest.param(Email, Email("a@b.c", 2), id="alter-05 dataclass"),
        pytest.param(list[Email], [Email("a"), Email("b")], id="alter-05 list of dataclasses"),
        pytest.param(Email | None, None, id="alter-05 optional, None"),
        pytest.param(Email | None, Email("a"), id="alter-05 optional"),
        pytest.param(Options, {"name": "a"}, id="alter-05 TypedDict"),
        pytest.param(Job, Job("a", {"x"}), id="Struct"),
        pytest.param(Parcel, Parcel(1.5, (1, "a")), id="attrs"),
        pytest.param(Literal["a", 1], 1, id="Literal"),
        pytest.param(Order, Order([Item({"a": [1, 1.0, True, None]})]), id="untyped part"),
        pytest.param(Hidden, Hidden("a"), id="private field at its default"),
        pytest.param(Any, {"a": [1, -0.0, 1e16, True, None, "é😀"]}, id="plain values"),
        pytest.param(Any, -(2**63), id="smallest integer"),
        pytest.param(Any, 2**64 - 1, id="largest integer"),
        pytest.param(Any, deep(200), id="200 levels"),
        pytest.param(object, [1], id="object is Any"),
        pytest.param(int, 3, id="int"),
        pytest.param(None, None, id="no payload"),
    ],
)
def test_arrives_as_it_was_sent(declared: Any, payload: Any) -> None:
    codec = Codec[Any](declared, job="x")

    arrived = codec.decode(codec.encode(payload))

    assert payload == arrived
    assert type(payload) is type(arrived)


UNTYPED = [
    pytest.param(lambda: 1, "is a function, which has no JSON form", id="unser-01 lambda"),
    pytest.param(object(), "is an object, which has no JSON form", id="unser-01 object"),
    pytest.param(io.StringIO(), "is a StringIO, which has no JSON form", id="unser-01 file"),
    pytest.param(
        (n for n in "a"), "is a generator, which has no JSON form", id="unser-01 generator"
    ),
    pytest.param(1j, "is a complex, which has no JSON form", id="unser-01 complex"),
    pytest.param(ValueError("a"), "is a ValueError, which has no JSON form", id="unser-01 error"),
    pytest.param({1}, "is a set, and would arrive as a list", id="unser-01 set"),
    pytest.param(b"a", "is a bytes, and would arrive as a str", id="unser-01 bytes"),
    pytest.param(Path("a"), "is a PosixPath, and would arrive as a str", id="unser-01 Path"),
    pytest.param("\ud800", "holds a lone surrogate, which UTF-8 has no form for", id="unser-05"),
    pytest.param(
        {"\udcff": 1},
        "has a key with a lone surrogate, which UTF-8 has no form for",
        id="unser-05 key",
    ),
    pytest.param((1, 2), "is a tuple, and would arrive as a list", id="alter-03 tuple"),
    pytest.param(
        Point(1),
        "is a Point, a kind of tuple, and would arrive as a list",
        id="alter-03 namedtuple",
    ),
    pytest.param(
        frozenset(), "is a frozenset, and would arrive as a list", id="alter-03 frozenset"
    ),
    pytest.param(
        Shade.DARK, "is a Shade, a kind of str, and would arrive as a str", id="alter-09 str enum"
    ),
    pytest.param(
        Level.LOW, "is a Level, a kind of int, and would arrive as an int", id="alter-09 int enum"
    ),
    pytest.param(Pair.BOTH, "is a Pair, and would arrive as a list", id="alter-09 tuple enum"),
    pytest.param(UUID, "is a UUID, and would arrive as a str", id="alter-09 UUID"),
    pytest.param(DATE, "is a date, and would arrive as a str", id="alter-09 date"),
    pytest.param(float("nan"), "is nan, which JSON has no form for", id="alter-02 nan"),
    pytest.param(float("-inf"), "is -inf, which JSON has no form for", id="alter-02 -inf"),
    pytest.param(2**64, "is an integer of over 64 bits", id="integer of 65 bits"),
    pytest.param(-(2**63) - 1, "is an integer of over 64 bits", id="negative integer of 65 bits"),
    pytest.param(Decimal("1.5"), "is a Decimal, and would arrive as a str", id="Decimal"),
    pytest.param(Text("a"), "is a Text, a kind of str, which has no JSON form", id="str subclass"),
    pytest.param(
        collections.OrderedDict(a=1),
        "is an OrderedDict, a kind of dict, and would arrive as a dict",
        id="dict subclass",
    ),
    pytest.param(Email("a"), "is an Email, and would arrive as a dict", id="alter-05 dataclass"),
]


@pytest.mark.parametrize(("value", "reason"), UNTYPED)
@pytest.mark.parametrize("declared", [Any, dict[str, Any], Order], ids=["Any", "dict", "dataclass"])
def test_an_altered_value_in_an_untyped_place_is_refused(
    declared: Any, value: Any, reason: str
) -> None:
    items = [{"tag": 1}, {"tag": value}]
    payload = Order([Item(**item) for item in items]) if declared is Order else {"items": items}

    error = refusal(Codec(declared, job="email.send"), payload)

    message = f'"email.send" can\'t send this payload: payload.items[1].tag {reason}.'
    assert message == error.args[0]
    assert PayloadNotSerializable is type(error)


@pytest.mark.parametrize(("value", "reason"), UNTYPED)
def test_an_altered_value_is_refused_at_the_top(value: Any, reason: str) -> None:
    error = refusal(Codec(Any, job="x"), value)

    assert f'"x" can\'t send this payload: payload {reason}.' == error.args[0]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        pytest.param({1: "a"}, "[1] would be lost: its key is an int", id="alter-01 int"),
        pytest.param({True: 1}, "[True] would be lost: its key is a bool", id="alter-01 bool"),
        pytest.param({None: 1}, "[None] would be lost: its key is a None", id="alter-01 None"),
        pytest.param({1.5: 1}, "[1.5] would be lost: its key is a float", id="alter-01 float"),
        pytest.param(
            {DATE: 1},
            "[datetime.date(2026, 2, 28)] would be lost: its key is a date",
            id="alter-01 date",
        ),
        pytest.param(
            {Shade.DARK: 1},
            "[<Shade.DARK: 'dark'>] would be lost: its key is a Shade",
            id="alter-01 enum",
        ),
        pytest.param(
            {"1": "a", 1: "b"}, "[\"1\"] is 'a', and would arrive as 'b'", id="alter-01 both"
        ),
        pytest.param({(1, 2): 1}, ": TypeError: ", id="alter-01 tuple"),
    ],
)
def test_alter_01_a_key_that_is_no_text_is_refused(payload: Any, reason: str) -> None:
    error = refusal(Codec(Any, job="x"), payload)

    assert f"payload{reason}" in str(error)
    assert PayloadNotSerializable is type(error)


@pytest.mark.parametrize(
    ("declared", "payload", "reason"),
    [
        (Email, "a@b.c", "payload: expected Email, got str"),
        (Email, None, "payload: expected Email, got null"),
        (Email, {"to": "a"}, "payload is a dict; expected Email"),
        (Email, Email("a", "2"), "payload.copies: expected int, got str"),  # type: ignore[arg-type]
        (Email, Email("a", True), "payload.copies: expected int, got bool"),
        (list[Email], [Email("a"), 3], "payload[1]: expected object, got int"),
        (list[Email], (Email("a"),), "payload is a tuple; expected list"),
        (tuple[int, str], [1, "a"], "payload is a list; expected tuple"),
        (dict[str, int], {"a": "b"}, "payload[...]: expected int, got str"),
        (Shade, "dark", "payload is a str; expected Shade"),
        (Literal["a", "b"], "c", "payload: invalid enum value 'c'"),
        (None, 3, "payload: expected None, got int"),
    ],
)
def test_a_payload_of_another_type_is_refused(declared: Any, payload: Any, reason: str) -> None:
    codec = Codec[Any](declared, job="email.send")

    error = refusal(codec, payload)

    takes = "no payload" if declared is None else codec.describe
    assert f'"email.send" takes {takes}: {reason}.' == error.args[0]
    assert PayloadInvalid is type(error)


@pytest.mark.parametrize(
    ("declared", "payload", "reason"),
    [
        (Hidden, Hidden("a", 3), "payload._p is 3, and would arrive as 0"),
        (Required, Required(3), "payload._p is a private field, which isn't sent"),
        (Options, {"name": "a", "more": 1}, "payload.more would be lost"),
        (list[Email], [Reply("a", thread="t")], "payload[0] is a Reply, and would arrive as an"),
        (Email, Email(Shade.DARK), "payload.to is a Shade, a kind of str"),
        (Unseen, Unseen("a", (1,)), "payload.note is a tuple, and would arrive as a list"),
        (float, 2**53 + 1, "payload is 9007199254740993, and would arrive as 9007199254740992.0"),
        (float | None, float("nan"), "payload is nan, which JSON has no form for"),
        (list[Path], [Path("/\udcff")], "payload[0] is a PosixPath, which has no JSON form"),
        (Decimal, Decimal("sNaN"), "payload: InvalidOperation"),
        (Any, circular(), "payload.self contains itself"),
        (Any, deep(5000), "[0][0] is nested deeper than 250 levels"),
        (Any, {"a b": {"é": {1}}}, 'payload["a b"].é is a set'),
    ],
)
def test_a_typed_payload_that_would_change_is_refused(
    declared: Any, payload: Any, reason: str
) -> None:
    error = refusal(Codec(declared, job="x"), payload)

    assert reason in str(error)
    assert PayloadNotSerializable is type(error)
    assert 400 > len(str(error))


def test_an_int_may_stand_for_a_float() -> None:
    codec = Codec[Any](list[float], job="x")

    assert [1.0, 2.5] == codec.decode(codec.encode([1, 2.5]))


def test_a_time_that_a_clock_change_repeats_arrives() -> None:
    # 01:30 comes twice that night, and Python calls two of them in different zones never equal.
    codec = Codec[Any](dt.datetime, job="x")
    twice = dt.datetime(2024, 11, 3, 1, 30, tzinfo=NEW_YORK)

    arrived = codec.decode(codec.encode(twice))

    assert twice.isoformat() == arrived.isoformat()


def test_a_type_without_equality_is_compared_by_its_fields() -> None:
    codec = Codec[Incomparable](Incomparable, job="x")

    assert "a" == codec.decode(codec.encode(Incomparable("a"))).name
    with pytest.raises(PayloadInvalid, match=r"payload\.name: expected str, got int"):
        codec.encode(Incomparable(3))  # type: ignore[arg-type]


def test_unser_02_nothing_is_passed_by_reference() -> None:
    codec = Codec[dict[str, Any]](dict[str, Any], job="x")
    payload = {"a": [1]}

    arrived = codec.decode(codec.encode(payload))
    arrived["a"].append(2)

    assert {"a": [1]} == payload


def test_malformed_03_the_bytes_give_the_same_payload_each_time() -> None:
    codec = Codec[dict[str, Any]](dict[str, Any], job="x")
    body = codec.encode({"a": 1})

    codec.decode(body)["b"] = UUID

    assert {"a": 1} == codec.decode(body)


def test_the_hint_says_what_to_do() -> None:
    hint = "Declare its type in the handler's annotation, or send plain JSON values."

    assert hint == refusal(Codec(Any, job="x"), {1}).hint
