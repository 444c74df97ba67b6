"""The URLs of lock stores, taken apart."""

from __future__ import annotations

from typing import Any

import pytest

from mega.declare.lock_url import parse_locks
from mega.errors import BadOption
from mega.urls import LockUrl

PARTS: list[tuple[str, dict[str, Any]]] = [
    ("memory:", {"kind": "memory", "text": "memory:"}),
    ("redis://a", {"kind": "redis", "text": "redis://a:6379/0", "address": "redis://a"}),
    ("REDIS://a", {"text": "redis://a:6379/0", "address": "redis://a"}),
    ("redis://a:5000/2", {"text": "redis://a:5000/2", "address": "redis://a:5000/2"}),
    ("redis://[::1]:5000/", {"text": "redis://[::1]:5000/0"}),
    ("redis://ada:s3cret@a/1", {"text": "redis://a:6379/1", "address": "redis://ada:s3cret@a/1"}),
    ("redis://:p%40%3F@a", {"text": "redis://a:6379/0", "address": "redis://:p%40%3F@a"}),
    ("redis://:a,b@a", {"text": "redis://a:6379/0", "address": "redis://:a,b@a"}),
    ("redis://a?cluster=true", {"is_cluster": True, "address": "redis://a"}),
    ("redis://a?cluster=false", {"is_cluster": False, "address": "redis://a"}),
    ("redis://a", {"is_cluster": False}),
    (
        "rediss://a?ssl_ca_certs=/etc/ca.pem&ssl_cert_reqs=none",
        {"address": "rediss://a?ssl_ca_certs=%2Fetc%2Fca.pem&ssl_cert_reqs=none"},
    ),
    ("rediss://a?cluster=true&ssl_check_hostname=false", {"is_cluster": True}),
]


@pytest.mark.parametrize(("url", "parts"), PARTS, ids=lambda value: str(value)[:40])
def test_a_url_is_taken_apart(url: str, parts: dict[str, Any]) -> None:
    ((name, (parsed,)),) = parse_locks({"main": url}).items()
    assert "main" == name
    assert parts == {name: getattr(parsed, name) for name in parts}


def test_what_may_be_shown_holds_no_secret() -> None:
    (parsed,) = parse_locks({"main": "redis://ada:s3cret@a"})["main"]
    assert "s3cret" not in repr(parsed)
    assert "s3cret" not in parsed.text


@pytest.mark.parametrize("order", ["abc", "cab", "bca"])
@pytest.mark.parametrize("kind", [list, tuple])
def test_servers_of_a_redlock_have_one_order(order: str, kind: Any) -> None:
    servers = parse_locks({"main": kind(f"redis://{host}" for host in order)})["main"]
    assert [f"redis://{host}:6379/0" for host in "abc"] == [server.text for server in servers]


def test_a_list_of_one_is_that_one() -> None:
    assert parse_locks({"main": "redis://a"}) == parse_locks({"main": ["redis://a"]})


def test_there_may_be_none() -> None:
    assert {} == parse_locks(None) == parse_locks({})


def test_there_may_be_several() -> None:
    locks = parse_locks({"main": "redis://a", "audit.eu-1": "memory:"})
    assert (LockUrl(text="memory:", kind="memory"),) == locks["audit.eu-1"]


BAD = [
    ("", "is not the URL of a lock store"),
    ("localhost", "is not the URL of a lock store"),
    (None, "has no URL"),
    (5, "has no URL"),
    ([], "has no URL"),
    ({"redis://a"}, "has no URL"),
    ([None, "redis://a", "redis://b"], "is not the URL of a lock store"),
    ("nats://a", "starts with 'nats'"),
    ("localhost:6379", "starts with 'localhost'"),
    ("redis://", "no valid host and port"),
    ("redis://ada@", "no valid host and port"),
    ("redis://a:port", "no valid host and port"),
    ("redis://a:99999", "no valid host and port"),
    ("redis://a/main", "the number of a database"),
    ("redis://a/-1", "the number of a database"),
    ("redis://a/²", "the number of a database"),
    ("redis://a/0/1", "the number of a database"),
    ("redis://a/0#1", "the number of a database"),
    ("redis://:pa?s@a", r'holds a "\?" or "#"'),
    ("redis://:pa#s@a", r'holds a "\?" or "#"'),
    ("redis://a,redis://b,redis://c", "names several servers"),
    ("redis://a,b,c", "names several servers"),
    ("redis://a?clustr=true", "has no option 'clustr'"),
    ("redis://a?socket_timeout=5", "has no option 'socket_timeout'"),
    ("redis://a?cluster=yes", "cluster=yes in the URL of a lock store is none of true, false"),
    ("redis://a/1?cluster=true", "a Redis cluster has no database 1"),
    ("redis://a?ssl_ca_certs=x", "options for TLS"),
    ("rediss://a?ssl_cert_reqs=maybe", "ssl_cert_reqs=maybe"),
    (["redis://a", "redis://b"], "two lock servers are less than one"),
    (["redis://a", "redis://b", "memory:"], "single Redis servers only"),
    (["redis://a", "redis://b", "redis://c?cluster=true"], "single Redis servers only"),
    (["redis://a", "redis://b", "redis://a:6379"], "redis://a:6379 is listed twice"),
    (["redis://a/0", "redis://b", "redis://a/1"], "redis://a:6379 is listed twice"),
]


@pytest.mark.parametrize(("urls", "message"), BAD, ids=str)
def test_a_bad_url_is_refused(urls: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        parse_locks({"main": urls})


@pytest.mark.parametrize(
    "url", ["redis://ada:s3cret", "redis://:s3cret/x@a", "redis://:s3cr?et@a", "redis://:s3cret@"]
)
def test_a_refusal_shows_no_secret(url: str) -> None:
    with pytest.raises(BadOption) as refused:
        parse_locks({"main": url})
    assert "s3cr" not in f"{refused.value}"


def test_a_slip_of_the_pen_is_noticed() -> None:
    with pytest.raises(BadOption, match="starts with 'reddis'") as refused:
        parse_locks({"main": "reddis://a"})
    assert 'Did you mean "redis"?' in refused.value.hint


@pytest.mark.parametrize("locks", ["redis://a", ["redis://a"], 5])
def test_what_is_no_dict_is_refused(locks: Any) -> None:
    with pytest.raises(BadOption, match="is not a dict"):
        parse_locks(locks)


@pytest.mark.parametrize("name", ["", "a b", 5, None])
def test_a_bad_name_is_refused(name: Any) -> None:
    with pytest.raises(BadOption, match="is not a name for a lock store"):
        parse_locks({name: "redis://a"})


def test_the_name_of_the_brokers_store_is_refused() -> None:
    with pytest.raises(BadOption, match="can't be called 'default'"):
        parse_locks({"default": "redis://a"})
