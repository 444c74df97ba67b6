"""Broker URLs, taken apart."""

from __future__ import annotations

from typing import Any

import pytest

from mega.declare.broker_url import parse_broker_url
from mega.errors import BadOption

PARTS: list[tuple[str, dict[str, Any]]] = [
    ("memory:", {"kind": "memory", "servers": ()}),
    ("embedded:", {"kind": "embedded", "home": None}),
    ("embedded:/var/lib/shop", {"kind": "embedded", "home": "/var/lib/shop"}),
    ("embedded:data", {"kind": "embedded", "home": "data"}),
    ("embedded://data", {"kind": "embedded", "home": "data"}),
    ("nats://a", {"kind": "nats", "servers": ("nats://a:4222",)}),
    ("NATS://a", {"kind": "nats", "servers": ("nats://a:4222",)}),
    ("nats://a:5000/", {"servers": ("nats://a:5000",)}),
    ("nats://a,b:5000,c", {"servers": ("nats://a:4222", "nats://b:5000", "nats://c:4222")}),
    ("nats://[::1]:5000", {"servers": ("nats://[::1]:5000",)}),
    ("nats://ada:s3cret@a", {"user": "ada", "password": "s3cret", "token": None}),
    ("nats://ada:p%40ss%3A@a", {"user": "ada", "password": "p@ss:"}),
    ("nats://ada:@a", {"user": "ada", "password": ""}),
    ("nats://t0ken@a", {"token": "t0ken", "user": None, "password": None}),
    ("nats://ada:p@ss@a", {"user": "ada", "password": "p@ss", "servers": ("nats://a:4222",)}),
    ("tls://a", {"is_tls": True, "servers": ("nats://a:4222",)}),
    ("nats://a", {"is_tls": False, "replicas": 1, "ack_wait": 10, "connect_timeout": 5}),
    ("nats://a?replicas=3&ack_wait=1.5", {"replicas": 3, "ack_wait": 1.5}),
    ("embedded:?sync=always", {"sync": "always", "home": None}),
    ("nats://a?creds=/etc/shop.creds", {"credentials": "/etc/shop.creds"}),
    ("memory:?ack_wait=2", {"kind": "memory", "ack_wait": 2}),
]


@pytest.mark.parametrize(("url", "parts"), PARTS, ids=lambda value: str(value)[:40])
def test_a_url_is_taken_apart(url: str, parts: dict[str, Any]) -> None:
    parsed = parse_broker_url(url)
    assert parts == {name: getattr(parsed, name) for name in parts}


@pytest.mark.parametrize("url", ["nats://ada:s3cret@a,b", "nats://s3cret@a", "tls://x:s3cret@a"])
def test_what_may_be_shown_holds_no_secret(url: str) -> None:
    assert "s3cret" not in parse_broker_url(url).text


BAD = [
    ("", "is not a broker URL"),
    ("localhost", "is not a broker URL"),
    (None, "is not a broker URL"),
    (5, "is not a broker URL"),
    ("redis://a", "starts with 'redis'"),
    ("localhost:4222", "starts with 'localhost'"),
    ("nats://", "names no host"),
    ("nats://ada@", "names no host"),
    ("nats://a:port", "no valid host and port"),
    ("nats://a:99999", "no valid host and port"),
    ("nats://a/b", "no valid host and port"),
    ("nats://a?replica=3", "has no option 'replica'"),
    ("nats://a?replicas=0", "replicas=0 in the broker URL"),
    ("nats://a?replicas=two", "replicas=two in the broker URL: it is not a number"),
    ("nats://a?ack_wait=0.5", "not a duration of at least 1 s"),
    ("nats://a?ack_wait=inf", "not a duration of at least 1 s"),
    ("nats://a?connect_timeout=0", "not a duration of at least 0.1 s"),
    ("memory:?sync=never", "sync is one of always, 1s"),
]


@pytest.mark.parametrize(("url", "reason"), BAD)
def test_a_wrong_url_is_refused_with_the_reason(url: Any, reason: str) -> None:
    with pytest.raises(BadOption) as refused:
        parse_broker_url(url)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("nats://a?replica=3", 'Did you mean "replicas"?'),
        ("embeded:", 'Did you mean "embedded"?'),
        ("nat://a", 'Did you mean "nats"?'),
    ],
)
def test_what_was_meant_is_told(url: str, hint: str) -> None:
    with pytest.raises(BadOption) as refused:
        parse_broker_url(url)
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    "url", ["nats://bob:hunter2", "nats://bob:hun?ter2@host", "nats://b@d:p/w"]
)
def test_no_error_shows_what_may_be_a_password(url: str) -> None:
    with pytest.raises(BadOption) as refused:
        parse_broker_url(url)
    assert "hunter2" not in str(refused.value)
    assert "ter2" not in str(refused.value)


def test_no_secret_is_in_the_text_of_a_parsed_url() -> None:
    url = parse_broker_url("nats://bob:hunter2@host")
    assert "hunter2" not in repr(url)
    assert "bob" not in url.text
