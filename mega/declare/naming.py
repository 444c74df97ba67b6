"""Names: of jobs, of places in the user's code, and of the file that is being run."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from mega.errors import AppLoadedTwice, BadOption, BadSubject, DeclarationError
from mega.wire.message import stream_name

__all__ = ["AppFile", "alias_main", "check_name", "check_subject", "located", "place_of"]

SUBJECT = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\Z", re.ASCII)
MAX_SUBJECT_LENGTH = 200
#: With a tick behind it, it is still a job's id.
MAX_NAME_LENGTH = 90

_apps: weakref.WeakValueDictionary[int, AppFile] = weakref.WeakValueDictionary()


def place_of(fn: Callable[..., Any]) -> str:
    """Return `file:line name` of a function, the file by its last part."""
    code = getattr(fn, "__code__", None) or getattr(type(fn).__call__, "__code__", None)
    name = getattr(fn, "__name__", type(fn).__name__)
    if code is None:
        return str(name)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno} {name}"


@contextmanager
def located(frame: FrameType, name: str = "") -> Iterator[None]:
    """Give a DeclarationError that names no place the line of `frame`: the decorator's.

    `name` is what is declared there.
    """
    try:
        yield
    except DeclarationError as error:
        if not error.where:
            line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            error.where = f"{line} {name}".rstrip()
        raise


def check_name(name: Any, *, what: str) -> str:
    """Return `name` if a schedule can have it. Raises: BadOption."""
    if not isinstance(name, str) or not SUBJECT.match(name) or len(name) > MAX_NAME_LENGTH:
        raise BadOption(
            f"{name!r} is not a name for {what}.",
            hint=f'A name is at most {MAX_NAME_LENGTH} letters, digits, "_", "-" and dots.',
        )
    return name


def check_subject(subject: Any) -> str:
    """Return `subject` if it can name a job. Raises: BadSubject."""
    example = 'A subject is letters, digits, "_" and "-" in parts joined by dots: "email.send".'
    if not isinstance(subject, str) or not SUBJECT.match(subject):
        raise BadSubject(f"{subject!r} is not a subject.", hint=example)
    if len(subject) > MAX_SUBJECT_LENGTH:
        raise BadSubject(
            f"the subject has {len(subject)} characters, more than {MAX_SUBJECT_LENGTH}: "
            f"{subject[:40]!r}…"
        )
    if stream_name(subject).lower().endswith("_dlq"):
        raise BadSubject(
            f"{subject!r} is the name of dead letters.", hint='Only they end in ".dlq" or "_dlq".'
        )
    if subject.split(".")[0] == "mega":
        raise BadSubject(f"{subject!r} starts with mega's own prefix.", hint=example)
    return subject


class AppFile:
    """The file in which an App was made, and the module name under which it ran."""

    def __init__(self, app_name: str, frame: FrameType) -> None:
        self.app_name = app_name
        self.module = str(frame.f_globals.get("__name__"))
        file = frame.f_globals.get("__file__")
        self.path = Path(file).resolve() if file else None
        _apps[id(self)] = self

    @property
    def folder(self) -> Path:
        """The folder of the file, or the working directory when there is no file."""
        return self.path.parent if self.path else Path.cwd()

    def check_loaded_once(self) -> None:
        """Refuse to go on when the same file made this App twice. Raises: AppLoadedTwice."""
        for other in list(_apps.values()):
            is_same = (other.path, other.app_name) == (self.path, self.app_name)
            if self.path and is_same and other.module != self.module:
                raise AppLoadedTwice(
                    f"{self.path.name} was loaded twice, as {other.module!r} and as "
                    f"{self.module!r}, so each App holds a part of the handlers.",
                    hint=f"Import it by one name, or run it as python -m {other.module}.",
                )


def alias_main(frame: FrameType) -> None:
    """Make `import app` find the running main file instead of loading it a second time.

    Without it `python app.py`, with a tasks.py that does `from app import app`, makes two
    Apps, and the running one lacks the handlers of tasks.py.
    """
    if frame.f_globals.get("__name__") != "__main__":
        return
    spec, file = frame.f_globals.get("__spec__"), frame.f_globals.get("__file__")
    name = spec.name if spec is not None else Path(file).stem if file else ""
    if name and name != "__main__":
        sys.modules.setdefault(name, sys.modules["__main__"])
