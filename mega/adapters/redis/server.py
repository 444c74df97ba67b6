"""One Redis server, or cluster, asked by redis-py in threads: its async client knows asyncio alone.

A call that got no answer is sent once more, so what it runs must bear that.
"""

from __future__ import annotations

import math
from functools import cache
from hashlib import sha1
from socket import gaierror
from threading import Lock
from typing import Any, TypeAlias

import anyio
from anyio import to_thread
from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    NoScriptError,
    RedisClusterException,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeout
from redis.retry import Retry

from mega.errors import LockBackendError, one_line
from mega.urls import LockUrl

__all__ = ["RedisServer"]

Argument: TypeAlias = str | int

#: So many calls are on their way at once; each has a thread and a connection.
THREADS = 8
TRIES = 2
FAILURES = (RedisError, RedisClusterException, OSError, UnicodeError)
#: The server has refused the call, or was never reached.
NOT_DONE = (ResponseError, AuthenticationError, RedisClusterException, UnicodeError)
NOT_SENT = (ConnectionRefusedError, gaierror)


class RedisServer:
    """Runs scripts on one server, each call within `budget` seconds."""

    def __init__(self, url: LockUrl, *, budget: float) -> None:
        self.where = url.text
        self._url = url
        self._budget = budget
        self._client: Any = None
        self._connecting = Lock()
        self._turns = anyio.CapacityLimiter(THREADS)
        # A thread that is left behind must not take a turn.
        self._threads = anyio.CapacityLimiter(math.inf)
        self._answers = 0

    async def ask(self, script: str, key: str, *arguments: Argument) -> Any:
        """Run a script on one key and return its answer. Raises: LockBackendError."""
        await self._wait_for_turn()
        try:
            return await self._ask(script, key, arguments)
        finally:
            self._turns.release()

    def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            self._client.close()

    async def _wait_for_turn(self) -> None:
        """Wait as long as others get answers: that many schedules at once are no failure."""
        while True:
            answers = self._answers
            with anyio.move_on_after(self._budget):
                await self._turns.acquire()
                return
            if answers == self._answers:
                raise self._failure(f"did not answer within {self._budget:g} s.")

    async def _ask(self, script: str, key: str, arguments: tuple[Argument, ...]) -> Any:
        failures: list[Exception] = []
        with anyio.move_on_after(self._budget) as budget:
            while len(failures) < TRIES:
                try:
                    answer = await self._in_thread(script, key, arguments)
                except FAILURES as error:
                    failures.append(error)
                else:
                    self._answers += 1
                    return answer
        raise self._gave_up(failures, is_late=budget.cancelled_caught)

    async def _in_thread(self, script: str, key: str, arguments: tuple[Argument, ...]) -> Any:
        return await to_thread.run_sync(
            self._call, script, key, arguments, limiter=self._threads, abandon_on_cancel=True
        )

    def _call(self, script: str, key: str, arguments: tuple[Argument, ...]) -> Any:
        client = self._connected()
        try:
            return run(client, script, key, arguments)
        except FAILURES:
            # Its name may be another server's by now: that of a new master, after a failover.
            if isinstance(client, Redis):
                client.connection_pool.disconnect(inuse_connections=False)
            raise

    def _connected(self) -> Any:
        # Threads that are left behind must not gather here while a cluster does not answer.
        if not self._connecting.acquire(timeout=self._budget):
            raise RedisTimeout("another call has not connected yet")
        try:
            if self._client is None:
                self._client = connect(self._url, timeout=self._budget / TRIES)
            return self._client
        finally:
            self._connecting.release()

    def _gave_up(self, failures: list[Exception], *, is_late: bool) -> LockBackendError:
        if is_late or isinstance(failures[-1], RedisTimeout):
            error = self._failure(f"did not answer within {self._budget:g} s.")
        else:
            error = self._failure(f"can't answer: {one_line(failures[-1])}")
        error.ambiguous = is_late or any(map(may_be_done, failures))
        if failures and "MOVED" in one_line(failures[-1]).upper():
            error.hint = f'It is a cluster: write "{self.where}?cluster=true".'
        return error

    def _failure(self, text: str) -> LockBackendError:
        return LockBackendError(f"the lock store {self.where} {text}")


def connect(url: LockUrl, *, timeout: float) -> Redis | RedisCluster:
    """Return a client that tries each call once. A cluster's asks the server who is in it."""
    kind: Any = RedisCluster if url.is_cluster else Redis
    client: Redis | RedisCluster = kind.from_url(
        url.address,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    return client


def run(client: Any, script: str, key: str, arguments: tuple[Argument, ...]) -> Any:
    try:
        return client.evalsha(digest(script), 1, key, *arguments)
    except NoScriptError:
        return client.eval(script, 1, key, *arguments)


@cache
def digest(script: str) -> str:
    return sha1(script.encode()).hexdigest()


def may_be_done(failure: Exception) -> bool:
    """Whether the server may have run the script, and only the answer was lost."""
    return not isinstance(failure, NOT_DONE) and not isinstance(failure.__context__, NOT_SENT)
