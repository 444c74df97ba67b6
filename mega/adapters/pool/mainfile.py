"""The program's main file: what it is in the parent, and how a worker runs it once more.

A worker runs it up to where the parent stands, that is up to `app.run()` or whatever starts
the event loop, so it needs no `if __name__ == "__main__"`. Only the standard library.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, ModuleType, TracebackType
from typing import Any, NamedTuple

__all__ = [
    "MainFile",
    "StopImport",
    "end_import_in_child",
    "find_task",
    "load_main",
    "loops_in_use",
    "running_main",
]

LOOPS = ("asyncio", "anyio", "trio", "uvloop")
NO_MAIN = "the main program is not a file (stdin, python -c, a notebook)"

_importing_thread: int | None = None
_ended_at = ""


class StopImport(BaseException):
    """Ends the import of the main file in a worker: it has defined all that it had."""


class MainFile(NamedTuple):
    """`where` is a module name (after `python -m`) or else a path.

    `names` are those under which the parent knows the running module.
    """

    is_module: bool
    where: str
    names: tuple[str, ...]


def end_import_in_child() -> None:
    """Raise StopImport if this is a worker that is importing the main file."""
    if _is_importing():
        raise StopImport


def running_main() -> MainFile | None:
    """Describe this process's main file, or return None if it isn't one."""
    main = sys.modules["__main__"]
    # Instances of the main file's classes come back from a worker under this name.
    sys.modules.setdefault("__mp_main__", main)
    names = tuple(name for name, module in tuple(sys.modules.items()) if module is main)
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return MainFile(True, spec.name, names)
    path = getattr(main, "__file__", None)
    if path is None or not os.path.isfile(path):
        return None
    return MainFile(False, os.path.abspath(path), names)


def loops_in_use() -> tuple[str, ...]:
    return tuple(name for name in LOOPS if name in sys.modules)


def load_main(main: MainFile, loops: Sequence[str]) -> None:
    """Run the main file up to where it starts an event loop or its app."""
    global _importing_thread, _ended_at
    module, code = _prepare(main)
    sys.modules["__mp_main__"] = module
    for name in main.names:
        sys.modules[name] = module
    with _ending_the_import(loops):
        _importing_thread = threading.get_ident()
        try:
            exec(code, module.__dict__)
        except StopImport as stop:
            _ended_at = _line_in(code.co_filename, stop.__traceback__)
        finally:
            _importing_thread = None


def _is_importing() -> bool:
    # A thread that the file starts may run a loop of its own.
    return _importing_thread == threading.get_ident()


@functools.cache
def find_task(task: str) -> Callable[..., Any]:
    """Return the plain function `module:qualname`."""
    module_name, _, qualname = task.partition(":")
    found = _module(module_name)
    for part in qualname.split("."):
        found = _attribute(found, part)
    if getattr(found, "__mega_task__", False):
        found = found.fn
    return found  # type: ignore[no-any-return]  # what a name stands for


def _module(name: str) -> Any:
    if name != "__main__":
        return importlib.import_module(name)
    if "__mp_main__" not in sys.modules:
        raise LookupError(NO_MAIN)
    return sys.modules["__main__"]


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        if owner is not sys.modules.get("__mp_main__") or not _ended_at:
            raise
        text = f"the main file has no {name!r} above {_ended_at}, where its import ends in a worker"
        raise LookupError(text) from None


def _prepare(main: MainFile) -> tuple[ModuleType, CodeType]:
    module = types.ModuleType("__mp_main__")
    module.__dict__["__builtins__"] = builtins
    if not main.is_module:
        module.__file__ = main.where
        with open(main.where, "rb") as file:
            # dont_inherit: this room's `from __future__` lines are not the user's.
            return module, compile(file.read(), main.where, "exec", dont_inherit=True)
    spec = importlib.util.find_spec(main.where)
    loader: Any = spec and spec.loader
    if spec is None or loader is None:
        raise ImportError(f"there is no module {main.where!r}")
    module.__file__, module.__package__, module.__spec__ = spec.origin, spec.parent, spec
    return module, loader.get_code(main.where)


@contextmanager
def _ending_the_import(loops: Sequence[str]) -> Iterator[None]:
    modules = [importlib.import_module(name) for name in loops]
    originals = [module.run for module in modules]
    for module in modules:
        module.run = _end_or_call(module.run)  # type: ignore[attr-defined]  # loops have it
    try:
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            module.run = original  # type: ignore[attr-defined]  # loops have it


def _end_or_call(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def end_or_call(*args: Any, **kwargs: Any) -> Any:
        # The file may keep this one (`from asyncio import run`), and a task may call it later.
        if not _is_importing():
            return run(*args, **kwargs)
        for argument in args:
            if isinstance(argument, types.CoroutineType):
                argument.close()
        raise StopImport

    return end_or_call


def _line_in(filename: str, trace: TracebackType | None) -> str:
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            return f"{os.path.basename(filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return ""
