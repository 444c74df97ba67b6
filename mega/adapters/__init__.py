"""The outside world behind the ports. Each adapter is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio

from mega.errors import BadOption
from mega.options import BrokerUrl, PoolOptions
from mega.ports import Broker, Clock, ProcessPool

__all__ = ["make_broker", "make_pool", "run_aside"]


def make_broker(
    url: BrokerUrl, *, name: str, home: Path, is_provisioning: bool, clock: Clock
) -> Broker:
    """Return the broker of a URL, not yet connected. `home` is where an embedded server lives.

    Raises: BadOption, when the running event loop is one that the broker's client can't use.
    """
    if url.kind == "memory":
        from mega.adapters.memory import MemoryBroker

        return MemoryBroker(clock)
    if anyio.get_cancelled_exc_class().__module__.partition(".")[0] == "trio":
        raise BadOption(
            "the NATS broker runs on asyncio only.",
            hint='Use backend="asyncio", or broker="memory:" for trio.',
        )
    from mega.adapters.nats.broker import NatsBroker
    from mega.adapters.nats.server import EmbeddedServer

    embedded = EmbeddedServer(home, sync_interval=url.sync) if url.kind == "embedded" else None
    return NatsBroker(
        url, embedded=embedded, is_provisioning=is_provisioning, name=name, now=clock.now
    )


def make_pool(
    name: str,
    options: PoolOptions,
    tasks: Sequence[str],
    emit: Callable[[str, dict[str, Any]], None],
) -> ProcessPool:
    """Return a process pool, not yet entered."""
    from mega.adapters.pool.parent import WorkerPool

    return WorkerPool(name, options, tasks, emit=emit)


def run_aside(main: Callable[[], Awaitable[None]]) -> None:
    """Run `main` in an event loop of its own, in this thread, and return when it has ended."""
    from mega.adapters.loops import LoopAside

    anyio.run(main, backend_options={"loop_factory": LoopAside})
