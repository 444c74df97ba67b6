"""What the code inside of a CPU task can say to its caller.

Worker processes load this file without the rest of mega, so it knows only the standard library.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeAlias

__all__ = ["Report", "current_report", "progress"]

#: Takes a fraction from 0 to 1, and a note.
Report: TypeAlias = Callable[[float, str], None]

#: Carries a report to the caller of the task that this code is in.
current_report: ContextVar[Report | None] = ContextVar("mega_cpu_report", default=None)


def progress(fraction: float, note: str = "") -> None:
    """Tell the caller of this CPU task how far it is: `fraction` goes from 0 to 1.

    The caller hears of it by `task.options(on_progress=...)`. Outside of a pool, and when
    nobody listens, it does nothing. A thread that the task starts itself needs
    `contextvars.copy_context().run`.

    >>> progress(0.4, "reading")
    """
    report = current_report.get()
    if report is not None:
        report(min(1.0, max(0.0, float(fraction))), str(note))
