"""Making one connection: tries within a time-out, and refuses servers that can't serve."""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from contextlib import suppress
from typing import Any

import anyio
from nats.aio.client import Client as NatsClient
from nats.errors import Error as NatsError

from mega.adapters.nats.complaints import Complaints, explain, is_refusal
from mega.adapters.nats.credentials import login, require_nkeys
from mega.adapters.nats.transport import Transport
from mega.errors import BrokerError, BrokerTooOld
from mega.urls import BrokerUrl

__all__ = ["abort", "close_quietly", "dial"]

OLDEST_SERVER = (2, 12)
FIRST_WAIT, LONGEST_WAIT = 0.5, 2.0
LONGEST_TRY = 2.0
PING_INTERVAL = 10**6  # `Pulse` asks more often
CLOSE_WITHIN = 2.0
CANCEL_AGAIN_AFTER = 0.1
#: From nats-py, and from asyncio's `writelines` on a lost link (python/cpython#136234).
STRAY_ERRORS = RuntimeError, AssertionError, AttributeError, TypeError


async def dial(
    url: BrokerUrl, complaints: Complaints, *, within: float, **options: Any
) -> Transport:
    """Return a connection that reconnects for ever. `options` are more of `nats.connect`.

    Raises: BrokerUnavailable after `within` seconds, BrokerError at once when it is refused.
    """
    require_nkeys(url)
    options |= login(url)
    nc = await Dialing(url, complaints).connect(within, options)
    try:
        check_version(url, nc)
        check_tls(url, nc)
    except BrokerError:
        await close_quietly(nc)
        raise
    return nc


class Dialing:
    """One call of `dial`. nats-py tries again by itself; each failed try becomes one line."""

    def __init__(self, url: BrokerUrl, complaints: Complaints) -> None:
        self._url = url
        self._complaints = complaints
        self._nc = Transport()
        self._is_done = False
        self._cause = "no answer"
        self._refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def connect(self, within: float, options: dict[str, Any]) -> Transport:
        """Return the connection, or raise why there is none."""
        try:
            if await self._has_connected(within, options):
                return self._nc
            raise self._failure()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await close_quietly(self._nc)
            raise

    async def _has_connected(self, within: float, options: dict[str, Any]) -> bool:
        connecting = asyncio.create_task(self._begin(options))
        try:
            await asyncio.wait(
                {connecting, self._refused}, timeout=within, return_when=FIRST_COMPLETED
            )
            return connecting.done() and connecting.result() is None
        except (NatsError, OSError) as error:
            self._cause = explain(error)
            return False
        finally:
            self._is_done = True
            with anyio.CancelScope(shield=True):
                await cancel_until_done(connecting)

    async def _begin(self, options: dict[str, Any]) -> None:
        await self._nc.connect(
            servers=list(self._url.servers),
            error_cb=self._failed,
            connect_timeout=min(LONGEST_TRY, self._url.connect_timeout),  # type: ignore[arg-type]  # any number will do
            reconnect_time_wait=FIRST_WAIT,  # type: ignore[arg-type]  # any number
            max_reconnect_attempts=-1,
            ping_interval=PING_INTERVAL,
            **options,
        )

    async def _failed(self, error: Exception) -> None:
        """Take an error of nats-py, which goes on calling this for the connection's life."""
        if self._is_done:
            self._complaints.note(self._url.text, error)
            return
        self._cause = explain(error)
        if is_refusal(error) and not self._refused.done():
            self._refused.set_result(None)
        wait = self._nc.options["reconnect_time_wait"]
        self._complaints.failed_try(self._url.text, self._cause, wait)
        self._nc.options["reconnect_time_wait"] = min(2 * wait, LONGEST_WAIT)

    def _failure(self) -> BrokerError:
        if not self._refused.done():
            return self._complaints.unavailable(self._url, self._cause)
        return BrokerError(
            f"{self._url.text} refused this client.",
            where=f"Cause: {self._cause}.",
            hint="Check user, password, token or creds of the broker URL.",
        )


async def cancel_until_done(connecting: asyncio.Task[None]) -> None:
    """Cancel again and again: before Python 3.12, `wait_for` in nats-py may swallow one."""
    while not connecting.done():
        connecting.cancel()
        await asyncio.wait({connecting}, timeout=CANCEL_AGAIN_AFTER)


def check_version(url: BrokerUrl, nc: NatsClient) -> None:
    """Refuse a server that ignores what the queue is built on. Raises: BrokerTooOld."""
    version = nc.connected_server_version
    try:
        found = (version.major, version.minor)
    except ValueError:
        return  # a build without a version; the echoed stream configs are compared anyway
    if found < OLDEST_SERVER:
        raise BrokerTooOld(
            f"{url.text} runs nats-server {found[0]}.{found[1]}; 2.12 is needed.",
            hint="Older servers ignore delayed messages and time-to-live in silence.",
        )


def check_tls(url: BrokerUrl, nc: NatsClient) -> None:
    """Refuse a server in the clear: nats-py 2.16 goes on when the server doesn't ask for TLS."""
    if url.is_tls and not nc._server_info.get("tls_required"):
        raise BrokerError(f"{url.text} doesn't offer TLS, which tls:// asks for.")


async def close_quietly(nc: NatsClient) -> None:
    """Close, whatever state the connection is in; nats-py asserts that it was once begun."""
    closing = asyncio.create_task(nc.close())
    await asyncio.wait({closing}, timeout=CLOSE_WITHIN)
    abort(nc)  # what closing waits for: a dead link takes nothing more
    await cancel_until_done(closing)
    with suppress(asyncio.CancelledError, NatsError, OSError, *STRAY_ERRORS):
        closing.result()


def abort(nc: NatsClient) -> None:
    """End the connection at once; what it had to send is lost."""
    writer = getattr(nc._transport, "_io_writer", None)
    if writer is not None:
        writer.transport.abort()
