"""The CPU pools of one process, and calls into them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import anyio

from mega.context import current_run
from mega.cpu import Report
from mega.declare.registry import CpuSpec, Registry
from mega.errors import CpuStopped
from mega.events import event_class
from mega.pool_options import PoolOptions
from mega.ports import ProcessPool
from mega.runtime.cpu_calls import OnProgress, listened
from mega.runtime.cpu_map import CpuMap, Items
from mega.runtime.hub import Hub

__all__ = ["CpuPools", "PoolFactory"]

PoolFactory: TypeAlias = Callable[
    [str, PoolOptions, Sequence[str], Callable[[str, dict[str, Any]], None]], ProcessPool
]


class CpuPools:
    """One pool for each declared pool that has tasks. Entering starts no process."""

    def __init__(self, registry: Registry, hub: Hub, factory: PoolFactory) -> None:
        self._hub = hub
        self._stack = AsyncExitStack()
        self._has_stopped = False
        self._pools = {
            name: factory(name, options, _refs(registry.tasks_of(name)), self._emit)
            for name, options in registry.pools.items()
            if registry.tasks_of(name)
        }

    async def __aenter__(self) -> CpuPools:
        self._beside = anyio.create_task_group()
        await self._beside.__aenter__()
        await self._stack.__aenter__()
        for pool in self._pools.values():
            await self._stack.enter_async_context(pool)
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        # The value is dropped: trio's task groups say True, which would swallow the error.
        try:
            await self._stack.__aexit__(*exc_info)
        finally:
            self._has_stopped = True
            self._beside.cancel_scope.cancel()
            await self._beside.__aexit__(None, None, None)

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

    async def call(
        self,
        spec: CpuSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        on_progress: OnProgress | None,
    ) -> Any:
        """Run one task and return what it returned. Raises: what it raised, CpuError."""
        run = current_run.get()
        facts = run.facts() if run else {}

        async def call(report: Report | None) -> Any:
            return await self._pools[spec.pool].call(
                spec.ref, args, kwargs, timeout=spec.timeout, context=facts, on_progress=report
            )

        return await (call(None) if on_progress is None else listened(call, on_progress))

    def map(
        self, spec: CpuSpec, items: Items, *, limit: int | None, on_progress: OnProgress | None
    ) -> CpuMap:
        """Return an iterator over the results of a task that is called with each of the items."""

        async def call(item: Any) -> Any:
            return await self.call(spec, (item,), {}, on_progress=on_progress)

        size = self._pools[spec.pool].size
        return CpuMap(call, items, limit=limit or size, start=self._start_beside)

    def _start_beside(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._has_stopped:
            raise CpuStopped(
                "the pools have stopped, and this map had not begun.",
                hint="Iterate over it before the app is left.",
            )
        self._beside.start_soon(work)

    def _emit(self, kind: str, facts: dict[str, Any]) -> None:
        event = event_class(kind)
        if self._hub.wants(event):
            known = event.__dataclass_fields__
            self._hub.emit(event(**{k: v for k, v in facts.items() if k in known}))


def _refs(tasks: Iterable[CpuSpec]) -> list[str]:
    return [task.ref for task in tasks]
