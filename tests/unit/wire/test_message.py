"""A job as headers and bytes: what goes in comes out, and what can't be read is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mega.errors import BadOption, PayloadInvalid
from mega.options import Backoff
from mega.wire.history import Death
from mega.wire.message import (
    HEADER_NAME,
    Message,
    as_it_came,
    check_headers,
    check_id,
    new_id,
    pack,
    server_id,
    stream_name,
    subject_token,
    unpack,
)

PRINTABLE = st.characters(min_codepoint=33, max_codepoint=126)
COUNTS = st.integers(0, 10**9 - 1)
SECONDS = st.floats(0, 1e9)
BACKOFFS = st.builds(
    Backoff, initial=SECONDS, max=SECONDS, factor=st.floats(1, 1e6), jitter=st.booleans()
)
INSTANTS = st.datetimes(
    datetime(1970, 1, 1),
    datetime(2100, 1, 1),
    timezones=st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23))),
)
NAMES = st.from_regex(HEADER_NAME, fullmatch=True).filter(
    lambda name: not name.lower().startswith(("mega-", "nats-"))
)
HEADERS = st.dictionaries(NAMES, st.text(st.characters(min_codepoint=32, max_codepoint=126)))
MESSAGES = st.builds(
    Message,
    id=st.text(PRINTABLE, min_size=1, max_size=128),
    subject=st.just("email.send"),
    body=st.binary(),
    attempt=COUNTS.filter(bool),
    enqueued_at=st.none() | INSTANTS,
    retries=st.none() | COUNTS,
    backoff=st.none() | BACKOFFS,
    unique=st.none() | st.text(min_size=1, max_size=256),
    headers=HEADERS,
)


def read(headers: dict[str, str] | None, body: bytes = b"null") -> Message:
    return unpack("email.send", headers, body, fallback_id="fallback")


@given(MESSAGES)
def test_what_was_packed_is_unpacked(message: Message) -> None:
    assert message == unpack(message.subject, pack(message), message.body, fallback_id="no")


@given(MESSAGES)
def test_headers_are_one_line_of_ascii_each(message: Message) -> None:
    for name, value in pack(message).items():
        assert f"{name}{value}".isascii()
        assert f"{name}{value}".isprintable()


def test_defaults_are_left_out_of_the_headers() -> None:
    assert {"Mega-Id": "7"} == pack(Message(id="7", subject="email.send", body=b"null"))


@pytest.mark.parametrize("headers", [None, {}])
def test_a_message_without_headers_is_a_job(headers: dict[str, str] | None) -> None:
    expected = Message(id="fallback", subject="email.send", body=b'{"to": "ada"}')
    assert expected == read(headers, b'{"to": "ada"}')


@pytest.mark.parametrize(
    ("headers", "job_id"),
    [
        ({"Mega-Id": "a", "Nats-Msg-Id": "b"}, "a"),
        ({"Nats-Msg-Id": "b"}, "b"),
        ({"Mega-Id": "", "Nats-Msg-Id": ""}, "fallback"),
        ({"Tenant": "acme"}, "fallback"),
        ({"Nats-Msg-Id": "a b"}, "fallback"),
        ({"Nats-Msg-Id": "x" * 5000}, "fallback"),
    ],
)
def test_the_id_is_ours_or_that_of_the_server_or_the_fallback(
    headers: dict[str, str], job_id: str
) -> None:
    assert job_id == read(headers).id


def test_headers_of_ours_and_of_the_server_are_not_for_the_handler() -> None:
    headers = {"Mega-Id": "7", "NATS-Expected-Stream": "x", "mega-new": "y", "Tenant": "acme"}
    assert {"Tenant": "acme"} == read(headers).headers


def test_an_instant_of_another_zone_is_taken_to_utc() -> None:
    enqueued_at = read({"Mega-Enqueued-At": "2030-01-01T09:00:00+09:00"}).enqueued_at
    assert (datetime(2030, 1, 1, tzinfo=UTC), UTC) == (
        enqueued_at,
        enqueued_at.tzinfo if enqueued_at else None,
    )


MALFORMED = [
    ("Mega-Attempt", "two"),
    ("Mega-Attempt", "1.0"),
    ("Mega-Attempt", "0"),
    ("Mega-Attempt", "-1"),
    ("Mega-Attempt", "٣"),
    ("Mega-Attempt", "1" * 5000),
    ("Mega-Retries", "-1"),
    ("Mega-Retries", "many"),
    ("Mega-Retries", "9" * 20),
    ("Mega-Backoff", "{"),
    ("Mega-Backoff", "5"),
    ("Mega-Backoff", "[" * 100_000),
    ("Mega-Backoff", '{"min": 5}'),
    ("Mega-Backoff", '{"initial": "5"}'),
    ("Mega-Backoff", '{"initial": NaN}'),
    ("Mega-Backoff", '{"factor": 0}'),
    ("Mega-Crashes", "[1]"),
    ("Mega-Deaths", "{"),
    ("Mega-Id", "a b"),
    ("Mega-Id", "x" * 129),
    ("Mega-Id", "é"),
    ("Foo(bar)", "baz"),
    ("Mega-Enqueued-At", "yesterday"),
    ("Mega-Enqueued-At", "2030-01-01T00:00:00"),
    ("Mega-Enqueued-At", "2030-13-01T00:00:00Z"),
    ("Mega-Enqueued-At", "0001-01-01T00:00:00+14:00"),
]


@pytest.mark.parametrize(("name", "value"), MALFORMED, ids=lambda text: text[:24])
def test_a_header_that_can_not_be_read_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(PayloadInvalid, match="has unreadable headers") as refused:
        read({"Mega-Id": "7", name: value})
    assert name in str(refused.value)
    assert len(str(refused.value)) < 500


@given(
    st.dictionaries(
        st.sampled_from(["Mega-Attempt", "Mega-Retries", "Mega-Backoff", "Mega-Enqueued-At"]),
        st.text(),
    )
)
def test_any_headers_are_a_job_or_refused(headers: dict[str, str]) -> None:
    try:
        message = read(headers)
    except PayloadInvalid:
        return
    assert message.attempt >= 1


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(PayloadInvalid, match="Mega-Format '2' is newer"):
        read({"Mega-Id": "7", "Mega-Format": "2"})
    assert "7" == read({"Mega-Id": "7", "Mega-Format": "1"}).id


def test_a_new_id_is_one_token_and_like_no_other() -> None:
    ids = [new_id() for _ in range(1000)]
    assert 1000 == len(set(ids))
    assert all(job_id == check_id(job_id) == subject_token(job_id) for job_id in ids)


@pytest.mark.parametrize("job_id", ["1", "order-7", "nightly:1893456000", "a.b>c*", "x" * 128])
def test_an_id_is_printable_text(job_id: str) -> None:
    assert job_id == check_id(job_id)


@pytest.mark.parametrize("job_id", ["", " ", "a b", "a\nb", "é", "x" * 129, 7, None, b"a"])
def test_another_id_is_refused(job_id: Any) -> None:
    with pytest.raises(BadOption, match=r"id=.* can't be a job id"):
        check_id(job_id)


@given(HEADERS)
def test_headers_of_printable_text_are_taken(headers: dict[str, str]) -> None:
    assert headers == check_headers(headers)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Name", "é"),
        ("Name", "a\r\nMega-Id: 7"),
        ("Na:me", "a"),
        ("Na me", "a"),
        ("", "a"),
        ("Name", 7),
        (7, "a"),
        ("Name", None),
    ],
)
def test_another_header_is_refused(name: Any, value: Any) -> None:
    with pytest.raises(BadOption, match="can't be sent"):
        check_headers({name: value})


@pytest.mark.parametrize("name", ["Mega-Id", "mega-anything", "NATS-MSG-ID", "Nats-Schedule"])
def test_a_header_name_of_ours_or_of_the_server_is_refused(name: str) -> None:
    with pytest.raises(BadOption, match="is reserved"):
        check_headers({name: "a"})


@pytest.mark.parametrize(
    ("subject", "name"), [("demo.email", "demo_email"), ("a.b_c-d", "a_b_c-d"), ("ping", "ping")]
)
def test_a_stream_is_named_after_its_subject(subject: str, name: str) -> None:
    assert name == stream_name(subject)


@given(st.text(PRINTABLE, min_size=1), st.text(PRINTABLE, min_size=1))
def test_different_texts_are_different_tokens(one: str, other: str) -> None:
    tokens = subject_token(one), subject_token(other)
    assert not any(char in token for token in tokens for char in ".*>")
    assert (one == other) == (tokens[0] == tokens[1])


def test_what_can_not_be_read_is_kept_as_it_came() -> None:
    headers = {"Mega-Id": "7", "Mega-Format": "2", "Nats-Msg-Id": "8", "Tenant": "acme"}
    message = as_it_came("email.send", headers, b"x", fallback_id="fallback")
    assert ("7", b"x") == (message.id, message.body)
    assert {"Mega-Id": "7", "Mega-Format": "2", "Tenant": "acme"} == message.headers
    assert headers.items() >= pack(message).items()


@pytest.mark.parametrize("headers", [None, {}, {"Mega-Id": "a b"}, {"Mega-Id": "x" * 5000}])
def test_what_has_no_good_id_gets_the_fallback(headers: dict[str, str] | None) -> None:
    assert "fallback" == as_it_came("a", headers, b"x", fallback_id="fallback").id


def test_each_return_from_the_dead_letters_is_a_new_message_to_the_server() -> None:
    first = Message(id="7", subject="email.send", body=b"null")
    deaths = [
        Death(
            reason="retries",
            error_type="E",
            attempts=1,
            failed_at=datetime(2030, 1, 1, microsecond=number, tzinfo=UTC),
            worker="host:1",
        )
        for number in (1, 2)
    ]
    lives = [first, first.but(deaths=(deaths[0],)), first.but(deaths=tuple(deaths))]
    assert "7" == server_id(first)
    assert 3 == len({server_id(life) for life in lives})
    assert server_id(lives[1]) == server_id(first.but(deaths=(deaths[0],)))


NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_copies_of_one_place_in_the_chain_are_duplicates_whatever_their_attempt() -> None:
    first = Message(id="7", subject="a", body=b"1")
    copy = first.next_copy(attempt=2, enqueued_at=NOW)
    assert server_id(copy) == server_id(first.next_copy(attempt=3, enqueued_at=NOW))
    assert server_id(copy) != server_id(copy.next_copy(attempt=2, enqueued_at=NOW))


def test_an_id_that_is_used_again_begins_another_chain() -> None:
    first = Message(id="7", subject="a", body=b"1")
    later = NOW + timedelta(minutes=3)
    ids = {server_id(first.next_copy(attempt=2, enqueued_at=stamp)) for stamp in (NOW, later)}
    assert 2 == len(ids)
