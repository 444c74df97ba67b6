"""Schedule claims on several independent Redis servers: a majority of them decides.

They are asked in one order, the same in every process, and no further than the first refusal:
so contenders meet on the first server that lives, and one of them wins. Asked all at once, the
servers would now and then be split between three contenders, and the tick have no winner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from statistics import median_low
from time import monotonic
from typing import TypeVar

import anyio

from mega.adapters.redis.claims import RedisClaims
from mega.adapters.redis.server import RedisServer
from mega.errors import LockBackendError
from mega.ports import Claim, Held, LeaseAnswer, Lost, Skip
from mega.urls import LockUrl

__all__ = ["Redlock", "make_store"]

T = TypeVar("T")

#: How long a call may take, in seconds. One of several servers gets half of it.
BUDGET = 1.0
#: How much faster a server's clock may run than this one's, and one step of it, in seconds.
DRIFT = 0.01
STEP = 0.002


class Redlock:
    """Implements `ports.ClaimStore`."""

    def __init__(self, servers: Sequence[RedisClaims]) -> None:
        self._servers = servers
        self._majority = len(servers) // 2 + 1

    async def last_tick(self, key: str) -> datetime | None:
        ticks = await self._majority_of(lambda server: server.last_tick(key))
        return max((tick for tick in ticks if tick is not None), default=None)

    async def claim(
        self, key: str, *, tick: datetime | None, owner: str, lease: float | None
    ) -> Claim | Skip:
        begun = monotonic()
        asked = Claim(key=key, owner=owner, fence=0, tick=tick, lease=lease)
        fences, refusal, failures = await self._ask_in_turn(asked)
        claim = replace(asked, fence=max(fences, default=0))
        if len(fences) >= self._majority and is_valid(claim, begun):
            return claim
        if lease is not None and (fences or failures):
            await self._ask_all(lambda server: server.release(claim))
        if refusal is not None:
            return refusal
        raise self._no_majority(failures)

    async def extend(self, claim: Claim) -> LeaseAnswer:
        begun = monotonic()
        answers, failures = await self._ask_all(lambda server: server.extend(claim))
        held = [answer for answer in answers if isinstance(answer, Held)]
        lost = [answer for answer in answers if isinstance(answer, Lost)]
        if len(held) >= self._majority and is_valid(claim, begun):
            kept = [answer for answer in held if not answer.retaken]
            return Held(retaken=len(kept) < self._majority)
        if lost and len(held) + len(failures) < self._majority:
            return Lost(by=next((answer.by for answer in lost if answer.by), ""))
        raise self._no_majority(failures)

    async def release(self, claim: Claim) -> None:
        await self._majority_of(lambda server: server.release(claim))

    async def time(self) -> datetime:
        answers, failures = await self._ask_all(lambda server: server.time())
        if not answers:
            raise self._no_majority(failures)
        return median_low(answers)

    def close(self) -> None:
        """Close all connections."""
        for server in self._servers:
            server.close()

    async def _ask_in_turn(
        self, asked: Claim
    ) -> tuple[list[int], Skip | None, list[LockBackendError]]:
        """Claim up to the first refusal; return the fences, the refusal and the failures."""
        fences, failures = list[int](), list[LockBackendError]()
        for server in self._servers:
            try:
                answer = await server.claim(
                    asked.key, tick=asked.tick, owner=asked.owner, lease=asked.lease
                )
            except LockBackendError as error:
                failures.append(error)
                continue
            if isinstance(answer, Skip):
                return fences, answer, failures
            fences.append(answer.fence)
        return fences, None, failures

    async def _majority_of(self, ask: Callable[[RedisClaims], Awaitable[T]]) -> list[T]:
        answers, failures = await self._ask_all(ask)
        if len(answers) < self._majority:
            raise self._no_majority(failures)
        return answers

    async def _ask_all(
        self, ask: Callable[[RedisClaims], Awaitable[T]]
    ) -> tuple[list[T], list[LockBackendError]]:
        """Ask all servers at once; return the answers and the failures."""
        answers, failures = list[T](), list[LockBackendError]()

        async def ask_one(server: RedisClaims) -> None:
            try:
                answers.append(await ask(server))
            except LockBackendError as error:
                failures.append(error)

        async with anyio.create_task_group() as calls:
            for server in self._servers:
                calls.start_soon(ask_one, server)
        return answers, failures

    def _no_majority(self, failures: Sequence[LockBackendError]) -> LockBackendError:
        """Return the error for failures, or for answers that came when the lease had run out."""
        count = f"{len(failures)} of {len(self._servers)}"
        why = f"{count} did not answer. {failures[0].args[0]}" if failures else "it took too long."
        error = LockBackendError(f"no majority of the lock servers is sure: {why}")
        error.ambiguous = not failures or any(failure.ambiguous for failure in failures)
        return error


def is_valid(claim: Claim, begun: float) -> bool:
    """Whether the lease lasts on all servers, whose clocks may be a little faster than ours."""
    if claim.lease is None:
        return True
    return monotonic() - begun < claim.lease * (1 - DRIFT) - STEP


def make_store(urls: Sequence[LockUrl], *, budget: float = BUDGET) -> RedisClaims | Redlock:
    """Return the store on one server, or on several; its first call connects it."""
    if len(urls) == 1:
        return RedisClaims(RedisServer(urls[0], budget=budget))
    return Redlock([RedisClaims(RedisServer(url, budget=budget / 2)) for url in urls])
