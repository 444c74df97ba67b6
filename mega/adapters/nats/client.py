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
from nats.aio.client import PING_PROTO, Server
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from mega.adapters.nats.complaints import Complaints, explain, logger
from mega.adapters.nats.dial import abort, close_quietly, dial
from mega.adapters.nats.outbox import Outbox, Sent
from mega.adapters.nats.pulse import LOOK_EVERY, Pulse
from mega.adapters.nats.replies import Lost, Replies, is_no_responders
from mega.adapters.nats.transport import Transport
from mega.errors import BrokerError, BrokerUnavailable
from mega.urls import BrokerUrl

__all__ = ["ApiError", "Callback", "Client", "Interest"]

Callback: TypeAlias = Callable[[Msg], Awaitable[None]]

FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0
CLOSE_WITHIN = 2.0
MOST_TURNS = 100
NO_LIMIT = 0
API_TIMEOUT = 5.0
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
        # Over its limits nats-py would drop messages; what comes here was asked for.
        self._subscription = await nc.subscribe(
            self._subject,
            cb=self._callback,
            pending_msgs_limit=NO_LIMIT,
            pending_bytes_limit=NO_LIMIT,
        )

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

    def __init__(
        self,
        url: BrokerUrl,
        *,
        name: str,
        is_quiet: bool = False,
        longest_wait: float = LONGEST_WAIT,
    ) -> None:
        self.url = url
        self.nc = Transport()
        self.up = asyncio.Event()
        self.replies = Replies(self.up)
        self.interests: set[Interest] = set()
        self.on_down: list[Callable[[], None]] = []
        self.on_up: list[Callable[[], None]] = []
        self.before_acks: list[Callable[[], Awaitable[None]]] = []
        self._name = name
        self._complaints = Complaints(is_quiet=is_quiet)
        self._longest_wait = longest_wait
        self.outbox: Outbox[Sent] = Outbox()
        self.on_answer: list[Callable[[], None]] = [self.outbox.confirm]
        self._pulse = Pulse(self._answered)
        self._tries = 0
        self._last_try = 0.0
        self._is_closing = False
        self._guard: asyncio.Task[None] | None = None
        self._resending: asyncio.Task[None] | None = None

    def go_to(self, server: str, *, token: str) -> None:
        """Connect to that server in place of the URL's."""
        self.url = replace(self.url, text=server, servers=(server,), token=token)

    async def open(self) -> None:
        """Connect within the URL's `connect_timeout`. Raises: BrokerError."""
        await self._connect(self.url.connect_timeout)
        self._pulse.forget()
        self.up.set()
        await self.subscribe(f"{self.replies.prefix}*", self.replies.arrived)
        self._guard = asyncio.create_task(self._keep_alive())

    async def close(self) -> None:
        """Close for good; what was published before is sent first."""
        self._is_closing = True
        if self._guard is not None:
            self._guard.cancel()
        if self._resending is not None:
            self._resending.cancel()
        self.up.clear()
        self.replies.fail("the connection is closing")
        await close_quietly(self.nc)

    @property
    def proven_at(self) -> float:
        """Since when, by the lease clock, all that arrives must have left the server."""
        return self._pulse.proven_at

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

    async def publish(self, subject: str, body: bytes, *, headers: dict[str, str] | None) -> None:
        """Send without waiting for anything. Raises: BrokerUnavailable, when it can't be kept."""
        try:
            await self.nc.publish(subject, body, headers=headers)
        except NatsError as error:
            raise self.unavailable(explain(error)) from None

    async def tell(
        self, subject: str, body: bytes = b"", *, headers: dict[str, str] | None = None
    ) -> None:
        """Publish what may be sent twice; it is, when the link breaks soon after.

        Raises: BrokerUnavailable, when it can't be kept.
        """
        await self.publish(subject, body, headers=headers)
        self.outbox.keep((subject, body, headers))

    async def send(self, frames: bytes) -> None:
        """Send whole messages of the protocol. Raises: BrokerUnavailable, while it is away."""
        if not self.nc.is_connected:
            raise self.unavailable("the connection is down")
        await self.nc._send_command(frames)
        await self.nc._flush_pending()

    async def api(
        self, subject: str, body: dict[str, Any] | None = None, *, timeout: float = API_TIMEOUT
    ) -> dict[str, Any]:
        """Call JetStream's JSON API; again when the link breaks, as every call may be repeated.

        Raises: ApiError, BrokerUnavailable.
        """
        request = msgspec.json.encode(body) if body is not None else b""
        reply = await self._ask_until_answered(f"$JS.API.{subject}", request, timeout)
        if is_no_responders(reply):
            raise self.unavailable("JetStream doesn't answer; is it enabled?")
        answer: dict[str, Any] = msgspec.json.decode(reply.data)
        if "error" in answer:
            raise ApiError(subject, answer["error"])
        return answer

    async def _ask_until_answered(self, subject: str, request: bytes, timeout: float) -> Msg:
        give_up_at = time.monotonic() + timeout
        while True:
            left = give_up_at - time.monotonic()
            try:
                return await self.replies.ask(subject, request, timeout=max(left, FIRST_WAIT))
            except Lost as lost:
                if self._is_closing or time.monotonic() + FIRST_WAIT > give_up_at:
                    raise self.unavailable(str(lost)) from None
            await asyncio.sleep(FIRST_WAIT / 2)  # nats-py may be closed, unnoticed as yet

    async def round_trip(self, within: float) -> bool:
        """Return when the server has taken all that was sent, or False after that many seconds.

        nats-py's `flush` would do it in another order, and cancels its future when it is
        given up: the PONG that comes later ends nats-py's read loop (2.16: InvalidStateError).
        """
        pong: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if not self.nc.is_connected:
            return False
        with suppress(NatsError):
            await self.nc._send_command(PING_PROTO)
            self.nc._pongs.append(pong)
            await self.nc._flush_pending()
        await asyncio.wait({pong}, timeout=within)
        return pong.done()

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
        drop_unsent(self.nc)
        if not self.up.is_set():
            return
        self.up.clear()
        self._tries, self._last_try = 0, time.monotonic()
        self._complaints.went_down(self.where)
        # nats-py 2.16 lets requests hang to their time-out when the link dies.
        self.replies.fail("the connection was lost")
        self._pulse.forget()
        for tell in self.on_down:
            tell()

    async def _came_up(self) -> None:
        if self.up.is_set():
            return
        self._complaints.came_up(self.where)
        self._pulse.forget()
        self.up.set()
        for tell in self.on_up:
            tell()
        again = self._resend(list(self.outbox.unconfirmed()), self._resending)
        self._resending = asyncio.create_task(again)

    async def _resend(self, unconfirmed: list[Sent], earlier: asyncio.Task[None] | None) -> None:
        """Send again what may be lost; an ack is the last that is heard of its job."""
        if earlier is not None:
            await asyncio.wait({earlier})
        for others in self.before_acks:
            await others()
        with suppress(BrokerUnavailable):  # it broke again, and so will this be done again
            for subject, body, headers in unconfirmed:
                await self.tell(subject, body, headers=headers)

    def _answered(self) -> None:
        for tell in self.on_answer:
            tell()

    def _next_server(
        self, servers: list[Server], info: dict[str, Any]
    ) -> tuple[Server | None, float]:
        wait = min(self._longest_wait, FIRST_WAIT * 2 ** min(self._tries // len(servers), 10))
        server = servers[self._tries % len(servers)]
        abort(self.nc)  # the last try's socket, which nats-py 2.16 leaves open
        self._tries += 1
        self._last_try = time.monotonic()
        return server, wait * (0.5 + random() / 2)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                await self._look_after_the_link()
            except Exception:  # nobody else would notice that the link is dead
                logger.exception("%s: the connection can't be looked after", self.where)

    async def _look_after_the_link(self) -> None:
        is_up = self.up.is_set()
        is_stuck = not is_up and time.monotonic() - self._last_try > STUCK_AFTER
        if self.nc.is_closed or is_stuck:
            await self._begin_anew()
        elif is_up:
            await self._part_from_the_dead()
        else:
            self._complaints.still_away(self.where)

    async def _part_from_the_dead(self) -> None:
        """Reconnect when nothing passes, or when nats-py waits for a dead link to close."""
        if not (self.nc.is_connected and self._pulse.is_felt(self.nc)):
            abort(self.nc)
            await self.nc.force_reconnect()

    async def _begin_anew(self) -> None:
        """Connect where nats-py gives up: `-ERR` closes it for good, whatever its options."""
        await self._went_down()
        await close_quietly(self.nc)
        with suppress(BrokerError, NatsError, OSError):
            await self._connect(STUCK_AFTER)
            for interest in list(self.interests):
                await interest.renew(self.nc)
            await self._came_up()


def drop_unsent(nc: NatsClient) -> None:
    """Empty nats-py's buffer, which it would send when it is connected again.

    A record in it would be put in the place of what other workers wrote meanwhile. What is to
    be sent again is in the outbox, or asked again.
    """
    nc._pending = []
    nc._pending_data_size = 0
