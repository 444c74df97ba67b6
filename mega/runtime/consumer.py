"""One job's consumption in this process: its queue at the broker and its executions."""

from __future__ import annotations

import anyio

from mega.declare.registry import JobSpec
from mega.ports import Queue
from mega.runtime.execution import Execution
from mega.runtime.surroundings import Surroundings

__all__ = ["Consumer"]


class Consumer:
    """Feeds the deliveries of one job to its execution."""

    def __init__(self, spec: JobSpec, around: Surroundings) -> None:
        self._queue = Queue(spec.subject, spec.options)
        self._broker = around.broker
        self._execution = Execution(spec, around)

    async def provide(self) -> None:
        """Create the queue if it is absent, and set its concurrency. Raises: BrokerError."""
        await self._broker.provide(self._queue, is_serving=True)

    async def run(self, draining: anyio.Event) -> None:
        """Run jobs until `draining` is set and those in hand have ended."""
        await self._broker.consume(self._queue, self._execution.run, draining=draining)
