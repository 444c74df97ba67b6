"""The renewer of leases: a thread with its own connection, so a blocked event loop renews too."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from nats.errors import Error as NatsError

from mega.adapters.nats.client import Client
from mega.adapters.nats.delivery import NatsDelivery, Place
from mega.errors import BrokerError
from mega.options import BrokerUrl

__all__ = ["Held", "Leases"]

Held = dict[Place, NatsDelivery]

IN_PROGRESS = b"+WPI"
BEATS_PER_WAIT = 3
#: No `ack_wait` is shorter than a second.
SHORTEST_BEAT = 1 / BEATS_PER_WAIT
JOIN_WITHIN = 5.0

logger = logging.getLogger("mega.broker")


class Leases:
    """Says for each message in hand that it is being worked on, each third of `ack_wait`."""

    def __init__(self, url: BrokerUrl, *, name: str) -> None:
        self._url = url
        self._name = name
        self._every = url.ack_wait / BEATS_PER_WAIT
        self._held: list[Held] = []
        self._thread: threading.Thread | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._is_renewing = False

    @property
    def is_renewing(self) -> bool:
        """Whether the thread has its connection."""
        return self._is_renewing

    def go_to(self, server: str, *, token: str) -> None:
        """Connect to that server in place of the URL's."""
        self._url = replace(self._url, text=server, servers=(server,), token=token)

    def watch(self, held: Held) -> None:
        """Renew what is in `held`, from now on; start the thread if it doesn't run."""
        self._held.append(held)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mega-leases", daemon=True)
            self._thread.start()

    def unwatch(self, held: Held) -> None:
        """Renew it no more."""
        self._held = [other for other in self._held if other is not held]

    def hasten(self, ack_wait: float) -> None:
        """Renew often enough for a consumer that has this `ack_wait`."""
        self._every = min(self._every, ack_wait / BEATS_PER_WAIT)

    async def close(self) -> None:
        """End the thread."""
        self._is_stopped = True
        if self._renewing is not None:
            with suppress(RuntimeError):  # its loop is closed already
                self._renewing.get_loop().call_soon_threadsafe(self._renewing.cancel)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, JOIN_WITHIN)

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._renew_until_stopped())

    async def _renew_until_stopped(self) -> None:
        self._renewing = asyncio.current_task()
        while not self._is_stopped:
            client = Client(self._url, name=self._name, is_quiet=True)
            try:
                await client.open()
                await self._beat(client)
            except BrokerError as error:
                logger.warning("leases can't be renewed: %s", error.args[0])
                await asyncio.sleep(self._every)
            except Exception:  # without this thread, live jobs would run twice
                logger.exception("leases can't be renewed")
                await asyncio.sleep(self._every)
            finally:
                await client.close()

    async def _beat(self, client: Client) -> None:
        clock = asyncio.get_running_loop().time
        last_beat = -math.inf
        while not self._is_stopped:
            self._is_renewing = client.up.is_set()
            if self._is_renewing and clock() - last_beat >= self._every:
                last_beat = clock()
                await self._renew(client)
            await asyncio.sleep(min(self._every, SHORTEST_BEAT) / 2)

    async def _renew(self, client: Client) -> None:
        for held in self._held:
            for delivery in snapshot(held):
                with suppress(NatsError):
                    await client.nc.publish(delivery.reply, IN_PROGRESS)


def snapshot(held: Mapping[Place, NatsDelivery]) -> list[NatsDelivery]:
    """Return the deliveries while the event loop's thread adds and removes."""
    while True:
        try:
            return list(held.values())
        except RuntimeError:  # changed size: a collection ran inside and let the other thread on
            continue
