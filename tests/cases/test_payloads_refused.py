"""What would be lost or altered on the way is refused at the enqueue, and nothing is stored."""

from __future__ import annotations

import datetime as dt
import io
import logging
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from mega import App, JobFailedError, JobHandle
from mega.errors import PayloadError, PayloadInvalid, PayloadNotSerializable
from mega.events import JobRetried
from tests.cases.onlooker import Onlooker
from tests.cases.payload_types import (
    Admin,
    Color,
    Email,
    Level,
    Member,
    Pair,
    Point,
    Reply,
    Shade,
)
from tests.cases.served import serving

UUID = uuid.UUID("7a9d8b1e-5f0c-4c59-a6a7-3d5a1f6f2b10")
DATE = dt.date(2026, 2, 28)
ADMIN = Admin(id=UUID, name="Ada")
NAN, INFINITY = float("nan"), float("inf")


class Float64(float):
    """What numpy.float64 is: a kind of float."""


class Int64:
    """What numpy.int64 is: a number of no kind that Python knows."""

    def __index__(self) -> int:
        return 1


def circular() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["again"] = value
    return value


WITHOUT_A_FORM = [
    pytest.param(lambda: 1, "is a function", id="unser-01 lambda"),
    pytest.param(object(), "is an object", id="unser-01 object"),
    pytest.param(io.StringIO(), "is a StringIO", id="unser-01 open file"),
    pytest.param((n for n in "a"), "is a generator", id="unser-01 generator"),
    pytest.param(1j, "is a complex", id="unser-01 complex"),
    pytest.param(ValueError("a"), "is a ValueError", id="unser-01 error"),
    pytest.param(Float64(1), "is a Float64", id="unser-01 scalar of numpy, a float"),
    pytest.param(Int64(), "is an Int64", id="unser-01 scalar of numpy, an integer"),
    pytest.param("\ud800", "holds a lone surrogate", id="unser-05 value"),
    pytest.param({"\udcff": 1}, "has a key with a lone surrogate", id="unser-05 key"),
    pytest.param(NAN, "is nan", id="alter-02 NaN"),
    pytest.param(INFINITY, "is inf", id="alter-02 infinity"),
    pytest.param(-INFINITY, "is -inf", id="alter-02 negative infinity"),
    pytest.param(Float64("nan"), "is ", id="alter-02 NaN of numpy"),
    pytest.param(2**64, "is an integer of over 64 bits", id="integer of 65 bits"),
]

ALTERED = [
    pytest.param({1}, "is a set, and would arrive as a list", id="unser-01 set"),
    pytest.param(b"a", "is a bytes, and would arrive as a str", id="unser-01 bytes"),
    pytest.param(Path("a"), "is a PosixPath, and would arrive as a str", id="unser-01 Path"),
    pytest.param((1, 2), "is a tuple, and would arrive as a list", id="alter-03 tuple"),
    pytest.param(Point(1), "is a Point, a kind of tuple", id="alter-03 namedtuple"),
    pytest.param(frozenset(), "is a frozenset, and would arrive as a list", id="alter-03 frozen"),
    pytest.param(Email("a"), "is an Email, and would arrive as a dict", id="alter-05 dataclass"),
    pytest.param(Member(id=UUID, name="a"), "is a Member, and would", id="alter-05 model"),
    pytest.param(Pair.BOTH, "is a Pair, and would arrive as a list", id="alter-09 tuple enum"),
    pytest.param(Shade.DARK, "is a Shade, a kind of str", id="alter-09 str enum"),
    pytest.param(Level.LOW, "is a Level, a kind of int", id="alter-09 int enum"),
    pytest.param(UUID, "is a UUID, and would arrive as a str", id="alter-09 UUID"),
    pytest.param(DATE, "is a date, and would arrive as a str", id="alter-09 date"),
    pytest.param(Decimal("1.1"), "is a Decimal, and would arrive as a str", id="unser-02 Decimal"),
]

BAD_KEYS = [
    pytest.param({1: "a"}, "[1]", id="int"),
    pytest.param({True: 1}, "[True]", id="bool"),
    pytest.param({None: 1}, "[None]", id="None"),
    pytest.param({1.5: 1}, "[1.5]", id="float"),
    pytest.param({DATE: 1}, "[datetime.date(2026, 2, 28)]", id="date"),
    pytest.param({Color.RED: 1}, "[<Color.RED: 'red'>]", id="enum"),
    pytest.param({"1": "a", 1: "b"}, '["1"]', id="two keys that become one"),
]


def taker(app: App, subject: str, declared: Any) -> JobHandle[Any, ..., Any, Any]:
    """Declare a job that takes `declared`."""

    async def take(payload: Any) -> None: ...

    take.__annotations__ = {"payload": declared, "return": None}
    return app.job(subject)(take)


async def refusal(job: JobHandle[Any, ..., Any, Any], payload: Any) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        await job.enqueue(payload, id=job.subject)
    return caught.value


async def refuse_everywhere(
    broker: str, subject: str, onlooker: Onlooker, declared: Any, payload: Any
) -> PayloadError:
    """See that a payload is refused alike on the server and in a test, and leaves nothing."""
    app = App("cases", broker=broker)
    job = taker(app, subject, declared)
    async with app:
        on_server = await refusal(job, payload)
    async with app.test() as t:
        in_memory = await refusal(job, payload)
        assert [] == t.jobs

    assert str(on_server) == str(in_memory)
    assert [] == await onlooker.jobs(subject)
    assert await onlooker.record(subject) is None
    str(on_server).encode()  # or it could not be printed
    return on_server


@pytest.mark.parametrize(("value", "reason"), [*WITHOUT_A_FORM, *ALTERED])
async def test_a_value_that_would_not_arrive(
    broker: str, subject: str, onlooker: Onlooker, value: Any, reason: str
) -> None:
    """unser-01, unser-02, unser-05, alter-02, alter-03, alter-05, alter-09: refused by its path.

    An untyped place takes plain JSON values and nothing that would become one.
    """
    payload = {"user": {"tags": [1, {"avatar": value}]}}
    error = await refuse_everywhere(broker, subject, onlooker, dict[str, Any], payload)

    assert PayloadNotSerializable is type(error)
    assert f'"{subject}" can\'t send this payload: payload.user.tags[1].avatar' in str(error)
    assert reason in str(error)
    assert "Declare its type in the handler's annotation, or send plain JSON values." == error.hint


async def test_a_dict_that_holds_itself(broker: str, subject: str, onlooker: Onlooker) -> None:
    """unser-01: a circular payload is refused, and not followed for ever."""
    error = await refuse_everywhere(broker, subject, onlooker, dict[str, Any], circular())

    assert "payload.again contains itself" in str(error)


@pytest.mark.parametrize(("payload", "step"), BAD_KEYS)
async def test_a_key_that_is_no_text(
    broker: str, subject: str, onlooker: Onlooker, payload: Any, step: str
) -> None:
    """alter-01: a key that would become a text is refused, with its path."""
    error = await refuse_everywhere(broker, subject, onlooker, Any, payload)

    assert f"payload{step}" in str(error)


@pytest.mark.parametrize(
    ("declared", "payload", "reason"),
    [
        pytest.param(list[Email], [Reply("a")], "payload[0] is a Reply", id="dataclass"),
        pytest.param(list[Member], [ADMIN], "payload[0] is an Admin", id="model"),
        pytest.param(Email, {"to": "a"}, "payload is a dict; expected Email", id="dict"),
        pytest.param(Member, Member.model_construct(id=UUID, name=3), "payload.name", id="field"),
    ],
)
async def test_a_value_of_another_type(
    broker: str, subject: str, onlooker: Onlooker, declared: Any, payload: Any, reason: str
) -> None:
    """alter-05: a subclass would lose its fields, and a wrong field is named: both are refused."""
    error = await refuse_everywhere(broker, subject, onlooker, declared, payload)

    assert reason in str(error)


@pytest.mark.parametrize("number", [NAN, INFINITY, -INFINITY, Float64("nan")])
async def test_a_result_that_is_no_number(
    broker: str, subject: str, caplog: pytest.LogCaptureFixture, number: float
) -> None:
    """alter-02: a result with NaN or infinity is marked and logged, and is no null."""
    app = App("cases", broker=broker)

    @app.job(subject)
    async def measure() -> dict[str, Any]:
        return {"values": [1.5, number]}

    with caplog.at_level(logging.ERROR, "mega.job"):
        async with serving(app):
            job = await measure.enqueue()
            with pytest.raises(JobFailedError, match=r"result\.values\[1\]"):
                await job.result(timeout=10)
            record = await job.state()

    assert "done" == record.state
    assert any("result.values[1]" in line.getMessage() for line in caplog.records)


async def test_a_surrogate_in_a_result(broker: str, subject: str) -> None:
    """unser-05: a result keeps all but the lone surrogate, which becomes a question mark."""
    app = App("cases", broker=broker)

    @app.job(subject)
    async def read_name() -> dict[str, str]:
        return {"file": "a\udcff.txt"}

    async with serving(app):
        job = await read_name.enqueue()
        assert {"file": "a?.txt"} == await job.result(timeout=10)


class Silent(Exception):
    """An error that can't be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Exception(object()), id="unser-06 object"),
        pytest.param(lambda: Exception(ConnectionError), id="unser-06 class"),
        pytest.param(lambda: Exception(lambda: 1), id="unser-06 lambda"),
        pytest.param(lambda: Exception({1}, b"\xff", 2**70), id="unser-06 several"),
        pytest.param(lambda: ExceptionGroup("two", [Silent(), ValueError(object())]), id="group"),
        pytest.param(Silent, id="without a text"),
        pytest.param(lambda: ValueError("\ud800"), id="unser-05 surrogate"),
        pytest.param(lambda: OSError(2, "no file", "a\udcff.txt"), id="unser-05 file name"),
    ],
)
async def test_an_error_of_any_kind_is_kept_as_text(
    broker: str, subject: str, onlooker: Onlooker, make: Callable[[], Exception]
) -> None:
    """unser-05, unser-06: an error that can't be sent is retried and buried like any other."""
    app = App("cases", broker=broker)

    @app.job(subject, retries=1, backoff=0)
    async def fail() -> None:
        raise make()

    async with serving(app) as served:
        job = await fail.enqueue()
        (letter,) = await onlooker.wait_for_dead_letters(subject)
        record = await job.wait(timeout=10)

    kind = type(make()).__name__
    assert [1] == [event.attempt for event in served.those(JobRetried)]
    assert ("retries", 2) == (letter["reason"], letter["attempts"])
    assert letter["error_type"].endswith(f".{kind}")
    assert letter["error"]
    assert (record.error or "").startswith(f"{kind}: ")


async def test_a_payload_of_another_release_names_its_field(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """alter-05: at the worker, too, a field that doesn't fit is named."""
    app = App("cases", broker=broker)
    taker(app, subject, list[Member])

    async with serving(app):
        await onlooker.publish(subject, b'[{"id":"no id","name":"Ada"}]')
        (letter,) = await onlooker.wait_for_dead_letters(subject)

    assert "payload[0].id: " in letter["error"]
    assert PayloadInvalid.__name__ in letter["error_type"]
