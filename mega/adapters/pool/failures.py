"""How an exception travels from a worker process to the caller.

The child takes it apart and makes sure that it can be put together again; the parent does so.
Only the standard library.
"""

from __future__ import annotations

import pickle
import traceback
from types import TracebackType
from typing import Any, NamedTuple

__all__ = ["Failure", "RemoteTraceback", "failure_of", "rebuild"]


class RemoteTraceback(Exception):
    """The cause of an error from a worker process: where it was raised there, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Failure(NamedTuple):
    """An exception taken apart. It travels as a plain tuple.

    `pickled` is None when the exception can't be put together again.
    """

    pickled: bytes | None
    kind: str
    text: str
    traceback: str


def failure_of(error: BaseException, trace: TracebackType | None = None) -> Failure:
    """Take `error` apart. `trace` is where its traceback should begin."""
    lines = traceback.format_exception(type(error), error, trace or error.__traceback__)
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__mp_main__"):
        name = f"{kind.__module__}.{name}"
    return Failure(_pickled(error), name, _text(error), "".join(lines))


def rebuild(pickled: bytes | None) -> Exception | None:
    """Return the exception that `pickled` stands for, or None when that is not possible."""
    if pickled is None:
        return None
    try:
        error = pickle.loads(pickled)
        if isinstance(error, tuple):
            error = _rebuild_uninitialized(*error)
    except Exception:
        return None
    return error if isinstance(error, Exception) else None


def _pickled(error: BaseException) -> bytes | None:
    # A coroutine turns StopIteration into RuntimeError, and a future refuses it; an
    # exception outside `Exception` would end the parent.
    if not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration):
        return None
    return _if_survives(error, error) or _if_survives(
        error, (type(error), error.args, error.__dict__)
    )


def _if_survives(error: Exception, form: Any) -> bytes | None:
    try:
        pickled = pickle.dumps(form, protocol=5)
    except Exception:
        return None
    return pickled if type(rebuild(pickled)) is type(error) else None


def _rebuild_uninitialized(
    kind: type[Exception], args: tuple[Any, ...], attributes: dict[str, Any]
) -> Exception:
    """Rebuild without `__init__`, which often takes other arguments than `args` holds."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<its text can't be made>"
