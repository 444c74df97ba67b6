"""One job's consumption in this process: its queue at the broker and its executions."""

from __future__ import annotations

import anyio

from mega.declare.registry import JobSpec
from mega.ports import Delivery, Queue, Run
from mega.runtime.execution import Execution
from mega.runtime.surroundings import Surroundings
from mega.runtime.turns import Turns

__all__ = ["Consumer"]


class Consumer:
    """Feeds the deliveries of one job to its execution, in turn with other jobs if `turns` say."""

    def __init__(self, spec: JobSpec, around: Surroundings, turns: Turns | None = None) -> None:
        self._queue = Queue(spec.subject, spec.options)
        self._broker = around.broker
        self._execution = Execution(spec, around)
        self._run: Run = self._execution.run if turns is None else self._in_turn(turns)

    async def provide(self) -> None:
        """Create the queue if it is absent, and set its concurrency. Raises: BrokerError."""
        await self._broker.provide(self._queue, is_serving=True)

    async def run(self, draining: anyio.Event) -> None:
        """Run jobs until `draining` is set and those in hand have ended."""
        self._execution.heed(draining)
        await self._broker.consume(self._queue, self._run, draining=draining)

    def _in_turn(self, turns: Turns) -> Run:
        """Return what waits for its turn first. The broker renews the lease meanwhile."""

        async def run(delivery: Delivery) -> None:
            try:
                may_run = await turns.take()
            except anyio.get_cancelled_exc_class():
                await self._execution.give_back(delivery)
                raise
            if not may_run:
                await self._execution.give_back(delivery)
                return
            try:
                await self._execution.run(delivery)
            finally:
                turns.give()

        return run
