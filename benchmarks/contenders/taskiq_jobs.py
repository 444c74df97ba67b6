"""taskiq on taskiq-nats: its pull-based JetStream broker."""

from __future__ import annotations

from typing import Any

from nats.js.api import ConsumerConfig
from taskiq.api import run_receiver_task
from taskiq_nats import PullBasedJetStreamBroker

from benchmarks.contenders import Contender
from benchmarks.order import Body

__all__ = ["Taskiq"]

BATCH = 100
# Without a time-out a fetch holds jobs back until the whole batch has come.
FETCH_TIMEOUT = 0.1
DURABLE = "taskiq_consumer"


class Taskiq(Contender):
    """The settings are those of its fastest drain that also has a low latency."""

    def __init__(self, server: str, body: Body, *, ack_wait: float) -> None:
        super().__init__(server, body, ack_wait=ack_wait)
        self._broker = PullBasedJetStreamBroker(
            server,
            durable=DURABLE,
            consumer_config=ConsumerConfig(durable_name=DURABLE, ack_wait=ack_wait),
            pull_consume_batch=BATCH,
            pull_consume_timeout=FETCH_TIMEOUT,
        )
        self._task: Any = self._broker.register_task(body, task_name="bench")

    async def __aenter__(self) -> Taskiq:
        await self._broker.startup()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._broker.shutdown()

    async def enqueue(self, payload: dict[str, Any]) -> None:
        await self._task.kiq(payload)

    async def work(self) -> None:
        self._broker.is_worker_process = True
        await run_receiver_task(
            self._broker, max_async_tasks=BATCH, max_prefetch=BATCH, run_startup=True
        )
