"""Whatever is sent arrives equal, or is refused with one of our own errors."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mega.errors import PayloadError
from mega.wire.payload import Codec
from mega.wire.roundtrip import same


@dataclass
class Line:
    name: str
    price: float
    count: int = 1
    tags: set[str] = field(default_factory=set)


@dataclass
class Order:
    id: uuid.UUID
    lines: list[Line]
    at: dt.datetime
    total: Decimal
    place: tuple[int, str] | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    wait: dt.timedelta = dt.timedelta()


class Evil:
    """Raises from every hook that an encoder may touch."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no")

    __hash__ = object.__hash__


integers = st.integers(-(2**63), 2**64 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | integers | floats | st.text(),
    lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts),
    max_leaves=20,
)
lines = st.builds(Line, st.text(), floats, integers, st.sets(st.text()))
orders = st.builds(
    Order,
    st.uuids(),
    st.lists(lines, max_size=3),
    st.datetimes() | st.datetimes(timezones=st.timezones()),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.none() | st.tuples(integers, st.text()),
    st.dictionaries(st.text(), plain, max_size=3),
    st.timedeltas(),
)
strange = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None, categories=None))
    | st.binary()
    | st.complex_numbers()
    | st.decimals()
    | st.dates()
    | st.uuids()
    | st.builds(Evil)
    | st.builds(object)
    | st.sampled_from([int, Line, len, ..., NotImplemented, memoryview(b"a"), range(3)])
    | st.builds(Line, st.text(), st.floats(), st.integers()),
    lambda parts: (
        st.lists(parts)
        | st.tuples(parts)
        | st.dictionaries(st.integers() | st.text() | st.none() | st.builds(Evil), parts)
    ),
    max_leaves=10,
)
# How long an example takes says more about the machine than about the codec.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

UNTYPED = Codec[Any](Any, job="x")
TYPED = Codec[Order](Order, job="x")
REFUSED = object()
LOOSE = Codec[Any](dict[str, list[Line]], job="x")


def attempt(step: Callable[[Any], Any], value: Any) -> Any:
    """Return what the step makes of the value, or REFUSED for an error of ours that prints."""
    try:
        return step(value)
    except PayloadError as error:
        str(error).encode()
        return REFUSED


@unhurried
@given(plain)
def test_plain_values_arrive_exactly(value: Any) -> None:
    assert repr(value) == repr(UNTYPED.decode(UNTYPED.encode(value)))


@unhurried
@given(orders)
def test_a_typed_payload_arrives_or_is_refused(order: Order) -> None:
    body = attempt(TYPED.encode, order)

    # Before time zones were introduced, offsets had seconds, which ISO 8601 can't write.
    assume(body is not REFUSED or order.at.tzinfo is None)
    arrived = TYPED.decode(body)
    assert order.at.isoformat() == arrived.at.isoformat() or order.at == arrived.at
    assert same(replace(order, at=arrived.at), arrived)


@unhurried
@given(strange)
@pytest.mark.parametrize("codec", [UNTYPED, TYPED, LOOSE], ids=["Any", "Order", "dict"])
def test_only_payload_errors_escape_from_encode(codec: Codec[Any], value: Any) -> None:
    body = attempt(codec.encode, value)

    assert body is REFUSED or same(value, codec.decode(body))


@unhurried
@given(strange)
def test_only_payload_errors_escape_from_encode_result(value: Any) -> None:
    body = attempt(UNTYPED.encode_result, value)

    assert body is REFUSED or json.loads(body) == UNTYPED.decode_result(body)


@unhurried
@given(st.binary() | plain.map(lambda value: json.dumps(value).encode()))
@pytest.mark.parametrize("codec", [UNTYPED, TYPED, LOOSE], ids=["Any", "Order", "dict"])
def test_only_payload_errors_escape_from_decode(codec: Codec[Any], body: bytes) -> None:
    value = attempt(codec.decode, body)

    assert value is REFUSED or same(value, codec.decode(codec.encode(value)))
