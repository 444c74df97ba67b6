"""Hand-overs that come while the event loop stands still, or that the link has held up.

The loop can't take them from its socket, so their leases would run out unseen, others would
run them too, and here they would be begun long afterwards. The thread of the leases listens
in meanwhile, by its own connection; what it didn't hear of is not begun.
"""

from __future__ import annotations

import asyncio
import math

from nats.aio.msg import Msg

from mega.adapters.nats.client import Client, Interest
from mega.adapters.nats.delivery import Desk, NatsDelivery, Place
from mega.adapters.nats.lease_clock import lease_clock
from mega.errors import BrokerUnavailable

__all__ = ["Standstill"]

SHORTEST_WAIT = 1.0
#: The link is asked each second for an answer, so of a good one no less can be told.
LEAST_DOUBT = 1.5
TURN_EVERY = 0.25
STILL_AFTER = 0.5
#: What lay in the socket is read within so many turns, once there are turns again.
READ_WITHIN = 4


class Standstill:
    """Whether the event loop turns. `look` is for the other thread, the rest for the loop.

    `link` is the connection by which hand-overs come. `heard` are those that came while the
    loop didn't turn, to be renewed like those in hand.
    """

    def __init__(self, link: Client) -> None:
        self._link = link
        self.heard: dict[Place, NatsDelivery] = {}
        self.inboxes: dict[str, Desk] = {}
        #: No lease can be over of what arrives until then; a look at this costs least.
        self.sure_until = -math.inf
        self._turned_at = lease_clock()
        self._lasted = 0.0
        self._turns_since = READ_WITHIN
        self._next_turn: asyncio.TimerHandle | None = None
        self._interests: list[Interest] = []

    def start(self) -> None:
        """Watch the running loop."""
        self._turned_at = lease_clock()
        self._turn()

    def stop(self) -> None:
        """Watch it no more."""
        if self._next_turn is not None:
            self._next_turn.cancel()

    def may_be_over(self, delivery: NatsDelivery) -> bool:
        """Whether it may have been on its way for as long as its lease lasts."""
        longest = delivery.ack_wait - TURN_EVERY
        if delivery.arrived_at - self._link.proven_at > max(longest, LEAST_DOUBT):
            return True
        if delivery.arrived_at - self._turned_at > longest:
            return True
        return self._turns_since < READ_WITHIN and self._lasted > longest

    def was_heard(self, delivery: NatsDelivery) -> bool:
        """Whether its lease was renewed meanwhile, which then is its own; asked once."""
        heard = self.heard.pop(delivery.place, None)
        if heard is not None:
            delivery.take_lease_of(heard)
        return heard is not None

    @property
    def is_still(self) -> bool:
        """Whether the loop doesn't turn at the moment."""
        return lease_clock() - self._turned_at > STILL_AFTER

    def unsent_acks(self) -> list[str]:
        """Return to what the last acks go, where they may lie in this process, as nobody sends."""
        if not self.is_still:
            return []
        sent = self._link.outbox.latest()
        return [subject for subject, body, headers in sent if not body and headers is None]

    async def look(self, client: Client | None) -> None:
        """Listen by that connection as long as the loop doesn't turn."""
        is_still = self.is_still
        if is_still and not self._interests and client is not None and client.up.is_set():
            await self._listen(client)
        elif self._interests and not is_still and self._turns_since >= READ_WITHIN:
            await self._stop_listening()

    async def _stop_listening(self) -> None:
        """Forget what was heard: the loop has read it by now, or never will."""
        self.heard.clear()
        interests, self._interests = self._interests, []
        for interest in interests:
            await interest.stop()

    def _turn(self) -> None:
        now = lease_clock()
        lasted = now - self._turned_at
        if lasted > STILL_AFTER:
            # It may stand still again before it has read all of the last time.
            self._lasted = lasted + (self._lasted if self._turns_since < READ_WITHIN else 0.0)
            self._turns_since = 0
        else:
            self._turns_since += 1
        self._turned_at = now
        is_sure = self._turns_since >= READ_WITHIN
        fresh_until = min(now + SHORTEST_WAIT - TURN_EVERY, self._link.proven_at + LEAST_DOUBT)
        self.sure_until = fresh_until if is_sure else -math.inf
        self._next_turn = asyncio.get_running_loop().call_later(TURN_EVERY, self._turn)

    async def _listen(self, client: Client) -> None:
        for inbox, desk in self.inboxes.copy().items():

            async def hear(message: Msg, desk: Desk = desk) -> None:
                if message.reply:
                    delivery = NatsDelivery(message, desk)
                    self.heard[delivery.place] = delivery

            try:
                self._interests.append(await client.subscribe(inbox, hear))
            except BrokerUnavailable:
                return
