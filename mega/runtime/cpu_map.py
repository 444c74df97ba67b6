"""`CpuHandle.map`: many calls of one task, with the results in the order of the input."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
)
from contextlib import asynccontextmanager, suppress
from itertools import count
from threading import get_ident
from typing import Any, Final, Self, TypeAlias

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from mega.errors import CpuStopped
from mega.runtime.cpu_calls import Outcome

__all__ = ["CpuMap", "Items"]

Items: TypeAlias = Iterable[Any] | AsyncIterable[Any]
CallOne: TypeAlias = Callable[[Any], Awaitable[Any]]
Take: TypeAlias = Callable[[], Awaitable[Any]]
#: Starts a task beside all others, in the context of who asks. Raises: CpuStopped.
Start: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]

END: Final = object()


class CpuMap(AsyncIterator[Any]):
    """Iterates over the results. The calls begin with the first `anext`.

    What raises is raised in its place, and the calls behind it are cancelled. All are, when
    the iteration is cancelled, closed or dropped.
    """

    def __init__(self, call: CallOne, items: Items, *, limit: int, start: Start) -> None:
        send, self._outcomes = anyio.create_memory_object_stream[Outcome](limit)
        self._feed = Feed(call, items, send, limit)
        self._start: Start | None = start
        self._thread = get_ident()
        self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        start, self._start = self._start, None
        try:
            if start is not None:
                self._feed.begin(start)
            outcome = await _next(self._outcomes)
            if outcome is not None:
                return outcome.get()
            if self._feed.is_cut and not self._is_closed:
                raise _cut()
            raise StopAsyncIteration
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Cancel what still runs, and return when it has ended."""
        self._drop()
        with anyio.CancelScope(shield=True):
            await self._feed.ended.wait()

    def _drop(self) -> None:
        self._is_closed = True
        self._start = None
        self._outcomes.close()
        self._feed.end()

    def __del__(self) -> None:
        if self._thread == get_ident():  # from another one it can't; the app's end does it
            self._drop()


async def _next(outcomes: MemoryObjectReceiveStream[Outcome]) -> Outcome | None:
    try:
        outcome = await outcomes.receive()
    except (anyio.EndOfStream, anyio.ClosedResourceError):
        return None
    await outcome.done.wait()
    return outcome


def _cut() -> CpuStopped:
    return CpuStopped(
        "the app was left before this map had ended.", hint="Iterate to its end within the app."
    )


class Feed:
    """Takes items and starts their calls, in a task beside the iteration.

    It doesn't know the iteration, so that this one can be dropped.
    """

    def __init__(
        self, call: CallOne, items: Items, outcomes: MemoryObjectSendStream[Outcome], limit: int
    ) -> None:
        self.ended = anyio.Event()
        #: Whether it has ended, if it has, before all items were done or one has failed.
        self.is_cut = True
        self._call = call
        self._items = items
        self._outcomes = outcomes
        self._room = anyio.Semaphore(limit)
        self._scope = anyio.CancelScope()
        self._taking = anyio.CancelScope()
        self._has_begun = False
        self._open: dict[int, tuple[Outcome, anyio.CancelScope]] = {}

    def begin(self, start: Start) -> None:
        """Start the task. Raises: CpuStopped."""
        start(self._run)
        self._has_begun = True

    def end(self) -> None:
        """Cancel the task, if there is one; `ended` is set when it has ended."""
        if not self._has_begun:
            self._close()
        elif not self.ended.is_set():
            self._scope.cancel()

    async def _run(self) -> None:
        try:
            with self._scope:
                async with anyio.create_task_group() as calls:
                    await self._take_all(calls)
                self.is_cut = False
        finally:
            self._close()

    async def _take_all(self, calls: TaskGroup) -> None:
        source = Outcome()
        with self._taking:
            await source.keep(lambda: self._take(calls))
            if source.error is not None:  # it stands where its next item would
                with suppress(anyio.BrokenResourceError):
                    await self._outcomes.send(source)

    async def _take(self, calls: TaskGroup) -> None:
        async with _taking(self._items) as take:
            for number in count():
                await self._room.acquire()
                item = await take()
                if item is END:
                    return
                outcome, scope = self._open[number] = (Outcome(), anyio.CancelScope())
                # First of all: the error of a call that nobody knows of would be lost.
                await self._outcomes.send(outcome)
                calls.start_soon(self._run_one, number, item, outcome, scope)

    async def _run_one(
        self, number: int, item: Any, outcome: Outcome, scope: anyio.CancelScope
    ) -> None:
        with scope:
            await outcome.keep(lambda: self._call(item))
            del self._open[number]
        self._room.release()
        if outcome.error is not None:
            self._cancel_behind(number)

    def _cancel_behind(self, number: int) -> None:
        self._taking.cancel()
        for other, (_, scope) in self._open.items():
            if other > number:
                scope.cancel()

    def _close(self) -> None:
        for outcome, _ in self._open.values():
            outcome.error = _cut()
            outcome.done.set()
        self._outcomes.close()
        self.ended.set()


@asynccontextmanager
async def _taking(items: Items) -> AsyncGenerator[Take]:
    """Yield what returns the next item, or END; close the items if they are a generator."""
    if not isinstance(items, AsyncIterable):
        iterator = iter(items)

        async def take() -> Any:
            return next(iterator, END)

        yield take
        return
    source = aiter(items)
    try:
        yield lambda: _anext(source)
    finally:
        if isinstance(source, AsyncGenerator):
            with anyio.CancelScope(shield=True):
                await source.aclose()


async def _anext(source: AsyncIterator[Any]) -> Any:
    return await anext(source, END)
