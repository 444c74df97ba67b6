"""Two releases of one job at a time: the payload that one sends and the other takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from mega import App
from tests.cases.onlooker import Onlooker
from tests.cases.served import serving


@dataclass
class Signup:
    email: str
    new_user: bool


@dataclass
class SignupWithPlan:
    """What release 2 sends to a worker of release 1, and 1 to 2."""

    email: str
    plan: str
    new_user: bool


@dataclass
class SignupWithDefault:
    email: str
    new_user: bool
    plan: str = "free"


class Row(TypedDict):
    email: str
    new_user: bool


class RowWithPlan(Row):
    plan: str


class Model(pydantic.BaseModel):
    email: str
    new_user: bool


class ModelWithPlan(pydantic.BaseModel):
    email: str
    plan: str
    new_user: bool


class ModelWithDefault(Model):
    plan: str = "free"


class Record(msgspec.Struct):
    email: str
    new_user: bool


class RecordWithPlan(msgspec.Struct):
    email: str
    plan: str
    new_user: bool


class RecordWithDefault(Record):
    plan: str = "free"


def release(broker: str, subject: str, declared: Any) -> tuple[App, list[Any]]:
    """Return an app whose job takes `declared`, and the payloads that it will have seen."""
    app, seen = App("cases", broker=broker), []

    async def sign_up(payload: Any) -> None:
        seen.append(payload)

    sign_up.__annotations__ = {"payload": declared, "return": None}
    app.job(subject, retries=3)(sign_up)
    return app, seen


async def send_and_serve(broker: str, subject: str, sent: Any, taken: Any) -> list[Any]:
    """Enqueue by a release that declares `type(sent)`, run by one that declares `taken`."""
    producer, _ = release(broker, subject, Any if isinstance(sent, dict) else type(sent))
    async with producer:
        job = await producer.enqueue(subject, sent)
        worker, seen = release(broker, subject, taken)
        async with serving(worker):
            await job.wait(timeout=10)
    return seen


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        pytest.param(Signup("a@b.c", True), SignupWithPlan, id="dataclass"),
        pytest.param({"email": "a@b.c", "new_user": True}, RowWithPlan, id="TypedDict"),
        pytest.param(Model(email="a@b.c", new_user=True), ModelWithPlan, id="model"),
        pytest.param(Record("a@b.c", True), RecordWithPlan, id="Struct"),
    ],
)
async def test_a_new_required_field(
    broker: str, subject: str, onlooker: Onlooker, sent: Any, taken: Any
) -> None:
    """schema-01: an old job that lacks a new field is buried at once, and the field is named."""
    seen = await send_and_serve(broker, subject, sent, taken)

    (letter,) = await onlooker.dead_letters(subject)
    assert [] == seen
    assert ("payload", 1) == (letter["reason"], letter["attempts"])
    assert {"email": "a@b.c", "new_user": True} == letter["payload"]
    assert "plan" in letter["error"]


@pytest.mark.parametrize(
    ("sent", "taken", "expected"),
    [
        pytest.param(
            Signup("a@b.c", True),
            SignupWithDefault,
            SignupWithDefault("a@b.c", True, "free"),
            id="dataclass",
        ),
        pytest.param(
            Model(email="a@b.c", new_user=True),
            ModelWithDefault,
            ModelWithDefault(email="a@b.c", new_user=True, plan="free"),
            id="model",
        ),
        pytest.param(
            Record("a@b.c", True),
            RecordWithDefault,
            RecordWithDefault("a@b.c", True, "free"),
            id="Struct",
        ),
    ],
)
async def test_a_new_field_with_a_default(
    broker: str, subject: str, sent: Any, taken: Any, expected: Any
) -> None:
    """schema-01: an old job runs with the default of a field that was added since."""
    assert [expected] == await send_and_serve(broker, subject, sent, taken)


@pytest.mark.parametrize(
    ("sent", "taken", "expected"),
    [
        pytest.param(
            SignupWithPlan("a@b.c", "pro", True), Signup, Signup("a@b.c", True), id="dataclass"
        ),
        pytest.param(
            {"email": "a@b.c", "plan": "pro", "new_user": True},
            Row,
            {"email": "a@b.c", "new_user": True},
            id="TypedDict",
        ),
        pytest.param(
            ModelWithPlan(email="a@b.c", plan="pro", new_user=True),
            Model,
            Model(email="a@b.c", new_user=True),
            id="model",
        ),
        pytest.param(
            RecordWithPlan("a@b.c", "pro", True), Record, Record("a@b.c", True), id="Struct"
        ),
        pytest.param({"plan": "pro"}, dict[str, Any], {"plan": "pro"}, id="dict, which keeps all"),
    ],
)
async def test_a_field_that_the_worker_does_not_know(
    broker: str, subject: str, sent: Any, taken: Any, expected: Any
) -> None:
    """schema-01, schema-02: a field goes by its name; one that the worker doesn't know is left."""
    assert [expected] == await send_and_serve(broker, subject, sent, taken)


async def test_a_field_of_another_type(broker: str, subject: str, onlooker: Onlooker) -> None:
    """schema-01: a field that changed its type is named with what was found in it."""
    await send_and_serve(broker, subject, {"email": "a@b.c", "new_user": "yes"}, Signup)

    (letter,) = await onlooker.dead_letters(subject)
    assert "payload.new_user: expected bool, got str" in letter["error"]
