"""FastStream on JetStream: a pull subscriber on a work-queue stream."""

from __future__ import annotations

from typing import Any

from faststream import FastStream
from faststream.nats import JStream, NatsBroker, PullSub
from nats.js.api import ConsumerConfig, RetentionPolicy

from benchmarks.contenders import Contender
from benchmarks.order import Body

__all__ = ["FastStreamJobs"]

SUBJECT = "jobs.bench"
BATCH = 100
FETCH_TIMEOUT = 0.1


class FastStreamJobs(Contender):
    """The settings are those of its fastest drain: batches, and no `max_workers`."""

    def __init__(self, server: str, body: Body, *, ack_wait: float) -> None:
        super().__init__(server, body, ack_wait=ack_wait)
        self._broker = NatsBroker(server, logger=None)
        self._stream = JStream(
            name="JOBS", retention=RetentionPolicy.WORK_QUEUE, subjects=[SUBJECT]
        )
        self._broker.publisher(SUBJECT, stream=self._stream)

    async def __aenter__(self) -> FastStreamJobs:
        await self._broker.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._broker.stop()

    async def enqueue(self, payload: dict[str, Any]) -> None:
        await self._broker.publish(payload, SUBJECT, stream="JOBS")

    async def work(self) -> None:
        subscribe = self._broker.subscriber(
            SUBJECT,
            stream=self._stream,
            durable="workers",
            config=ConsumerConfig(ack_wait=self.ack_wait),
            pull_sub=PullSub(batch_size=BATCH, timeout=FETCH_TIMEOUT),
        )
        subscribe(self.body)
        await FastStream(self._broker, logger=None).run()
