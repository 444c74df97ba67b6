"""The connection: the first connect with its own time-out, then reconnecting for ever.

It knows nothing of streams. nats-py is the transport: publish and subscribe, nothing above.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from random import random
from typing import Any, TypeAlias

import msgspec
from nats.aio.client import Client as NatsClient
from nats.aio.client import Server
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from mega.adapters.nats.complaints import Complaints, explain
from mega.adapters.nats.dial import close_quietly, dial
from mega.adapters.nats.replies import Lost, Replies, is_no_responders
from mega.errors import BrokerError, BrokerUnavailable
from mega.options import BrokerUrl

__all__ = ["ApiError", "Callback", "Client", "Interest"]

Callback: TypeAlias = Callable[[Msg], Awaitable[None]]

FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0
CLOSE_WITHIN = 2.0
MOST_TURNS = 100
FOR_EVER = 10**6
API_TIMEOUT = 5.0
CHECK_EVERY = 1.0
STUCK_AFTER = 30.0


class ApiError(Exception):
    """JetStream refused an API call. `code` is its err_code, which is stable between versions."""

    def __init__(self, subject: str, error: dict[str, Any]) -> None:
        self.status = int(error.get("code", 0))
        self.code = int(error.get("err_code", 0))
        self.description = str(error.get("description", "no reason given"))
        super().__init__(f"{subject}: {self.description} ({self.code})")


class Interest:
    """A subscription that outlives the nats-py client under it."""

    def __init__(self, client: Client, subject: str, callback: Callback) -> None:
        self._client = client
        self._subject = subject
        self._callback = callback
        self._subscription: Subscription | None = None

    async def renew(self, nc: NatsClient) -> None:
        """Subscribe on that connection."""
        self._subscription = await nc.subscribe(self._subject, cb=self._callback)

    async def drain(self) -> None:
        """Stop; return when what the server had sent before was handed to the callback."""
        subscription = self._subscription
        if subscription is not None and self._client.up.is_set():
            with suppress(NatsError, OSError):
                await self._client.nc._send_unsubscribe(subscription._id)
                await self._client.round_trip(CLOSE_WITHIN)
                await self._hand_over(subscription)
        await self.stop()

    async def _hand_over(self, subscription: Subscription) -> None:
        """Let nats-py's own task work off what has arrived."""
        for _ in range(MOST_TURNS):
            if not subscription.pending_msgs:
                return
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """Stop; what has arrived but wasn't handed to the callback is dropped."""
        self._client.interests.discard(self)
        if self._subscription is not None:
            with suppress(NatsError, OSError):
                await self._subscription.unsubscribe()


class Client:
    """One connection of this process, and what waits for its ups and downs."""

    def __init__(self, url: BrokerUrl, *, name: str, is_quiet: bool = False) -> None:
        self.url = url
        self.nc = NatsClient()
        self.up = asyncio.Event()
        self.replies = Replies(self.up)
        self.interests: set[Interest] = set()
        self.on_down: list[Callable[[], None]] = []
        self.on_up: list[Callable[[], None]] = []
        self._name = name
        self._complaints = Complaints(is_quiet=is_quiet)
        self._tries = 0
        self._last_try = 0.0
        self._guard: asyncio.Task[None] | None = None
        self._flushes: set[asyncio.Task[None]] = set()

    def go_to(self, server: str, *, token: str) -> None:
        """Connect to that server in place of the URL's."""
        self.url = replace(self.url, text=server, servers=(server,), token=token)

    async def open(self) -> None:
        """Connect within the URL's `connect_timeout`. Raises: BrokerError."""
        await self._connect(self.url.connect_timeout)
        self.up.set()
        await self.subscribe(f"{self.replies.prefix}*", self.replies.arrived)
        self._guard = asyncio.create_task(self._revive_when_closed())

    async def close(self) -> None:
        """Close for good; what was published before is sent first."""
        if self._guard is not None:
            self._guard.cancel()
        self.up.clear()
        self.replies.fail("the connection is closing")
        await close_quietly(self.nc)
        self._drop_flushes()

    @property
    def where(self) -> str:
        return self.url.text

    async def subscribe(self, subject: str, callback: Callback) -> Interest:
        """Hand each message on `subject` to `callback`, also after a reconnect."""
        interest = Interest(self, subject, callback)
        try:
            await interest.renew(self.nc)
        except NatsError as error:
            raise self.unavailable(explain(error)) from None
        self.interests.add(interest)
        return interest

    async def publish(self, subject: str, body: bytes, *, headers: dict[str, str]) -> None:
        """Send without waiting for anything. Raises: BrokerUnavailable, when it can't be kept."""
        try:
            await self.nc.publish(subject, body, headers=headers)
        except NatsError as error:
            raise self.unavailable(explain(error)) from None

    async def api(
        self, subject: str, body: dict[str, Any] | None = None, *, timeout: float = API_TIMEOUT
    ) -> dict[str, Any]:
        """Call JetStream's JSON API. Raises: ApiError, BrokerUnavailable."""
        request = msgspec.json.encode(body) if body is not None else b""
        try:
            reply = await self.replies.ask(f"$JS.API.{subject}", request, timeout=timeout)
        except Lost as lost:
            raise self.unavailable(str(lost)) from None
        if is_no_responders(reply):
            raise self.unavailable("JetStream doesn't answer; is it enabled?")
        answer: dict[str, Any] = msgspec.json.decode(reply.data)
        if "error" in answer:
            raise ApiError(subject, answer["error"])
        return answer

    async def round_trip(self, within: float) -> None:
        """Return when the server has answered all that was sent, or after that many seconds.

        The flush goes on alone: when one is cancelled or times out, the PONG that comes
        later ends nats-py's read loop (2.16: InvalidStateError in `_process_pong`).
        """
        flush = asyncio.create_task(self.nc.flush(timeout=FOR_EVER))
        self._flushes.add(flush)
        flush.add_done_callback(self._flushes.discard)
        await asyncio.wait({flush}, timeout=within)

    def unavailable(self, cause: str) -> BrokerUnavailable:
        """Return the error in three lines: which server, why, and what to start."""
        return self._complaints.unavailable(self.url, cause)

    async def _connect(self, within: float) -> None:
        calls = {
            "disconnected_cb": self._went_down,
            "reconnected_cb": self._came_up,
            "reconnect_to_server_handler": self._next_server,
        }
        self.nc = await dial(self.url, self._complaints, within=within, name=self._name, **calls)
        self.replies.attach(self.nc)

    async def _went_down(self) -> None:
        if not self.up.is_set():
            return
        self.up.clear()
        self._tries, self._last_try = 0, time.monotonic()
        self._complaints.went_down(self.where)
        # nats-py 2.16 lets requests hang to their time-out when the link dies.
        self.replies.fail("the connection was lost")
        self._drop_flushes()
        for tell in self.on_down:
            tell()

    async def _came_up(self) -> None:
        if self.up.is_set():
            return
        self._complaints.came_up(self.where)
        self.up.set()
        for tell in self.on_up:
            tell()

    def _drop_flushes(self) -> None:
        for flush in self._flushes:
            flush.cancel()

    def _next_server(
        self, servers: list[Server], info: dict[str, Any]
    ) -> tuple[Server | None, float]:
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(self._tries // len(servers), 10))
        server = servers[self._tries % len(servers)]
        self._tries += 1
        self._last_try = time.monotonic()
        return server, wait * (0.5 + random() / 2)

    async def _revive_when_closed(self) -> None:
        """Begin anew where nats-py gives up: `-ERR` closes it for good, whatever its options."""
        while True:
            await asyncio.sleep(CHECK_EVERY)
            is_stuck = not self.up.is_set() and time.monotonic() - self._last_try > STUCK_AFTER
            if self.nc.is_closed or is_stuck:
                await self._went_down()
                await close_quietly(self.nc)
                with suppress(BrokerError, NatsError, OSError):
                    await self._connect(STUCK_AFTER)
                    for interest in list(self.interests):
                        await interest.renew(self.nc)
                    await self._came_up()
