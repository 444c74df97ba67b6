"""What is sent arrives, equal and of its declared type; on a real server as in `app.test()`."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from mega import App, JobHandle
from mega.errors import BadHandler
from mega.events import JobDone
from tests.cases.onlooker import Onlooker
from tests.cases.payload_types import (
    Color,
    Email,
    Level,
    Member,
    Meta,
    Pair,
    Point,
    Shade,
    Team,
)
from tests.cases.served import serving

UUID = uuid.UUID("7a9d8b1e-5f0c-4c59-a6a7-3d5a1f6f2b10")
NOON = dt.datetime(2026, 2, 28, 12, 0, 0, 7)
ADA = Member(id=UUID, name="Ada")

TYPED = [
    pytest.param(dt.datetime, NOON, id="unser-07 naive datetime"),
    pytest.param(dt.datetime, NOON.replace(tzinfo=dt.UTC), id="unser-07 aware datetime"),
    pytest.param(dt.date, NOON.date(), id="unser-07 date"),
    pytest.param(dt.time, NOON.time(), id="unser-07 time"),
    pytest.param(dt.timedelta, dt.timedelta(days=-1, microseconds=3), id="unser-07 timedelta"),
    pytest.param(uuid.UUID, UUID, id="unser-07 UUID"),
    pytest.param(Decimal, Decimal("1.10"), id="unser-07 Decimal"),
    pytest.param(Color, Color.RED, id="unser-07 Enum"),
    pytest.param(Path, Path("/srv/a.txt"), id="unser-07 Path"),
    pytest.param(bytes, b"\x00\xff", id="unser-01 bytes"),
    pytest.param(tuple[int, str], (1, "a"), id="alter-03 tuple"),
    pytest.param(Point, Point(1, 2), id="alter-03 namedtuple"),
    pytest.param(set[str], {"a", "b"}, id="alter-03 set"),
    pytest.param(frozenset[int], frozenset({1}), id="alter-03 frozenset"),
    pytest.param(dict[int, str], {1: "a"}, id="alter-01 int keys"),
    pytest.param(dict[dt.date, int], {NOON.date(): 1}, id="alter-01 date keys"),
    pytest.param(dict[Color, int], {Color.RED: 1}, id="alter-01 enum keys"),
    pytest.param(Email, Email("a@b.c", NOON), id="alter-05 dataclass"),
    pytest.param(list[Email], [Email("a@b.c")], id="alter-05 list of dataclasses"),
    pytest.param(Meta, {"trace": UUID}, id="alter-05 TypedDict"),
    pytest.param(Member, ADA, id="alter-05 model"),
    pytest.param(list[Member], [ADA], id="alter-05 list of models"),
    pytest.param(dict[str, Member], {"a": ADA}, id="alter-05 dict of models"),
    pytest.param(Member | None, ADA, id="alter-05 model or None"),
    pytest.param(Member | None, None, id="alter-05 None for a model"),
    pytest.param(Team, Team(members=[ADA]), id="alter-05 model in a model"),
    pytest.param(Shade, Shade.DARK, id="alter-09 str enum"),
    pytest.param(Level, Level.LOW, id="alter-09 int enum"),
    pytest.param(dict[str, Any], {"a": [1, 1.0, True, None, "é😀"]}, id="plain JSON"),
]


def echo(app: App, subject: str, declared: Any) -> tuple[JobHandle[Any, ..., Any, Any], list[Any]]:
    """Declare a job that takes and returns `declared`; return it, and what it will have seen."""
    seen: list[Any] = []

    async def repeat(payload: Any) -> Any:
        seen.append(payload)
        return payload

    repeat.__annotations__ = {"payload": declared, "return": declared}
    return app.job(subject)(repeat), seen


@pytest.mark.parametrize(("declared", "sent"), TYPED)
async def test_a_typed_payload_and_result(
    broker: str, subject: str, declared: Any, sent: Any
) -> None:
    """unser-07, alter-01, alter-03, alter-05, alter-09: the declared type comes out again."""
    app = App("cases", broker=broker)
    job, seen = echo(app, subject, declared)

    async with serving(app):
        result = await (await job.enqueue(sent)).result(timeout=10)

    assert [sent] == seen
    assert [type(sent)] * 2 == [type(seen[0]), type(result)]
    assert sent == result


@pytest.mark.parametrize(("declared", "sent"), TYPED)
async def test_the_memory_broker_is_no_easier(
    broker: str, subject: str, declared: Any, sent: Any
) -> None:
    """unser-02: `app.test()` sends through the same codec: same value, same type, a copy."""
    app = App("cases", broker=broker)
    job, seen = echo(app, subject, declared)

    async with app.test() as t:
        await job.enqueue(sent)
        await t.drain()

    assert [sent] == seen
    assert type(sent) is type(seen[0])
    if isinstance(sent, (dict, list, Email, Member)):
        assert sent is not seen[0]


async def test_an_enum_that_has_no_json_form(broker: str, subject: str) -> None:
    """alter-09: an enum of tuples can't come back, so it is refused as early as can be."""
    with pytest.raises(BadHandler, match="declared as Pair: Enums must contain"):
        echo(App("cases", broker=broker), subject, Pair)


async def test_what_a_handler_keeps_is_not_the_senders(broker: str, subject: str) -> None:
    """unser-02: after the enqueue the sender may go on changing what it sent."""
    app = App("cases", broker=broker)
    job, seen = echo(app, subject, dict[str, list[int]])
    sent = {"a": [1]}

    async with app.test() as t:
        await job.enqueue(sent)
        sent["a"].append(2)
        await t.drain()

    assert [{"a": [1]}] == seen


async def test_a_foreign_producer_sends_the_documented_form(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """unser-07: the wire form is plain JSON that another language can write."""
    app = App("cases", broker=broker)
    job, seen = echo(app, subject, Email)

    async with serving(app) as served:
        assert job.subject == subject
        await onlooker.publish(subject, b'{"to":"a@b.c","sent_at":"2026-02-28T12:00:00.000007Z"}')
        await served.wait_for(JobDone)

    assert [Email("a@b.c", NOON.replace(tzinfo=dt.UTC))] == seen
