"""How a handler is called: on the loop or in a thread, with or without a time-out.

All of it is decided once per handler, so that a run pays for what its declaration asks.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import anyio
from anyio import to_thread

from mega.declare.registry import Middleware
from mega.declare.signature import Handler
from mega.errors import BadHandler

__all__ = ["Call", "caller"]

Call: TypeAlias = Callable[[Any, Any], Awaitable[Any]]


def caller(
    handler: Handler,
    *,
    slots: int = 1,
    timeout: float | None = None,
    middleware: Sequence[Middleware] = (),
) -> Call:
    """Return a coroutine function of payload and context that runs the handler.

    A plain function runs in one of `slots` threads. After `timeout` seconds an async
    handler is cancelled and a thread is left behind; both raise TimeoutError. The first
    `middleware` is outermost, and the time-out holds for all of it.
    """
    call = handler.bind() if handler.is_async else _in_thread(handler, slots)
    for around in reversed(middleware):
        call = _wrapped(call, around)
    return call if timeout is None else _timed(call, timeout)


def _wrapped(call: Call, around: Middleware) -> Call:
    def run(payload: Any, context: Any) -> Awaitable[Any]:
        return around(context, lambda: call(payload, context))

    return run


def _in_thread(handler: Handler, slots: int) -> Call:
    call, limiter = handler.bind(), anyio.CapacityLimiter(slots)

    def work(payload: Any, context: Any) -> Any:
        result = call(payload, context)
        if inspect.isawaitable(result):
            raise _never_awaited(handler, result)
        return result

    async def run(payload: Any, context: Any) -> Any:
        return await to_thread.run_sync(
            work, payload, context, limiter=limiter, abandon_on_cancel=True
        )

    return run


def _timed(call: Call, timeout: float) -> Call:
    async def run(payload: Any, context: Any) -> Any:
        with anyio.fail_after(timeout):
            return await call(payload, context)

    return run


def _never_awaited(handler: Handler, result: Any) -> BadHandler:
    if inspect.iscoroutine(result):
        result.close()
    return BadHandler(
        f"{handler.name!r} returned an awaitable that nobody awaits.",
        where=handler.place,
        hint="Write async def, and await it inside.",
    )
