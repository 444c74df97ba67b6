"""The renewer of leases: a thread with its own connection, so a blocked event loop renews too.

Where that connection is away or dead, the leases are renewed over the main one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace

from nats.errors import Error as NatsError

from mega.adapters.nats.client import Client
from mega.adapters.nats.complaints import Repeats
from mega.adapters.nats.delivery import NatsDelivery, Place
from mega.adapters.nats.lease_clock import lease_clock
from mega.adapters.nats.presence import Presence
from mega.adapters.nats.standstill import Standstill
from mega.errors import BrokerError
from mega.urls import BrokerUrl

__all__ = ["Held", "Leases"]

Held = dict[Place, NatsDelivery]

IN_PROGRESS = b"+WPI"
BEATS_PER_WAIT = 3
#: No `ack_wait` is shorter than a second.
LOOK_EVERY = 1 / 6
SHORTEST_CONFIRMATION = 0.25
#: A server that was away for longer than `ack_wait` hands everything in hand out again
#: within 0.5 to 1.5 s of its start, unless a beat comes first.
LONGEST_WAIT = 0.4
JOIN_WITHIN = 5.0

logger = logging.getLogger("mega.broker")


class Leases:
    """Says for each message in hand that it is being worked on, each third of `ack_wait`."""

    def __init__(self, url: BrokerUrl, *, name: str, main: Client) -> None:
        self._url = url
        self._name = name
        self._main = main
        self.standstill = Standstill(main)
        self.presence: Presence | None = None
        self._every = url.ack_wait / BEATS_PER_WAIT
        self._held: list[Held] = []
        self._thread: threading.Thread | None = None
        self._main_loop: asyncio.AbstractEventLoop | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._own: Client | None = None
        self._due_at = 0.0
        self._is_stopped = False
        self._repeats = Repeats()

    @property
    def is_renewing(self) -> bool:
        """Whether the thread has its connection."""
        return self._own is not None and self._own.up.is_set()

    def go_to(self, server: str, *, token: str) -> None:
        """Connect to that server in place of the URL's."""
        self._url = replace(self._url, text=server, servers=(server,), token=token)

    def watch(self, held: Held) -> None:
        """Renew what is in `held`, from now on; start the thread if it doesn't run."""
        self._held.append(held)
        if self._thread is None:
            self._main_loop = asyncio.get_running_loop()
            self.standstill.start()
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
        self.standstill.stop()
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
        connecting = asyncio.create_task(self._connect())
        try:
            was_still = False
            while not self._is_stopped:
                if self.standstill.is_still and not was_still:
                    self._beat_at_once()  # for acks whose leases nobody has renewed since
                was_still = self.standstill.is_still
                try:
                    await self.standstill.look(self._own)
                    await self._beat_when_due()
                except Exception:  # without this thread, live jobs would run twice
                    logger.exception("the leases can't be looked after")
                await asyncio.sleep(LOOK_EVERY)
        finally:
            connecting.cancel()
            await asyncio.wait({connecting})

    async def _connect(self) -> None:
        """Keep a connection, which comes back by itself once there was one."""
        while not self._is_stopped:
            client = Client(self._url, name=self._name, is_quiet=True, longest_wait=LONGEST_WAIT)
            client.on_up.append(self._beat_at_once)
            try:
                await client.open()
                self._own = client
                self._beat_at_once()
                await asyncio.Event().wait()
            except BrokerError as error:
                logger.debug("leases have no connection of their own: %s", error.args[0])
            except Exception:  # without this thread, live jobs would run twice
                logger.exception("leases have no connection of their own")
            finally:
                self._own = None
                await client.close()
            await asyncio.sleep(self._every)

    def _beat_at_once(self) -> None:
        self._due_at = 0.0

    async def _beat_when_due(self) -> None:
        begun = lease_clock()
        if begun < self._due_at:
            return
        in_hand = [*self._held, self.standstill.heard]
        deliveries = [each for held in in_hand for each in snapshot(held)]
        is_idle = self.presence is None and not deliveries and not self.standstill.is_still
        if is_idle or await self._renew_over_either(deliveries):
            self._due_at = begun + self._every
            self._repeats.forget()
            for delivery in deliveries:
                delivery.renewed(begun)
        else:
            self._complain(deliveries)

    async def _renew_over_either(self, deliveries: list[NatsDelivery]) -> bool:
        within = max(SHORTEST_CONFIRMATION, self._every / 2)
        if self._own is not None and await self._renew(self._own, deliveries, within):
            return True
        return await self._on_main_loop(self._renew(self._main, deliveries, within), within)

    async def _renew(self, client: Client, deliveries: list[NatsDelivery], within: float) -> bool:
        """Send a beat for each delivery; return whether the server has surely taken them."""
        if not client.up.is_set():
            return False
        if self.presence is not None:
            await self.presence.renew(client)
        with suppress(NatsError):
            # A job that is done keeps its lease while its ack waits for a loop that stands still.
            for reply in [*(each.reply for each in deliveries), *self.standstill.unsent_acks()]:
                await client.nc.publish(reply, IN_PROGRESS)
        return await client.round_trip(within)

    async def _on_main_loop(self, renewing: Coroutine[None, None, bool], within: float) -> bool:
        """Run it there; a loop that is blocked for that long runs nothing."""
        assert self._main_loop is not None
        try:
            asking = asyncio.run_coroutine_threadsafe(renewing, self._main_loop)
        except RuntimeError:  # that loop is closed
            renewing.close()
            return False
        answer = asyncio.wrap_future(asking)
        try:
            await asyncio.wait({answer}, timeout=within)
            return answer.done() and answer.result()
        finally:
            asking.cancel()  # also when this thread ends: the main loop must not keep it

    def _complain(self, deliveries: list[NatsDelivery]) -> None:
        lapsed = sum(delivery.lapsed for delivery in deliveries)
        if lapsed:
            text = "the leases of %d jobs in hand have lapsed: no connection reaches the server"
            self._repeats.say("lapsed", f"{text % lapsed}; other workers may start them too")


def snapshot(held: Mapping[Place, NatsDelivery]) -> list[NatsDelivery]:
    """Return the deliveries while the event loop's thread adds and removes."""
    while True:
        try:
            return list(held.values())
        except RuntimeError:  # changed size: a collection ran inside and let the other thread on
            continue
