"""Which functions can be the lifespan of an app, found out when the app is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeAlias

from mega.declare.signature import is_coroutine_function
from mega.errors import BadHandler

__all__ = ["to_lifespan"]

#: Why something can't be a lifespan, and what to do.
Fault: TypeAlias = tuple[str, str]

WRITE_ONE = "Put @asynccontextmanager over `async def lifespan() -> AsyncIterator[Database]`."


def to_lifespan(lifespan: Any) -> Callable[[], AbstractAsyncContextManager[Any]]:
    """Return what each start calls and enters; None is a lifespan that yields None.

    Raises: BadHandler.
    """
    if lifespan is None:
        return nullcontext
    fault = _fault_of_shape(lifespan) or _fault_of_parameters(lifespan)
    if fault is not None:
        name = getattr(lifespan, "__name__", None) or repr(lifespan)
        raise BadHandler(f"lifespan={name} can't be entered: {fault[0]}.", hint=fault[1])
    entered: Callable[[], AbstractAsyncContextManager[Any]] = lifespan
    return entered


def _fault_of_shape(lifespan: Any) -> Fault | None:
    can_be_entered = hasattr(lifespan, "__aenter__")
    if not callable(lifespan):
        hint = "Leave out its parentheses: each start calls it anew."
        return "it is not a function", hint if can_be_entered else WRITE_ONE
    if isinstance(lifespan, type):
        return None if can_be_entered else ("it is a class without __aenter__", WRITE_ONE)
    if inspect.isasyncgenfunction(lifespan):
        return "it is an async generator", "Put @asynccontextmanager over it."
    if inspect.isgeneratorfunction(inspect.unwrap(lifespan)):  # under @contextmanager, too
        return "it is a plain generator", "Write async def, under @asynccontextmanager."
    if is_coroutine_function(lifespan):
        hint = "Yield once what the handlers share, and put @asynccontextmanager over it."
        return "it is a coroutine function", hint
    return None


def _fault_of_parameters(lifespan: Any) -> Fault | None:
    try:
        parameters = inspect.signature(lifespan).parameters.values()
    except ValueError:  # of some builtins
        return None
    for parameter in parameters:
        is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and not is_variadic:
            why = f"it is called without arguments, and its parameter {parameter.name!r} needs one"
            return why, "Leave it out; the app can be used by its name in the module."
    return None
