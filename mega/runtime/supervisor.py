"""One serving process: start-up, the roles' work, signals, and the orderly end."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from mega.options import Role
from mega.runtime.consumer import Consumer
from mega.runtime.scheduler import Scheduler
from mega.runtime.session import Session

__all__ = ["Supervisor"]

logger = logging.getLogger("mega")

#: How long the shutdown handlers may take, all together.
SHUTDOWN_WITHIN = 10.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Supervisor:
    """Serves one app in one role until it is told to stop.

    The first SIGINT or SIGTERM starts the drain: nothing new is taken, what is in hand
    gets `drain_timeout` seconds, and the rest is given back. A second one exits at once.
    """

    def __init__(
        self,
        open_app: Callable[[], AbstractAsyncContextManager[Session]],
        *,
        role: Role,
        drain_timeout: float,
        on_ready: Callable[[Session], None],
        handles_signals: bool = True,
        probes_pools: bool = True,
    ) -> None:
        self._open_app = open_app
        self._role: Role = role
        self._drain_timeout = drain_timeout
        self._on_ready = on_ready
        self._handles_signals = handles_signals
        self._probes_pools = probes_pools
        self._draining = anyio.Event()
        self._starting = anyio.CancelScope()
        self._is_ready = False

    async def run(self) -> None:
        """Serve. Raises: BrokerError, CpuStartError, and what start-up handlers raise."""
        async with anyio.create_task_group() as group:
            if self._handles_signals and threading.current_thread() is threading.main_thread():
                await group.start(self._watch_signals)
            with self._starting:
                async with self._open_app() as session:
                    await self._serve(session)
            group.cancel_scope.cancel()

    def stop(self) -> None:
        """Start the drain, as the first signal does."""
        self._draining.set()

    async def _serve(self, session: Session) -> None:
        consumers = [
            Consumer(spec, session.around) for spec in session.registry.jobs_for(self._role)
        ]
        try:
            await self._start_up(session, consumers)
            await self._work(session, consumers)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(SHUTDOWN_WITHIN):
                await session.pools.end_now()
                await _call_all(session.registry.shutdown)

    async def _work(self, session: Session, consumers: list[Consumer]) -> None:
        async with anyio.create_task_group() as work:
            self._start_work(session, consumers, work)
            self._is_ready = True
            self._on_ready(session)
            await self._draining.wait()
            work.cancel_scope.deadline = anyio.current_time() + self._drain_timeout
        if work.cancel_scope.cancelled_caught:
            logger.warning("after %g s the rest was cancelled and given back", self._drain_timeout)

    async def _start_up(self, session: Session, consumers: list[Consumer]) -> None:
        await _call_all([hook.fn for hook in session.registry.startup])
        async with anyio.create_task_group() as group:
            if self._probes_pools:
                group.start_soon(session.pools.start)
            for consumer in consumers:
                group.start_soon(consumer.provide)

    def _start_work(self, session: Session, consumers: list[Consumer], work: TaskGroup) -> None:
        for consumer in consumers:
            work.start_soon(consumer.run, self._draining)
        if self._role in ("all", "scheduler"):
            specs = session.registry.schedules.values()
            scheduler = Scheduler(specs, session.schedules, session.around)
            work.start_soon(scheduler.run, self._draining)

    async def _watch_signals(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(*SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                if self._draining.is_set():
                    # The kernel and the watchdogs end the pools and the embedded server.
                    os._exit(128 + number)
                logger.info("stopping: what runs may finish; a second signal exits at once")
                self._draining.set()
                if not self._is_ready:
                    self._starting.cancel()


async def _call_all(functions: list[Callable[[], Any]]) -> None:
    for function in functions:
        answer = function()
        if inspect.isawaitable(answer):
            await answer
