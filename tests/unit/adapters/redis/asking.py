"""Stores on a server, as an app opens them, and what a server holds, seen without mega."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from redis import Redis

from mega.adapters.redis.claims import RedisClaims, redis_key
from mega.adapters.redis.redlock import Redlock, make_store
from mega.declare.lock_url import parse_locks
from tests.redis_server import RedisServer

__all__ = ["kept", "onlooker", "store_on"]

#: What a call may take on a machine that does much else, in seconds.
PATIENCE = 20.0


@contextmanager
def store_on(
    urls: str | Sequence[str], *, budget: float = PATIENCE
) -> Iterator[RedisClaims | Redlock]:
    """Open the store of one server, or of several."""
    with closing(make_store(parse_locks({"main": urls})["main"], budget=budget)) as store:
        yield store


@contextmanager
def onlooker(server: RedisServer) -> Iterator[Redis]:
    """Connect a client that knows no mega."""
    with Redis(port=server.port, protocol=2) as client:
        yield client


def kept(server: RedisServer, key: str) -> dict[str, Any]:
    """Return the record of a key as text, or nothing."""
    with onlooker(server) as client:
        record: Any = client.hgetall(redis_key(key))
    return {name.decode(): value.decode() for name, value in record.items()}
