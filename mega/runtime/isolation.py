"""Context variables of one run, kept apart from those of the next run in the same task.

A task for each job would do it too, and costs more than the whole way through NATS
(findings/speed.md, facts 2 and 3).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from typing import Any, TypeVar

__all__ = ["is_closing", "isolated"]

T = TypeVar("T")

#: Whether the run is being closed for good: a GeneratorExit is then not its handler's own.
is_closing: ContextVar[bool] = ContextVar("mega_is_closing", default=False)


@types.coroutine
def isolated(context: Context, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await `coroutine` in `context`: what it sets there, nobody sees after it."""
    step: Callable[[Any], Any] = coroutine.send
    argument: Any = None
    try:
        while True:
            try:
                awaited = context.run(step, argument)
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                step, argument = coroutine.send, (yield awaited)
            except GeneratorExit:
                context.run(is_closing.set, True)
                context.run(coroutine.close)
                raise
            except BaseException as error:
                step, argument = coroutine.throw, error
    finally:
        # An error whose traceback holds this frame would hold itself.
        del argument
