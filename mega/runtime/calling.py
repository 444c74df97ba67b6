"""How a handler is called: on the loop or in a thread, with or without a time-out.

All of it is decided once per handler, so that a run pays for what its declaration asks.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import anyio

from mega.context import RunContext
from mega.declare.naming import place_of
from mega.declare.registry import Middleware
from mega.declare.signature import Handler
from mega.errors import BadHandler
from mega.events import ThreadLeft
from mega.runtime.surroundings import Surroundings

__all__ = ["Call", "caller"]

Call: TypeAlias = Callable[[Any, Any], Awaitable[Any]]


def caller(
    handler: Handler,
    around: Surroundings,
    *,
    timeout: float | None = None,
    middleware: Sequence[Middleware] = (),
) -> Call:
    """Return a coroutine function of payload and context that runs the handler.

    A plain function runs in a thread. After `timeout` seconds an async handler is cancelled
    and a thread is left behind; both raise TimeoutError. The first `middleware` is outermost,
    and the time-out holds for all of it.
    """
    call = handler.bind() if handler.is_async else _in_thread(handler, around)
    for outer in reversed(middleware):
        call = _wrapped(call, outer)
    return call if timeout is None else _timed(call, timeout)


def _wrapped(call: Call, outer: Middleware) -> Call:
    def run(payload: Any, context: Any) -> Awaitable[Any]:
        is_used = False

        def call_next() -> Awaitable[Any]:
            nonlocal is_used
            if is_used:
                raise _called_twice(outer)
            is_used = True
            return call(payload, context)

        return outer(context, call_next)

    return run


def _in_thread(handler: Handler, around: Surroundings) -> Call:
    call = handler.bind()

    def work(payload: Any, context: Any) -> Any:
        result = call(payload, context)
        if inspect.isawaitable(result):
            raise _never_awaited(handler, result)
        return result

    async def run(payload: Any, context: RunContext) -> Any:
        def note() -> None:
            if around.hub.wants(ThreadLeft):
                around.hub.emit(ThreadLeft(**context.facts(), left=around.threads.left))

        return await around.threads.run(work, payload, context, on_left=note)

    return run


def _timed(call: Call, timeout: float) -> Call:
    async def run(payload: Any, context: Any) -> Any:
        with anyio.move_on_after(timeout):
            return await call(payload, context)
        raise TimeoutError(f"the run took longer than its {timeout:g} s.")

    return run


def _called_twice(outer: Middleware) -> BadHandler:
    return BadHandler(
        f"the middleware {getattr(outer, '__name__', outer)!r} called call_next a second time.",
        where=place_of(outer),
        hint="One run calls its handler once. To run it again, let the error out: it is retried.",
    )


def _never_awaited(handler: Handler, result: Any) -> BadHandler:
    if inspect.iscoroutine(result):
        result.close()
    return BadHandler(
        f"{handler.name!r} returned an awaitable that nobody awaits.",
        where=handler.place,
        hint="Write async def, and await it inside.",
    )
