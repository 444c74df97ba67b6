"""What is alive between entering and leaving an app, on its connection: events, pools, enqueue.

It is enough for a producer; the supervisor puts consumers and the scheduler on top.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import anyio
from anyio.lowlevel import EventLoopToken, current_token

from mega.declare.registry import Registry
from mega.ports import Broker, ClaimStore, Clock
from mega.runtime.cpu import CpuPools, PoolFactory
from mega.runtime.hub import Hub
from mega.runtime.producer import Producer
from mega.runtime.schedule_run import ScheduleRunner
from mega.runtime.surroundings import Surroundings
from mega.runtime.tick_jobs import JobStore

__all__ = ["Session", "open_session"]

#: How long the last events may take to reach their subscribers.
FLUSH_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Session:
    """The live parts of one app in one process."""

    registry: Registry
    around: Surroundings
    producer: Producer
    pools: CpuPools
    schedules: ScheduleRunner
    loop: EventLoopToken = field(default_factory=current_token)
    thread: int = field(default_factory=get_ident)
    pid: int = field(default_factory=os.getpid)

    @property
    def is_of_this_process(self) -> bool:
        """Whether it was opened here, and not before a fork."""
        return os.getpid() == self.pid


@asynccontextmanager
async def open_session(
    app: Any,
    registry: Registry,
    *,
    broker: Broker,
    locks: Mapping[str, ClaimStore],
    pool_factory: PoolFactory,
    clock: Clock,
) -> AsyncIterator[Session]:
    """Yield the live parts on a connected broker; leaving ends the pools and the events."""
    hub = Hub(registry.subscribers)
    async with _running(hub), CpuPools(registry, hub, pool_factory) as pools:
        worker = f"{socket.gethostname()}:{os.getpid()}"
        around = Surroundings(
            app=app,
            broker=broker,
            hub=hub,
            clock=clock,
            worker=worker,
            locks=locks,
            middleware=registry.middleware,
        )
        producer = Producer(broker, hub)
        yield Session(
            registry=registry,
            around=around,
            producer=producer,
            pools=pools,
            schedules=ScheduleRunner(around, JobStore(registry, producer)),
        )


@asynccontextmanager
async def _running(hub: Hub) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        group.start_soon(hub.run)
        try:
            yield
        finally:
            hub.close()
            group.cancel_scope.deadline = anyio.current_time() + FLUSH_SECONDS
