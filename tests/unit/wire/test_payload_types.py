"""Which annotations a handler may have, pydantic models among them."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import inspect
import socket
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Optional, Union

import msgspec
import pydantic
import pytest

from mega.errors import BadHandler, PayloadInvalid, PayloadNotSerializable
from mega.wire.payload import Codec


@dataclass
class Email:
    to: str


@dataclass
class Letter:
    to: str


@dataclass
class Node:
    name: str
    children: list[Node]


class Pair(enum.Enum):
    BOTH = (1, 2)


class Member(pydantic.BaseModel):
    name: str
    id: uuid.UUID | None = None
    born: dt.date | None = None


class Admin(Member):
    level: int = 1


class Team(pydantic.BaseModel):
    members: list[Member]


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    when: dt.datetime
    tags: set[str] = set()


class Aliased(pydantic.BaseModel):
    from_: str = pydantic.Field(alias="from")


class Extra(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str


class Secretive(pydantic.BaseModel):
    name: str
    _seen: int = 0


@dataclass
class Wrapped:
    member: Member
    file: Path


ADA = Member(name="Ada", id=uuid.UUID(int=7), born=dt.date(1815, 12, 10))


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (Email, "Email"),
        (list[Email], "list[Email]"),
        (dict[str, list[Email]], "dict[str, list[Email]]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (Email | None, "Email | None"),
        (Optional[Email], "Email | None"),  # noqa: UP045
        (Union[int, str], "int | str"),  # noqa: UP007
        (Annotated[str, msgspec.Meta(min_length=1)], "str"),
        (Literal["a", 1], "Literal['a', 1]"),
        (Sequence[int], "Sequence[int]"),
        (dict, "dict"),
        (Any, "Any"),
        (inspect.Parameter.empty, "Any"),
        (None, "None"),
        (type(None), "None"),
    ],
)
def test_describe(declared: Any, expected: str) -> None:
    codec = Codec[Any](declared, job="x")

    assert expected == codec.describe
    assert (expected == "None") == codec.is_none
    assert f"Codec({expected}, job='x')" == repr(codec)


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        (socket.socket, "is declared as socket, but socket has no JSON form"),
        (list[socket.socket], "is declared as list[socket], but socket has no JSON form"),
        (complex, "is declared as complex, but complex has no JSON form"),
        (Callable[[], int], "but Callable has no JSON form"),
        (collections.deque[int], "but deque has no JSON form"),
        (Email | Letter, "is declared as Email | Letter: Type unions may not contain"),
        (Member | int, "is declared as Member | int: Type unions containing a custom type"),
        (Pair, "is declared as Pair: Enums must contain either all str or all int"),
        (NoReturn, "is not supported"),
        (list["Missing"], "is not supported"),  # type: ignore[name-defined]  # noqa: F821
        (lambda: 1, "is declared as <lambda>"),
    ],
)
def test_an_annotation_without_a_json_form_is_refused(declared: Any, reason: str) -> None:
    with pytest.raises(BadHandler) as caught:
        Codec(declared, job="email.send")

    assert str(caught.value).startswith('The payload of "email.send" ')
    assert reason in str(caught.value)
    assert caught.value.hint.startswith("Declare a dataclass, ")


def test_a_type_may_refer_to_itself() -> None:
    codec = Codec[Node](Node, job="x")
    tree = Node("a", [Node("b", [])])

    assert tree == codec.decode(codec.encode(tree))


@pytest.mark.parametrize(
    ("declared", "payload"),
    [
        pytest.param(Member, ADA, id="alter-05 model"),
        pytest.param(list[Member], [ADA, ADA], id="alter-05 list of models"),
        pytest.param(dict[str, Member], {"a": ADA}, id="alter-05 dict of models"),
        pytest.param(Member | None, ADA, id="alter-05 optional model"),
        pytest.param(Member | None, None, id="alter-05 optional model, None"),
        pytest.param(Team, Team(members=[ADA]), id="alter-05 nested model"),
        pytest.param(Wrapped, Wrapped(ADA, Path("/a")), id="alter-05 model in a dataclass"),
        pytest.param(Strict, Strict(when=dt.datetime(2026, 1, 1), tags={"a"}), id="strict model"),
        pytest.param(Aliased, Aliased.model_validate({"from": "a"}), id="model with an alias"),
        pytest.param(Extra, Extra.model_validate({"name": "a", "b": 1}), id="model with extras"),
        pytest.param(Annotated[Member, "x"], ADA, id="annotated model"),
    ],
)
def test_pydantic_models_arrive(declared: Any, payload: Any) -> None:
    codec = Codec[Any](declared, job="x")

    assert payload == codec.decode(codec.encode(payload))


def test_alter_05_a_subclass_of_the_model_is_refused() -> None:
    with pytest.raises(PayloadNotSerializable, match=r"payload\[0\] is an Admin, and would"):
        Codec[Any](list[Member], job="x").encode([Admin(name="a")])


def test_a_private_attribute_of_a_model_is_refused() -> None:
    codec, payload = Codec[Any](Secretive, job="x"), Secretive(name="a")
    assert payload == codec.decode(codec.encode(payload))

    payload._seen = 3

    with pytest.raises(PayloadNotSerializable, match=r"_seen is 3, and would arrive as 0"):
        codec.encode(payload)


@pytest.mark.parametrize(
    ("declared", "payload", "reason"),
    [
        (Member, {"name": "a"}, "payload is a dict; expected Member"),
        (Member, 3, "payload: Input should be an object"),
        (Member, Member.model_construct(name=3), "payload.name: Input should be a valid string"),
    ],
)
def test_what_is_no_model_is_refused(declared: Any, payload: Any, reason: str) -> None:
    with pytest.raises(PayloadInvalid) as caught:
        Codec[Any](declared, job="x").encode(payload)

    assert f'"x" takes Member: {reason}.' == str(caught.value)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"members":[{"name":"a"},{"id":3}]}', "payload.members[1].name: Field required"),
        (b'{"members":[{"name":18446744073709551616}]}', "payload: integer exceeds 64-bit range"),
        (b'{"members":[{"name":NaN}]}', "payload: JSON is malformed"),
    ],
)
def test_alter_05_the_field_that_does_not_fit_is_named(body: bytes, reason: str) -> None:
    with pytest.raises(PayloadInvalid) as caught:
        Codec[Any](Team, job="x").decode(body)

    assert reason in str(caught.value)


def test_a_path_is_sent_as_text() -> None:
    codec = Codec[Path](Path, job="x")

    assert b'"/srv/a"' == codec.encode(Path("/srv/a"))
    with pytest.raises(PayloadInvalid, match="payload: expected Path, got int"):
        codec.decode(b"3")
