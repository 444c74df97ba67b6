"""The options of a CPU pool, as a frozen record that is checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from mega.errors import BadOption
from mega.options import SHORTEST, check_choice, check_count, refuse_unknown, to_seconds

__all__ = ["PoolMode", "PoolOptions"]

PoolMode: TypeAlias = Literal["process", "thread"]

ONLY_FOR_PROCESSES = (
    "recycle_after",
    "recycle_rss",
    "memory_limit",
    "nice",
    "start_timeout",
    "restart_window",
)


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """How a CPU pool is run. Sizes in bytes, times in seconds.

    `size` None means one process less than there are CPUs, at least one. After more than
    `max_restarts` crashes within `restart_window` the pool refuses calls for that long.
    `mode="thread"` runs the tasks in threads of this process. They can't be killed, so a call
    that times out leaves its thread behind; while there are more than `max_restarts` of these
    the pool refuses calls.
    """

    size: int | None = None
    mode: PoolMode = "process"
    max_restarts: int = 5
    restart_window: float | None = 60.0
    max_queue: int | None = None
    recycle_after: int | None = None
    recycle_rss: int | None = None
    memory_limit: int | None = None
    nice: int = 0
    start_timeout: float = 30.0

    def __post_init__(self) -> None:
        check_count(self.max_restarts, option="max_restarts")
        check_choice(self.mode, PoolMode, option="mode")
        for name in ("size", "recycle_after", "recycle_rss", "memory_limit"):
            value = getattr(self, name)
            if value is not None:
                check_count(value, option=name, minimum=1)
        if self.max_queue is not None:
            check_count(self.max_queue, option="max_queue")
        if self.restart_window is not None:
            to_seconds(self.restart_window, option="restart_window", minimum=SHORTEST)
        to_seconds(self.start_timeout, option="start_timeout", minimum=SHORTEST)
        if not isinstance(self.nice, int) or self.nice not in range(-20, 20):
            raise BadOption(f"nice={self.nice!r} is not a whole number from -20 to 19.")
        self._refuse_what_threads_lack()

    def _refuse_what_threads_lack(self) -> None:
        if self.mode == "process":
            return
        for option in fields(self):
            name = option.name
            if name in ONLY_FOR_PROCESSES and getattr(self, name) != option.default:
                raise BadOption(
                    f'a pool with mode="thread" has no {name}=: that is for processes.',
                    hint=f'Leave out {name}=, or use mode="process".',
                )

    @classmethod
    def of(cls, options: dict[str, Any]) -> PoolOptions:
        """Make the record from keyword arguments. Raises: BadOption for an unknown one."""
        known = {option.name for option in fields(cls)}
        unknown = {name: value for name, value in options.items() if name not in known}
        refuse_unknown(unknown, known, what="a pool")
        return cls(**options)
