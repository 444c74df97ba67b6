"""The user's part of a traceback: what a log line shows of an error."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import FrameType, TracebackType

from mega.errors import sole_error

__all__ = ["from_handler", "place_of_error"]

LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def from_handler(error: BaseException) -> TracebackType | None:
    """Return the error's traceback from the handler on, without frames of mega's own.

    None when no handler raised it: what an adapter of ours called is a library.
    """
    own, links = "", list[TracebackType]()
    trace = error.__traceback__
    while trace is not None:
        module = module_of(trace.tb_frame)
        if is_ours(module):
            own = module
        elif not links and own.startswith("mega.adapters."):
            return None
        else:
            links.append(trace)
        trace = trace.tb_next
    return _chained(links)


def place_of_error(error: BaseException) -> str:
    """Return `file:line` of the innermost frame of the user's code, or an empty text."""
    trace = from_handler(sole_error(error))
    if trace is None:
        return ""
    place = _place(trace)  # a handler that is installed as a library is the user's all the same
    while trace := trace.tb_next:
        if not trace.tb_frame.f_code.co_filename.startswith(LIBRARIES):
            place = _place(trace)
    return place


def module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def is_ours(module: str) -> bool:
    return module == "mega" or module.startswith("mega.")


def _chained(links: list[TracebackType]) -> TracebackType | None:
    """Return a traceback of these links alone; the error keeps its own."""
    chain = None
    for link in reversed(links):
        chain = TracebackType(chain, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return chain


def _place(trace: TracebackType) -> str:
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
