"""The outside world behind the ports. Each adapter is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from mega.errors import BadOption
from mega.pool_options import PoolOptions
from mega.ports import Broker, ClaimStore, Clock, ProcessPool
from mega.urls import BrokerUrl, LockUrl

if TYPE_CHECKING:
    from mega.adapters.redis.claims import RedisClaims
    from mega.adapters.redis.redlock import Redlock

__all__ = ["make_broker", "make_pool", "open_locks", "run_aside"]


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


@contextmanager
def open_locks(
    locks: Mapping[str, Sequence[LockUrl]], *, clock: Clock, in_memory: bool
) -> Iterator[dict[str, ClaimStore]]:
    """Yield the lock stores by name. A store connects when it is first asked.

    `in_memory`: whatever their URLs say, as tests want it.

    Raises: BadOption, when the client of one isn't installed.
    """
    stores: dict[str, ClaimStore] = {}
    with ExitStack() as stack:
        for name, urls in locks.items():
            if in_memory or urls[0].kind == "memory":
                from mega.adapters.memory_stores import MemoryClaims

                stores[name] = MemoryClaims(clock)
            else:
                stores[name] = store = _redis_store(urls)
                stack.callback(store.close)
        yield stores


def _redis_store(urls: Sequence[LockUrl]) -> RedisClaims | Redlock:
    try:
        from mega.adapters.redis.redlock import make_store
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        raise BadOption(
            f"the locks in {urls[0].text} need the package redis, which is not installed.",
            hint="Run `pip install 'mega-framework[redis]'`.",
        ) from None
    return make_store(urls)


def make_pool(
    name: str,
    options: PoolOptions,
    tasks: Sequence[str],
    emit: Callable[[str, dict[str, Any]], None],
) -> ProcessPool:
    """Return a pool of processes or threads, not yet entered."""
    if options.mode == "thread":
        from mega.adapters.pool.threads import ThreadPool

        return ThreadPool(name, options, tasks, emit=emit)
    from mega.adapters.pool.parent import WorkerPool

    return WorkerPool(name, options, tasks, emit=emit)


def run_aside(main: Callable[[], Awaitable[None]]) -> None:
    """Run `main` in an event loop of its own, in this thread, and return when it has ended."""
    from mega.adapters.loops import LoopAside

    anyio.run(main, backend_options={"loop_factory": LoopAside})
