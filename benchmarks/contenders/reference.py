"""The bare client: the least that an honest worker on nats-py needs, and no product.

It has no retries, dead letters, time-outs or records: it is the ceiling for one process.
"""

from __future__ import annotations

import asyncio
from typing import Any

import nats
import orjson
from nats.aio.msg import Msg
from nats.js import api

from benchmarks.contenders import CONCURRENCY, Contender
from benchmarks.order import Body

__all__ = ["Reference"]

SUBJECT = "jobs.bench"
NEXT = "$JS.API.CONSUMER.MSG.NEXT.JOBS.workers"
EXPIRES = 30_000_000_000
WINDOW = 2 * CONCURRENCY
PENDING = 2000


class Reference(Contender):
    """`js.publish` and `js.publish_async`; one standing pull that feeds long-lived tasks.

    A window of twice the tasks keeps messages ready, so that no task waits for the server.
    """

    has_bulk = True

    def __init__(self, server: str, body: Body, *, ack_wait: float) -> None:
        super().__init__(server, body, ack_wait=ack_wait)
        self._ready: asyncio.Queue[Msg] = asyncio.Queue()
        self._asked = 0  # requested and not yet delivered
        self._held = 0  # delivered and not yet acknowledged

    async def __aenter__(self) -> Reference:
        self._nc = await nats.connect(self.server)
        self._js = self._nc.jetstream(publish_async_max_pending=PENDING)
        await self._js.add_stream(
            api.StreamConfig(
                name="JOBS", subjects=["jobs.>"], retention=api.RetentionPolicy.WORK_QUEUE
            )
        )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._nc.close()

    async def enqueue(self, payload: dict[str, Any]) -> None:
        await self._js.publish(SUBJECT, orjson.dumps(payload))

    async def enqueue_many(self, payloads: list[dict[str, Any]]) -> None:
        publish = self._js.publish_async
        await asyncio.gather(*[await publish(SUBJECT, orjson.dumps(one)) for one in payloads])

    async def work(self) -> None:
        async with self:
            await self._js.add_consumer(
                "JOBS",
                durable_name="workers",
                filter_subject=SUBJECT,
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=self.ack_wait,
                max_ack_pending=5000,
            )
            self._inbox = self._nc.new_inbox()
            await self._nc.subscribe(self._inbox, cb=self._arrived)
            await self._ask()
            await asyncio.gather(*[self._slot() for _ in range(CONCURRENCY)])

    async def _ask(self) -> None:
        free = WINDOW - self._held - self._asked
        if free >= CONCURRENCY // 2 or (free > 0 and not self._asked):
            self._asked += free
            request = b'{"batch":%d,"expires":%d}' % (free, EXPIRES)
            await self._nc.publish(NEXT, request, reply=self._inbox)

    async def _arrived(self, message: Msg) -> None:
        if not message.reply:  # a status: the request ended, and so much of it is undelivered
            self._asked -= int((message.headers or {}).get("Nats-Pending-Messages", 0))
            await self._ask()
            return
        self._asked -= 1
        self._held += 1
        self._ready.put_nowait(message)

    async def _slot(self) -> None:
        body, ready = self.body, self._ready
        while True:
            message = await ready.get()
            try:
                await body(orjson.loads(message.data))
                await message.ack()
            finally:
                self._held -= 1
                await self._ask()
