"""What kind of function a handler is, found out once, on the decorator line."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_origin, get_type_hints

from mega.context import JobContext, ScheduleContext
from mega.declare.naming import place_of
from mega.errors import BadHandler

__all__ = ["Handler", "check_task", "inspect_job", "inspect_schedule", "is_coroutine_function"]

Shape = Literal["", "p", "c", "pc", "cp"]


@dataclass(frozen=True, slots=True)
class Handler:
    """A function and how to call it.

    `payload` is the declared type of its payload (None: it takes none), `result` that of
    what it returns; Any where nothing is declared.
    """

    fn: Callable[..., Any]
    shape: Shape
    payload: Any
    result: Any
    is_async: bool

    @property
    def name(self) -> str:
        """The function's name."""
        return str(getattr(self.fn, "__name__", type(self.fn).__name__))

    @property
    def place(self) -> str:
        """Where the function is: `file:line name`."""
        return place_of(self.fn)

    def bind(self) -> Callable[[Any, Any], Any]:
        """Return a function of payload and context that calls the handler."""
        fn = self.fn
        calls: dict[Shape, Callable[[Any, Any], Any]] = {
            "": lambda payload, context: fn(),
            "p": lambda payload, context: fn(payload),
            "c": lambda payload, context: fn(context),
            "pc": lambda payload, context: fn(payload, context),
            "cp": lambda payload, context: fn(context, payload),
        }
        return calls[self.shape]


def is_coroutine_function(fn: Any) -> bool:
    """Return whether calling `fn` gives a coroutine; looks through partials and objects."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004 - its kind is wanted, not whether it is there
    )


def inspect_job(fn: Any, *, names: Mapping[str, Any] | None = None) -> Handler:
    """Return what a job's handler is. `names` are the locals of the place that declares it.

    Raises: BadHandler.
    """
    return _inspect(fn, JobContext, "a job", may_take_payload=True, names=names)


def inspect_schedule(fn: Any, *, names: Mapping[str, Any] | None = None) -> Handler:
    """Return what a schedule's handler is. Raises: BadHandler."""
    return _inspect(fn, ScheduleContext, "a schedule", may_take_payload=False, names=names)


def check_task(fn: Any) -> str:
    """Return `module:qualname`, by which a worker process finds a CPU task.

    Raises: BadHandler, for what can't be found by name: a lambda, a closure, a method.
    """
    name, module = getattr(fn, "__qualname__", None), getattr(fn, "__module__", None)
    if not inspect.isfunction(fn) or name is None or module is None:
        raise BadHandler(f"{fn!r} can't be a CPU task: it is not a function.")
    if "<lambda>" in name or "<locals>" in name or "." in name:
        kind = "a lambda" if "<lambda>" in name else "defined inside another function or class"
        raise BadHandler(
            f"{fn.__name__!r} can't be a CPU task: it is {kind}, and a worker process finds "
            "a task by its name in the module.",
            where=place_of(fn),
            hint="Move it to the top level of the module with def.",
        )
    if is_coroutine_function(fn) or _is_generator(fn):
        raise BadHandler(
            f"{name!r} can't be a CPU task: it must be a plain function.",
            where=place_of(fn),
            hint="Write def instead of async def, and return instead of yield.",
        )
    return f"{module}:{name}"


def _inspect(
    fn: Any, context: type, kind: str, *, may_take_payload: bool, names: Mapping[str, Any] | None
) -> Handler:
    _check_is_callable(fn, kind)
    hints = _hints(fn, names)
    shape, payload = "", None
    for parameter in _parameters(fn, kind):
        hint = hints.get(parameter.name, Any)
        letter = "c" if (get_origin(hint) or hint) is context else "p"
        if letter in shape or (letter == "p" and not may_take_payload):
            raise _too_many(fn, kind, context, may_take_payload=may_take_payload)
        if letter == "p":
            _refuse_default(parameter, fn, kind)
            payload = hint
        shape += letter
    return Handler(fn, shape, payload, hints.get("return", Any), is_coroutine_function(fn))  # type: ignore[arg-type]  # a shape is built of its letters


def _refuse_default(parameter: inspect.Parameter, fn: Any, kind: str) -> None:
    """Refuse a default, which is never used: a job that is enqueued without one has no payload."""
    if parameter.default is not parameter.empty and parameter.default is not None:
        raise BadHandler(
            f"{_name(fn)!r} can't be {kind}: its payload {parameter.name!r} has the default "
            f"{parameter.default!r}, which no run would get.",
            where=place_of(fn),
            hint="Put defaults into the payload's type, as fields of a dataclass.",
        )


def _name(fn: Any) -> str:
    return place_of(fn).split()[-1]


def _is_generator(fn: Any) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    body = fn if inspect.isroutine(fn) else type(fn).__call__
    return inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body)


def _check_is_callable(fn: Any, kind: str) -> None:
    if not callable(fn) or isinstance(fn, type):
        raise BadHandler(f"{fn!r} can't be {kind}: it is not a function.")
    if _is_generator(fn):
        raise BadHandler(
            f"{_name(fn)!r} can't be {kind}: it is a generator, its body would never run.",
            where=place_of(fn),
            hint="Use return instead of yield.",
        )


def _parameters(fn: Any, kind: str) -> list[inspect.Parameter]:
    parameters = []
    for parameter in inspect.signature(fn).parameters.values():
        is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        is_required = parameter.default is parameter.empty
        if parameter.kind is parameter.KEYWORD_ONLY and is_required:
            raise BadHandler(
                f"{_name(fn)!r} can't be {kind}: its parameter "
                f"{parameter.name!r} is keyword-only and has no default.",
                where=place_of(fn),
            )
        if not is_variadic and parameter.kind is not parameter.KEYWORD_ONLY:
            parameters.append(parameter)
    return parameters


def _hints(fn: Any, names: Mapping[str, Any] | None) -> dict[str, Any]:
    target = fn
    while isinstance(target, functools.partial):
        target = target.func
    if not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return get_type_hints(target, localns=dict(names or {}), include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise BadHandler(
            f"the annotations of {_name(fn)!r} can't be read: {error}.",
            where=place_of(fn),
            hint="Import the type at the top of the module, not under TYPE_CHECKING.",
        ) from None


def _too_many(fn: Any, kind: str, context: type, *, may_take_payload: bool) -> BadHandler:
    shapes = f"(ctx: {context.__name__})"
    if may_take_payload:
        shapes = f"(payload), (payload, ctx: {context.__name__}) or {shapes}"
    return BadHandler(
        f"{_name(fn)!r} can't be {kind}: it has parameters that nothing fills.",
        where=place_of(fn),
        hint=f"A handler takes (), {shapes}.",
    )
