"""The CPU pools of one process, and calls into them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import anyio

from mega.context import current_run
from mega.declare.registry import CpuSpec, Registry
from mega.events import CpuCrashed, CpuDispatched, CpuDone, CpuEvent, CpuFailed, CpuStopped
from mega.options import PoolOptions
from mega.ports import ProcessPool
from mega.runtime.hub import Hub

__all__ = ["CpuPools", "PoolFactory"]

PoolFactory: TypeAlias = Callable[
    [str, PoolOptions, Sequence[str], Callable[[str, dict[str, Any]], None]], ProcessPool
]

EVENTS: dict[str, type[CpuEvent]] = {
    event.kind: event for event in (CpuDispatched, CpuDone, CpuFailed, CpuCrashed, CpuStopped)
}


class CpuPools:
    """One process pool for each declared pool that has tasks. Entering starts no process."""

    def __init__(self, registry: Registry, hub: Hub, factory: PoolFactory) -> None:
        self._hub = hub
        self._stack = AsyncExitStack()
        self._pools = {
            name: factory(name, options, _refs(registry.tasks_of(name)), self._emit)
            for name, options in registry.pools.items()
            if registry.tasks_of(name)
        }

    async def __aenter__(self) -> CpuPools:
        await self._stack.__aenter__()
        for pool in self._pools.values():
            await self._stack.enter_async_context(pool)
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        # The value is dropped: trio's task groups say True, which would swallow the error.
        await self._stack.__aexit__(*exc_info)

    async def start(self) -> None:
        """Boot one worker of each pool, so that a task that can't be loaded is told at once.

        Raises: CpuStartError.
        """
        for pool in self._pools.values():
            await pool.start()

    async def end_now(self) -> None:
        """Refuse new calls, and end all processes, also when the caller is being cancelled."""
        with anyio.CancelScope(shield=True):
            for pool in self._pools.values():
                await pool.stop(0)

    async def call(self, spec: CpuSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one task and return what it returned. Raises: what it raised, CpuError."""
        run = current_run.get()
        facts = run.facts() if run else {}
        pool = self._pools[spec.pool]
        return await pool.call(spec.ref, args, kwargs, timeout=spec.timeout, context=facts)

    def _emit(self, kind: str, facts: dict[str, Any]) -> None:
        event = EVENTS[kind]
        if self._hub.wants(event):
            known = event.__dataclass_fields__
            self._hub.emit(event(**{k: v for k, v in facts.items() if k in known}))


def _refs(tasks: Iterable[CpuSpec]) -> list[str]:
    return [task.ref for task in tasks]
