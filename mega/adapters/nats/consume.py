"""Running a queue: long-lived slots that take from one standing pull.

Only asyncio's own primitives are used here: anyio's pieces cost more for each job than the
whole way through NATS (findings/speed.md, facts 2 and 3).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from mega.adapters.nats.delivery import Desk, NatsDelivery
from mega.adapters.nats.handoff import Handoff
from mega.adapters.nats.leases import Held
from mega.adapters.nats.pull import End, Window
from mega.errors import BrokerError, MegaError
from mega.ports import Run
from mega.wire.message import unpack

__all__ = ["Consumption"]

LEAST_AHEAD = 32
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
NAK = b"-NAK"

logger = logging.getLogger("mega.broker")


class Consumption:
    """One call of `consume`. `held` are the deliveries in hand, begun or not."""

    def __init__(self, desk: Desk, run: Run, hasten: Callable[[float], None]) -> None:
        self.held: Held = {}
        self._desk = desk
        self._client = desk.client
        self._queue = desk.queue
        self._run = run
        self._hasten = hasten
        self._slots = desk.queue.options.slots
        self._ready: Handoff[NatsDelivery | None] = Handoff()
        self._is_ahead = False
        self._is_draining = False
        self._window: Window | None = None
        self._failures = 0
        self._errands: set[asyncio.Task[None]] = set()

    async def serve(self, draining: anyio.Event) -> None:
        """Take and run until draining is set and the runs in hand have ended."""
        # A run is cancelled by a scope: then it can tell that from a cancellation that its
        # handler let out, and its own shielded cleanup holds.
        scopes = [anyio.CancelScope() for _ in range(self._slots)]
        slots = [asyncio.create_task(self._slot(scope)) for scope in scopes]
        keeper = asyncio.create_task(self._keep_pulling())
        drain = asyncio.create_task(draining.wait())
        try:
            await asyncio.wait({keeper, drain, *slots}, return_when=asyncio.FIRST_COMPLETED)
            await self._stop_taking(keeper)
            await finish([keeper, *slots])
        finally:
            with anyio.CancelScope(shield=True):
                for scope in scopes:
                    scope.cancel()
                await asyncio.wait(slots)
                await cancel_and_wait([drain])
                await self._stop_taking(keeper)

    async def _slot(self, scope: anyio.CancelScope) -> None:
        ready, held, run = self._ready, self.held, self._run
        with scope:
            while (delivery := await ready.take()) is not None:
                try:
                    await run(delivery)
                finally:
                    held.pop(delivery.place, None)
                if self._is_draining:
                    return
                if not self._is_ahead and self._window is not None:
                    await self._window.ask()

    async def _keep_pulling(self) -> None:
        must_provide = True
        while True:
            try:
                await self._client.up.wait()
                await self._close_window()
                if must_provide:
                    await self._provide()
                await self._open_window()
                why = await self._current.ended()
                must_provide = why in ("missing", "crowded")
            except BrokerError as error:
                why = "refused"
                logger.warning("%s: %s", self._queue.subject, error.args[0])
            await self._pause(why)

    async def _provide(self) -> None:
        limits = await self._desk.streams.provide(self._queue)
        self._is_ahead = 0 < limits.in_hand <= self._slots
        self._hasten(limits.ack_wait)

    @property
    def _current(self) -> Window:
        assert self._window is not None
        return self._window

    async def _open_window(self) -> None:
        self._window = Window(self._client, self._queue.subject, self._credit, self._arrived)
        await self._window.open()

    async def _close_window(self) -> None:
        window, self._window = self._window, None
        if window is not None:
            await window.close()

    async def _pause(self, why: End) -> None:
        """Wait before the next window, longer each time while it is refused."""
        if why == "missing":
            logger.warning("%s: its consumer is missing; creating it again", self._queue.subject)
        is_fault = why in ("missing", "refused", "silent")
        self._failures = self._failures + 1 if is_fault else 0
        if is_fault:
            await asyncio.sleep(min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(self._failures - 1, 10)))

    def _credit(self) -> int:
        if self._is_draining:
            return 0
        # The server lets no more be in hand than slots, so asking ahead only saves the way:
        # the next message leaves when an ack arrives.
        return max(self._slots, LEAST_AHEAD) if self._is_ahead else self._slots - len(self.held)

    def link_lost(self) -> None:
        """Pull anew once the connection is back: the server forgot the old pull."""
        if self._window is not None:
            self._window.end("lost")

    def _arrived(self, message: Msg) -> None:
        delivery = NatsDelivery(message, self._desk)
        place, held = delivery.place, self.held
        if self._desk.has_ended(place):
            self._do(delivery.ack())
        elif place in held:
            # Handed out again while it runs here, after an outage longer than ack_wait: the
            # run goes on, and its lease and its ack go by the newest hand-over.
            held[place].reply = delivery.reply
        else:
            held[place] = delivery
            if self._is_draining:
                self._do(self._give_back(delivery))
            else:
                self._ready.put(delivery)
                if len(held) > self._slots:
                    self._mind_the_slots()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what is rare beside the hot path; the end of `serve` waits for it."""
        task = asyncio.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    def _mind_the_slots(self) -> None:
        # Someone raised max_ack_pending while we ask ahead of our slots.
        if self._is_ahead:
            self._is_ahead = False
            self._current.end("crowded")

    async def _stop_taking(self, keeper: asyncio.Task[None]) -> None:
        """Begin nothing more, and give back what was not begun. Calling it again is harmless."""
        self._is_draining = True
        for delivery in self._take_all_waiting():
            self._do(self._give_back(delivery))
        for _ in range(self._slots):
            self._ready.put(None)
        await cancel_and_wait([keeper])
        await self._close_window()
        if self._errands:
            await asyncio.wait(self._errands)

    def _take_all_waiting(self) -> list[NatsDelivery]:
        waiting = [delivery for delivery in self._ready.waiting if delivery is not None]
        self._ready.waiting.clear()
        return waiting

    async def _give_back(self, delivery: NatsDelivery) -> None:
        """Store a fresh copy, as its start would count as a crash after a bare NAK."""
        try:
            message = unpack(
                delivery.subject, delivery.headers, delivery.body, fallback_id=delivery.fallback_id
            )
            stamp = message.enqueued_at or delivery.stored_at
            attempt = message.attempt + delivery.starts - 1  # hand-overs before this one crashed
            await delivery.give_back(replace(message, enqueued_at=stamp, attempt=attempt))
        except MegaError:
            with suppress(NatsError):
                await self._client.nc.publish(delivery.reply, NAK)
        finally:
            self.held.pop(delivery.place, None)


async def finish(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for the tasks; raise what one of them raised."""
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


async def cancel_and_wait(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel the tasks that still go on, and return when they have ended."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
