"""Running a queue: long-lived slots that take from one standing pull.

Only asyncio's own primitives are used here: anyio's pieces cost more for each job than the
whole way through NATS (findings/speed.md, facts 2 and 3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import anyio
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from mega.adapters.nats.delivery import Desk, NatsDelivery
from mega.adapters.nats.handoff import Handoff, TimeSlice
from mega.adapters.nats.leases import Held
from mega.adapters.nats.pull import End, Window
from mega.adapters.nats.standstill import Standstill
from mega.errors import BrokerError, MegaError, PayloadError, one_line
from mega.ports import Run
from mega.wire.message import as_it_came, unpack

__all__ = ["Consumption"]

LEAST_AHEAD = 32
FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0
GRACE = 0.2
NAK = b"-NAK"


class Consumption:
    """One call of `consume`. `held` are the deliveries in hand, begun or not."""

    def __init__(
        self,
        desk: Desk,
        run: Run,
        *,
        time_slice: TimeSlice,
        standstill: Standstill,
        hasten: Callable[[float], None],
    ) -> None:
        self.held: Held = {}
        self._desk = desk
        self._client = desk.client
        self._queue = desk.queue
        self._run = run
        self._standstill = standstill
        self._hasten = hasten
        self._slots = desk.queue.options.slots
        self._ready: Handoff[NatsDelivery | None] = Handoff(time_slice)
        self._is_ahead = False
        self._is_draining = False
        self._is_minding = False
        self._window: Window | None = None
        self._failures = 0
        self._repeats = desk.repeats
        self._look: asyncio.Task[None] | None = None
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
                    delivery.scope = scope
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
                window = await self._open_window()
                if not must_provide:
                    self._look_again()
                why = await window.ended()
                must_provide = why == "missing"
            except BrokerError as error:
                why = "refused"
                if self._client.up.is_set():  # else that is what was said
                    self._say(one_line(error))
            await self._pause(why)

    async def _provide(self) -> None:
        limits = await self._desk.streams.provide(self._queue)
        self._is_ahead = 0 < limits.in_hand <= self._slots
        self._desk.ack_wait = limits.ack_wait
        self._hasten(limits.ack_wait)

    def _look_again(self) -> None:
        """Learn what someone changed at the consumer; the window goes on meanwhile."""
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._learn())

    async def _learn(self) -> None:
        was_ahead = self._is_ahead
        with suppress(BrokerError):  # the window's own end tells
            await self._provide()
        if was_ahead and not self._is_ahead:
            self._end_window("crowded")

    def _say(self, text: str) -> None:
        self._repeats.say(text, f"{self._queue.subject}: {text}")

    async def _open_window(self) -> Window:
        window = Window(self._client, self._queue, self._credit, self._arrived, self._say)
        self._window = window
        self._standstill.inboxes[window.inbox] = self._desk
        await window.open()
        return window

    async def _close_window(self) -> None:
        window, self._window = self._window, None
        if window is not None:
            await window.close()
            self._standstill.inboxes.pop(window.inbox, None)

    async def _pause(self, why: End) -> None:
        """Wait before the next window, longer each time while it is refused."""
        if why == "missing":
            self._say("its consumer is missing; creating it again")
        if why in ("missing", "refused", "silent"):
            self._failures += 1
            await asyncio.sleep(min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(self._failures - 1, 10)))
        elif self._client.up.is_set():
            self._failures = 0
            self._repeats.forget()
            await asyncio.sleep(FIRST_WAIT)  # a server that shuts down may end each one at once

    def _credit(self) -> int:
        if self._is_draining:
            return 0
        # The server lets no more be in hand than slots, so asking ahead only saves the way:
        # the next message leaves when an ack arrives.
        return max(self._slots, LEAST_AHEAD) if self._is_ahead else self._slots - len(self.held)

    def link_lost(self) -> None:
        """Pull anew once the connection is back: the server forgot the old pull."""
        self._end_window("lost")

    def _end_window(self, why: End) -> None:
        if self._window is not None:
            self._window.end(why)

    def _arrived(self, message: Msg) -> None:
        delivery = NatsDelivery(message, self._desk)
        place, held = delivery.place, self.held
        if self._desk.has_ended(place):
            self._do(self._end_again(delivery))
        elif place in held:
            # Handed out again while it runs or waits here, after an outage longer than ack_wait:
            # the run goes on, and its lease and its ack go by the newest hand-over. Or someone
            # shortened ack_wait.
            held[place].go_by(delivery, is_fresh=self._is_fresh(delivery))
            self._look_again()
        elif self._is_fresh(delivery):
            self._take_in(delivery)
        else:
            self._do(self._begin_if_heard(delivery))

    def _is_fresh(self, delivery: NatsDelivery) -> bool:
        """Whether its lease can't be over on its arrival, or was renewed meanwhile."""
        standstill = self._standstill
        if delivery.arrived_at <= standstill.sure_until or not standstill.may_be_over(delivery):
            return True
        return standstill.was_heard(delivery)

    async def _begin_if_heard(self, delivery: NatsDelivery) -> None:
        """Begin what came while the loop stood still, unless its lease may be over.

        It is another worker's then, or comes back by itself.
        """
        await asyncio.sleep(GRACE)  # this connection may be faster than the one that listens
        if self._standstill.was_heard(delivery):
            self._take_in(delivery)
        else:
            self._desk.say_late()

    async def _end_again(self, delivery: NatsDelivery) -> None:
        """Acknowledge what was ended here. With the first ack the job's record may be lost."""
        with suppress(BrokerError):  # it comes back once more
            await self._desk.state.repeat(job_id_of(delivery))
            await delivery.ack()

    def _take_in(self, delivery: NatsDelivery) -> None:
        self.held[delivery.place] = delivery
        if self._is_draining:
            self._do(self._give_back(delivery))
            return
        self._ready.put(delivery)
        if len(self.held) > self._slots and not self._is_minding:
            self._is_minding = True
            self._do(self._mind_the_slots())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what is rare beside the hot path; the end of `serve` waits for it."""
        task = asyncio.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _mind_the_slots(self) -> None:
        """Give back what is too much: someone raised max_ack_pending while we ask ahead."""
        await asyncio.sleep(GRACE)  # a slot may have answered its job and not be free yet
        self._is_minding = False
        waiting = self._ready.waiting
        if len(self.held) > self._slots and waiting and not self._is_draining:
            self._is_ahead = False
            self._end_window("crowded")
            excess = min(len(waiting), len(self.held) - self._slots)
            for delivery in [waiting.pop() for _ in range(excess)]:
                if delivery is not None:
                    await self._give_back(delivery)

    async def _stop_taking(self, keeper: asyncio.Task[None]) -> None:
        """Begin nothing more, and give back what was not begun. Calling it again is harmless."""
        self._is_draining = True
        for delivery in self._take_all_waiting():
            self._do(self._give_back(delivery))
        for _ in range(self._slots):
            self._ready.put(None)
        await cancel_and_wait([keeper] if self._look is None else [keeper, self._look])
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
            await delivery.give_back(message.next_copy(attempt=attempt, enqueued_at=stamp))
        except MegaError:
            with suppress(NatsError):
                await self._client.nc.publish(delivery.reply, NAK)
        finally:
            self.held.pop(delivery.place, None)


def job_id_of(delivery: NatsDelivery) -> str:
    subject, headers, body = delivery.subject, delivery.headers, delivery.body
    try:
        return unpack(subject, headers, body, fallback_id=delivery.fallback_id).id
    except PayloadError:
        return as_it_came(subject, headers, body, fallback_id=delivery.fallback_id).id


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
