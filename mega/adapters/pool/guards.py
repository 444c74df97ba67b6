"""What a worker process arranges around itself before it loads anything of the user.

Only the standard library.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import sys
import threading
from contextlib import suppress

__all__ = ["arrange", "limit"]


def arrange(*, lifeline: int, trace: int) -> None:
    """Die with the parent, outlive Ctrl-C, leave a stack behind, spare the parent in an OOM."""
    _outlive_stop_signals()
    _die_with_parent(lifeline)
    faulthandler.enable(file=trace, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file=trace, all_threads=False)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")


def limit(*, memory: int | None, nice: int) -> None:
    if memory is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    if nice:
        os.nice(nice)


def _outlive_stop_signals() -> None:
    # Handlers, not SIG_IGN: an ignored signal stays ignored in every program a task starts.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


def _die_with_parent(lifeline: int) -> None:
    """Kill this process's whole group once the only writer of `lifeline`, the parent, is gone.

    The kernel does it, also while C code holds the GIL. Not PR_SET_PDEATHSIG: that follows
    the parent's thread, not its process, and doesn't reach what a task has started.
    """
    if sys.platform == "linux" and hasattr(fcntl, "F_SETSIG"):
        with suppress(OSError):
            fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
            flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
            fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    # The net where that isn't known, and for a parent that died before it was asked for.
    threading.Thread(target=_watch, args=(lifeline,), daemon=True, name="mega-lifeline").start()


def _watch(lifeline: int) -> None:
    with suppress(OSError):
        os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)
