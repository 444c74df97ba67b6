"""How errors look on a terminal, and with which exit code they end a process."""

from __future__ import annotations

import functools
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import TextIO

from mega.errors import (
    BrokerUnavailable,
    DeclarationError,
    MegaError,
    only_mega_error,
    report,
    sole_error,
)

__all__ = ["exit_code", "plain_errors", "say", "show_errors_plainly"]

CRASHED, MISUSED, UNREACHED, INTERRUPTED = 1, 2, 3, 130


def exit_code(error: MegaError) -> int:
    """Return 2 for a mistake in a declaration or command, 3 for a broker never reached, else 1."""
    if isinstance(error, DeclarationError):
        return MISUSED
    return UNREACHED if isinstance(error, BrokerUnavailable) else CRASHED


@contextmanager
def plain_errors(arguments: Sequence[str]) -> Iterator[None]:
    """End the process with a few lines for a mega error, unless `--debug` asks for all."""
    is_debugging = "--debug" in arguments
    try:
        yield
    except BaseException as error:
        known = only_mega_error(error)
        if known is not None and not is_debugging:
            say(report(known), sys.stderr)
            sys.exit(exit_code(known))
        if isinstance(error, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        raise


def show_errors_plainly(frame: FrameType) -> None:
    """Let a mega error that ends the program show as a few lines, without a traceback.

    A mistake on a decorator line never reaches `run`; this is its way to the terminal. A
    program that only imports the app, whose line `frame` is, keeps a hook of its own.
    """
    before = sys.excepthook
    is_imported = frame.f_globals.get("__name__") != "__main__"
    has_own = is_imported and before is not sys.__excepthook__
    if has_own or getattr(before, "is_mega", False) or "--debug" in sys.argv or _is_interactive():
        return

    @functools.wraps(before)
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        known = only_mega_error(error)
        if known is None:
            before(kind, error, trace)
            return
        known.where = known.where or _place_in_user_code(error)
        say(report(known), sys.stderr)
        # The interpreter takes the exit code from a SystemExit that leaves the hook.
        raise SystemExit(exit_code(known))

    hook.is_mega = True  # type: ignore[attr-defined]  # a mark
    sys.excepthook = hook


def _is_interactive() -> bool:
    """Whether a shell goes on after an error: a hook that exits would end it."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _place_in_user_code(error: BaseException) -> str:
    """Return `file:line name` of the innermost frame that is neither ours nor a library's."""
    place = ""
    foreign = (str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "purelib")))
    for frame, line in traceback.walk_tb(sole_error(error).__traceback__):
        code = frame.f_code
        # A dataclass makes its __init__ from a text, which has no line to show.
        is_made = (code.co_filename, code.co_name) == ("<string>", "__init__")
        if not is_made and not code.co_filename.startswith(foreign):
            place = f"{Path(code.co_filename).name}:{line} {code.co_name}"
    return place


def say(text: str, stream: TextIO) -> None:
    """Write a line and flush it, so that a pipe shows it at once."""
    stream.write(f"{text}\n")
    stream.flush()
