"""Context variables of one run, kept apart from those of the next run in the same task.

A task for each job would do it too, and costs more than the whole way through NATS
(findings/speed.md, facts 2 and 3).
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar

__all__ = ["isolated"]

T = TypeVar("T")


@types.coroutine
def isolated(context: Context, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await `coroutine` in `context`: what it sets there, nobody sees after it."""
    step, argument = coroutine.send, None
    while True:
        try:
            awaited = context.run(step, argument)
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            step, argument = coroutine.send, (yield awaited)
        except GeneratorExit:
            context.run(coroutine.close)
            raise
        except BaseException as error:
            step, argument = coroutine.throw, error
