"""One serving process: start-up, the roles' work, signals, and the orderly end."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import anyio
from anyio.abc import TaskGroup, TaskStatus

from mega.options import Role, check_count
from mega.runtime.banner import warn_of_nothing
from mega.runtime.consumer import Consumer
from mega.runtime.forks import handled_here_alone
from mega.runtime.hooks import Hooks
from mega.runtime.long_runs import LongRuns
from mega.runtime.scheduler import Scheduler
from mega.runtime.session import Session
from mega.runtime.turns import Turns
from mega.runtime.watchdog import Watchdog

__all__ = ["Supervisor"]

logger = logging.getLogger("mega")

#: How long the shutdown handlers may take, all together.
SHUTDOWN_WITHIN = 10.0
#: What has nothing in hand needs a moment, too, to see that it is to end.
LEAST_DRAIN = 0.05
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
        max_jobs: int | None = None,
        handles_signals: bool = True,
        probes_pools: bool = True,
        watches_loop: bool = True,
    ) -> None:
        self._open_app = open_app
        self._role: Role = role
        self._drain_timeout = drain_timeout
        self._on_ready = on_ready
        self._handles_signals = handles_signals
        self._probes_pools = probes_pools
        self._watches_loop = watches_loop
        self._turns = _turns(max_jobs)
        self._draining = anyio.Event()
        self._starting = anyio.CancelScope()
        self._is_ready = False
        self._session: Session | None = None

    async def run(self) -> None:
        """Serve. Raises: BrokerError, CpuStartError, and what start-up handlers raise."""
        async with anyio.create_task_group() as group:
            if self._handles_signals and threading.current_thread() is threading.main_thread():
                await group.start(self._watch_signals)
            with self._starting:
                async with self._open_app() as session:
                    self._session = session
                    if self._watches_loop:
                        group.start_soon(_watchdog(session).run)
                    await self._serve(session)
            group.cancel_scope.cancel()

    def stop(self) -> None:
        """Start the drain, as the first signal does."""
        self._draining.set()

    async def _serve(self, session: Session) -> None:
        warn_of_nothing(session.registry, self._role)
        hooks = Hooks(session.registry, session.around)
        consumers = [
            Consumer(spec, session.around, self._turns)
            for spec in session.registry.jobs_for(self._role)
        ]
        try:
            await hooks.start()
            await self._prepare(session, consumers)
            await self._work(session, consumers)
        finally:
            await self._shut_down(session, hooks)

    async def _shut_down(self, session: Session, hooks: Hooks) -> None:
        with anyio.move_on_after(SHUTDOWN_WITHIN, shield=True) as limit:
            await session.pools.end_now()
            await hooks.end()
        if limit.cancelled_caught:
            logger.warning("the shutdown hooks did not end within %g s", SHUTDOWN_WITHIN)

    async def _work(self, session: Session, consumers: list[Consumer]) -> None:
        async with anyio.create_task_group() as work:
            self._start_work(session, consumers, work)
            self._is_ready = True
            self._on_ready(session)
            await self._draining.wait()
            if self._turns is not None:
                self._turns.close()
            patience = max(self._drain_timeout, LEAST_DRAIN)
            work.cancel_scope.deadline = anyio.current_time() + patience
        if work.cancel_scope.cancelled_caught:
            logger.warning("after %g s the rest was cancelled and given back", self._drain_timeout)

    async def _prepare(self, session: Session, consumers: list[Consumer]) -> None:
        if consumers:
            await session.around.broker.attend(session.around.worker)
        async with anyio.create_task_group() as group:
            if self._probes_pools:
                group.start_soon(session.pools.start)
            for consumer in consumers:
                group.start_soon(consumer.provide)

    def _start_work(self, session: Session, consumers: list[Consumer], work: TaskGroup) -> None:
        for consumer in consumers:
            work.start_soon(consumer.run, self._draining)
        if self._role in ("all", "scheduler"):
            specs = session.registry.schedules_for(self._role)
            scheduler = Scheduler(specs, session.schedules, session.around)
            work.start_soon(scheduler.run, self._draining)

    def _in_hand(self) -> str:
        """Return what the drain waits for, or nothing: who sees no end presses Ctrl-C again."""
        runs = 0 if self._session is None else len(self._session.around.in_hand)
        if not runs:
            return ""
        return f": {runs} run{'s' * (runs > 1)} may finish within {self._drain_timeout:g} s"

    async def _watch_signals(self, *, task_status: TaskStatus[None]) -> None:
        with handled_here_alone(SIGNALS), anyio.open_signal_receiver(*SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                if self._draining.is_set():
                    # The kernel and the watchdogs end the pools and the embedded server.
                    os._exit(128 + number)
                logger.info("stopping%s; a second signal exits at once", self._in_hand())
                self._draining.set()
                if not self._is_ready:
                    self._starting.cancel()


def _turns(max_jobs: int | None) -> Turns | None:
    if max_jobs is None:
        return None
    return Turns(check_count(max_jobs, option="max_jobs", minimum=1))


def _watchdog(session: Session) -> Watchdog:
    around = session.around
    return Watchdog(LongRuns(around.in_hand, now=around.clock.monotonic))
