"""The broker on NATS JetStream: holds the parts and forwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import anyio

from mega.adapters.nats.bulk import Bulk
from mega.adapters.nats.claims import NatsClaims
from mega.adapters.nats.client import Client
from mega.adapters.nats.consume import Consumption
from mega.adapters.nats.delivery import Desk
from mega.adapters.nats.guards import NatsGuards
from mega.adapters.nats.handoff import TimeSlice
from mega.adapters.nats.layout import window
from mega.adapters.nats.leases import Leases
from mega.adapters.nats.letters import NatsLetters
from mega.adapters.nats.presence import Presence
from mega.adapters.nats.publisher import Publisher
from mega.adapters.nats.schedules import NatsSchedules
from mega.adapters.nats.server import EmbeddedServer
from mega.adapters.nats.server_clock import ServerClock, utc_now
from mega.adapters.nats.state import NatsState
from mega.adapters.nats.streams import Streams
from mega.ports import OnBegin, Outcome, Queue, Receipt, Run
from mega.urls import BrokerUrl
from mega.wire.message import Message, server_id

__all__ = ["NatsBroker"]


class NatsBroker:
    """Implements `ports.Broker`, on asyncio only, as nats-py is."""

    def __init__(
        self,
        url: BrokerUrl,
        *,
        embedded: EmbeddedServer | None = None,
        is_provisioning: bool = True,
        name: str,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._url = url
        self._embedded = embedded
        self._is_provisioning = is_provisioning
        self._client = Client(url, name=name)
        self._leases = Leases(url, name=f"{name} leases", main=self._client)
        self._clock = ServerClock(self._client, now)
        self._publisher = Publisher(self._client, self._clock)
        self._bulk = Bulk(self._client, self._publisher)
        self._streams = Streams(self._client, is_provisioning=is_provisioning)
        self._state = NatsState(self._client, self._publisher)
        self._letters = NatsLetters(self._client, self._publisher, self._streams)
        self._claims = NatsClaims(self._client, self._publisher)
        self._schedules = NatsSchedules(self._client, self._publisher)
        self._guards = NatsGuards(self._client, self._publisher, self._clock)
        self._desks: dict[str, Desk] = {}
        self._time_slice = TimeSlice()
        self._watch: asyncio.Task[None] | None = None

    @property
    def state(self) -> NatsState:
        return self._state

    @property
    def claims(self) -> NatsClaims:
        return self._claims

    @property
    def guards(self) -> NatsGuards:
        return self._guards

    @property
    def schedules(self) -> NatsSchedules:
        return self._schedules

    @property
    def duplicate_window(self) -> float:
        return window(self._url)

    @property
    def letters(self) -> NatsLetters:
        return self._letters

    @property
    def max_size(self) -> int:
        return self._client.nc.max_payload

    async def __aenter__(self) -> NatsBroker:
        try:
            await self._enter()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._leave()
            raise
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        with anyio.CancelScope(shield=True):
            await self._leave()

    def describe(self) -> str:
        if self._embedded is None:
            return self._url.text
        return f"{self._client.where}  embedded, data in {self._embedded.folder}/"

    async def provide(self, queue: Queue, *, is_serving: bool = False) -> None:
        await self._streams.provide(queue, is_tuning=is_serving)

    async def attend(self, worker: str) -> None:
        presence = Presence(worker, ack_wait=self._url.ack_wait)
        await presence.begin(self._publisher)
        self._leases.presence = presence

    def now(self) -> datetime:
        return self._clock.now()

    async def publish(
        self, message: Message, *, due_at: datetime | None = None, after: float = 0.0
    ) -> Receipt:
        return await self._publisher.publish(
            message, server_id=server_id(message), due_at=due_at, after=after
        )

    async def publish_many(
        self,
        messages: Sequence[Message],
        *,
        due_at: datetime | None = None,
        after: float = 0.0,
        on_begin: OnBegin | None = None,
    ) -> list[Outcome]:
        if after:
            due_at = await self._publisher.due_in(after)
        outgoings = [
            self._publisher.outgoing(message, server_id=server_id(message), due_at=due_at)
            for message in messages
        ]

        async def begin(part: slice) -> None:
            if on_begin is not None:
                await on_begin(messages[part])

        return await self._bulk.store(outgoings, begin)

    async def consume(self, queue: Queue, run: Run, *, draining: anyio.Event) -> None:
        consumption = Consumption(
            self._desk(queue),
            run,
            time_slice=self._time_slice,
            standstill=self._leases.standstill,
            hasten=self._leases.hasten,
        )
        self._leases.watch(consumption.held)
        self._client.on_down.append(consumption.link_lost)
        try:
            await consumption.serve(draining)
        finally:
            self._client.on_down.remove(consumption.link_lost)
            self._leases.unwatch(consumption.held)

    def _desk(self, queue: Queue) -> Desk:
        desk = self._desks.get(queue.subject)
        if desk is None or desk.queue != queue:
            parts = (self._client, self._publisher, self._streams, self._letters, self._state)
            desk = Desk(*parts, queue)
            self._desks[queue.subject] = desk
        return desk

    async def _enter(self) -> None:
        if self._embedded is not None:
            address = await self._embedded.start()
            self._watch = asyncio.create_task(self._embedded.watch())
            for part in (self._client, self._leases):
                part.go_to(address.url, token=address.token)
        await self._client.open()
        if self._is_provisioning:
            await self._streams.provide_buckets()
        await self._clock.measure()

    async def _leave(self) -> None:
        await self._leases.close()
        await self._state.close()
        await self._client.close()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
        if self._embedded is not None:
            await self._embedded.close()
