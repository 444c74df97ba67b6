"""The broker on NATS JetStream: holds the parts and forwards."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import anyio

from mega.adapters.nats.claims import NatsClaims
from mega.adapters.nats.client import Client
from mega.adapters.nats.consume import Consumption
from mega.adapters.nats.delivery import Desk
from mega.adapters.nats.leases import Leases
from mega.adapters.nats.publisher import Publisher
from mega.adapters.nats.server import EmbeddedServer
from mega.adapters.nats.state import NatsState
from mega.adapters.nats.streams import Streams
from mega.options import BrokerUrl
from mega.ports import Queue, Receipt, Run
from mega.wire.message import Message

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
    ) -> None:
        self._url = url
        self._embedded = embedded
        self._is_provisioning = is_provisioning
        self._client = Client(url, name=name)
        self._leases = Leases(url, name=f"{name} leases")
        self._publisher = Publisher(self._client)
        self._streams = Streams(self._client, is_provisioning=is_provisioning)
        self._state = NatsState(self._client, self._publisher)
        self._claims = NatsClaims(self._client, self._publisher)
        self._desks: dict[str, Desk] = {}
        self._watch: asyncio.Task[None] | None = None

    @property
    def state(self) -> NatsState:
        return self._state

    @property
    def claims(self) -> NatsClaims:
        return self._claims

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

    async def publish(self, message: Message, *, due_at: datetime | None = None) -> Receipt:
        first = message.attempt == 1
        server_id = message.id if first else f"{message.id}.{message.attempt}"
        return await self._publisher.publish(message, server_id=server_id, due_at=due_at)

    async def consume(self, queue: Queue, run: Run, *, draining: anyio.Event) -> None:
        consumption = Consumption(self._desk(queue), run, self._leases.hasten)
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
            desk = Desk(self._client, self._publisher, self._streams, queue)
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

    async def _leave(self) -> None:
        await self._leases.close()
        await self._client.close()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
        if self._embedded is not None:
            await self._embedded.close()
