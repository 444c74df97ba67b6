"""Tasks for the tests of the pool. Worker processes import this file as `pool_tasks`."""

from __future__ import annotations

import contextvars
import ctypes
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

log = logging.getLogger("pool_tasks")


class TwoArguments(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


class HoldsLock(Exception):
    def __init__(self) -> None:
        super().__init__("held")
        self.lock = threading.Lock()


class Handle:
    """Like the handle that `@app.cpu_task` leaves."""

    __mega_task__ = True

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __call__(self) -> NoReturn:
        raise AssertionError("the worker is to call the plain function")


def add(first: int, second: int = 0) -> int:
    return first + second


handled = Handle(add)


def same(value: Any) -> Any:
    return value


def process() -> int:
    return os.getpid()


def mark(path: str) -> None:
    """Write this process's number to `path`, in one step."""
    Path(f"{path}.new").write_text(str(os.getpid()))
    os.replace(f"{path}.new", path)


def exit_at_once(code: int) -> NoReturn:
    os._exit(code)


def segfault() -> None:
    ctypes.string_at(0)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fork_then_die() -> None:
    if os.fork() == 0:
        signal.pause()
    os._exit(7)


def daemon_holds_the_connection(path: str) -> None:
    """Leave a process of another session behind that holds every descriptor of this one."""
    descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    held = [fd for fd in descriptors if fd > 2 and Path(f"/proc/self/fd/{fd}").exists()]
    daemon = subprocess.Popen(["sleep", "1000"], pass_fds=held, start_new_session=True)
    Path(path).write_text(str(daemon.pid))
    os._exit(7)


def fork_and_return() -> int:
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return pid


def close_all_descriptors() -> None:
    os.closerange(3, 1000)
    while True:
        signal.pause()


def wait_for(path: str, go: str) -> str:
    mark(path)
    while not Path(go).exists():
        time.sleep(0.01)
    return "went"


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def run_here(function: Any) -> Any:
    """Call what only a thread can be given."""
    return function()


def report(*reports: Any) -> None:
    """Report progress: a fraction and a note, once or again and again."""
    from mega import cpu

    for fraction, note in zip(reports[::2], reports[1::2], strict=True):
        cpu.progress(fraction, note)


def report_later(go: str, done: str) -> None:
    """Leave a thread behind that reports, in this call's context, once `go` is there."""
    from mega import cpu

    def late() -> None:
        while not Path(go).exists():
            time.sleep(0.01)
        cpu.progress(0.5, "of another call")
        Path(done).touch()

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(late,), daemon=True).start()


def let_report(go: str, done: str) -> None:
    """Let that thread report, then report."""
    Path(go).touch()
    while not Path(done).exists():
        time.sleep(0.01)
    report(1.0, "mine")


def report_then_segfault() -> None:
    report(0.5, "last words")
    segfault()


def spin(path: str) -> NoReturn:
    mark(path)
    while True:
        pass


def spin_in_c(path: str) -> None:
    mark(path)
    sum(itertools.repeat(0))


def spin_with_grandchild(path: str, grandchild_path: str) -> NoReturn:
    grandchild = subprocess.Popen(["sleep", "1000"])
    Path(f"{grandchild_path}.new").write_text(str(grandchild.pid))
    os.replace(f"{grandchild_path}.new", grandchild_path)
    spin(path)


def has_signal_of_a_pipe() -> bool:
    """Say whether this process can let the kernel signal it when its parent is gone."""
    import fcntl

    return hasattr(fcntl, "F_SETSIG")


class StopsTheParent:
    """Raises StopIteration when it is rebuilt in another process than this."""

    def __reduce__(self) -> tuple[Any, ...]:
        return stop_in, (os.getppid(),)


def stop_in(pid: int) -> None:
    if os.getpid() == pid:
        raise StopIteration("no")


def return_what_stops_the_parent() -> StopsTheParent:
    return StopsTheParent()


def return_lock() -> Any:
    return threading.Lock()


def raise_two_arguments() -> NoReturn:
    raise TwoArguments(404, "absent")


def raise_holds_lock() -> NoReturn:
    raise HoldsLock


def raise_value_error() -> NoReturn:
    raise ValueError("three")


def sys_exit() -> NoReturn:
    sys.exit(3)


def interrupt() -> NoReturn:
    raise KeyboardInterrupt


def stop_iteration() -> NoReturn:
    next(iter(()))
    raise AssertionError


def raise_crash_of_its_own() -> NoReturn:
    from mega.errors import CpuCrashed

    error = CpuCrashed("of my own")
    error.started = False
    raise error


def ones(size: int) -> bytes:
    return b"\x01" * size


def allocate_without_end() -> None:
    held = []
    while True:
        held.append(b"\x01" * (16 << 20))


def write_to_stdout(text: str) -> None:
    os.write(1, text.encode())
    os.system(f"echo {text}")
    print(text)  # noqa: T201


def warn(text: str, **extra: Any) -> None:
    log.warning("said %s", text, extra=extra)


def warn_about_error() -> None:
    try:
        raise ValueError("three")
    except ValueError:
        log.exception("failed")


def warn_then_segfault() -> None:
    log.warning("last words")
    segfault()


def write_at_exit(path: str) -> int:
    import atexit

    atexit.register(Path(path).write_text, "left")
    return os.getpid()


def loaded_modules() -> list[str]:
    packages = ("mega", "anyio", "asyncio")
    return sorted(name for name in sys.modules if name.split(".")[0] in packages)


def child_module_identities() -> list[bool]:
    running = sys.modules["mega.adapters.pool.child"]
    import mega.adapters.pool.child
    import mega.adapters.pool.parent
    from mega.adapters.pool import child, frames
    from mega.adapters.pool.child import StopImport, end_import_in_child

    end_import_in_child()
    return [
        mega.adapters.pool.child is running,
        child is running,
        frames is sys.modules["mega.adapters.pool.frames"],
        vars(mega.adapters.pool.parent)["Kind"] is frames.Kind,
        StopImport is sys.modules["mega.adapters.pool.mainfile"].StopImport,
    ]


def ignored_signals_of_a_program() -> str:
    code = "import signal; print(*(signal.getsignal(n) is signal.SIG_IGN for n in (2, 15)))"
    return subprocess.check_output([sys.executable, "-c", code], text=True)


def oom_score() -> str:
    return Path("/proc/self/oom_score_adj").read_text().strip()


def variable(name: str) -> str | None:
    return os.environ.get(name)


def niceness() -> int:
    return os.nice(0)


def inheritable_descriptors() -> list[bool]:
    """Say for each descriptor above 2 whether a program started by the task would get it."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    return [
        os.get_inheritable(fd) for fd in numbers if fd > 2 and Path(f"/proc/self/fd/{fd}").exists()
    ]


def refuse() -> NoReturn:
    raise ValueError("no")


def start_thread_without_end() -> int:
    threading.Thread(target=threading.Event().wait).start()
    return os.getpid()


class RaisesWhenTaken:
    def __reduce__(self) -> NoReturn:
        raise RuntimeError("not to be taken apart")


def return_what_cannot_travel(what: str) -> Any:
    values: dict[str, Callable[[], Any]] = {
        "a lambda": lambda: lambda: None,
        "an open file": Path(os.devnull).open,
        "raises when taken": RaisesWhenTaken,
        "raises when rebuilt": StopsTheParent,
    }
    return values[what]()


def raise_of_a_library(what: str) -> NoReturn:
    errors: dict[str, Exception] = {
        "json": json.JSONDecodeError("m", "doc", 3),
        "unicode": UnicodeDecodeError("utf-8", b"x", 0, 1, "r"),
        "os": FileNotFoundError(2, "f", "path"),
    }
    raise errors[what]


def log_and_say(number: int) -> int:
    log.warning("number %s", number)
    return number
