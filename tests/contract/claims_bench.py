"""What the suite of claims needs of a store: two processes that share it, and its time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from datetime import UTC, datetime
from typing import Protocol

import anyio

from mega.adapters.redis.redlock import make_store
from mega.declare.lock_url import parse_locks
from mega.ports import ClaimStore
from tests.contract.bench import GIVE_UP_AFTER, Bench


class ClaimsBench(Protocol):
    """One store under test."""

    @abstractmethod
    def stores(self) -> AbstractAsyncContextManager[tuple[ClaimStore, ClaimStore]]:
        """Connect two processes to the store; or give one twice, when there can't be two."""

    @abstractmethod
    def now(self) -> datetime:
        """Return the time that the store lives in."""

    @abstractmethod
    async def pass_time(self, seconds: float) -> None:
        """Let time go by, virtual or real."""


class BrokerClaims:
    """The claims of a broker."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.now = bench.now
        self.pass_time = bench.pass_time

    @asynccontextmanager
    async def stores(self) -> AsyncIterator[tuple[ClaimStore, ClaimStore]]:
        async with self._bench.broker() as broker, self._bench.second_broker(broker) as other:
            yield broker.claims, other.claims


class LockClaims:
    """The store of one Redis, or of several together."""

    def __init__(self, urls: str | Sequence[str]) -> None:
        self._urls = parse_locks({"main": urls})["main"]

    @asynccontextmanager
    async def stores(self) -> AsyncIterator[tuple[ClaimStore, ClaimStore]]:
        with (
            anyio.fail_after(GIVE_UP_AFTER),
            closing(make_store(self._urls, budget=GIVE_UP_AFTER)) as store,
            closing(make_store(self._urls, budget=GIVE_UP_AFTER)) as other,
        ):
            yield store, other

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def pass_time(self, seconds: float) -> None:
        await anyio.sleep(seconds)
