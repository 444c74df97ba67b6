"""What a handler raises to say what becomes of its job."""

from __future__ import annotations

from mega.options import Seconds, to_seconds

__all__ = ["Control", "Reject", "Retry", "Snooze"]


class Control(Exception):
    """The root of what steers a job from inside its handler. `reason` is for people."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Control):
    """This attempt failed: run the job again `after` so many seconds (None: by its backoff).

    It counts as a failed attempt, so the last one ends in the dead letters.
    """

    def __init__(self, reason: str = "", *, after: Seconds | None = None) -> None:
        super().__init__(reason)
        self.after: float | None = None if after is None else to_seconds(after, option="after")


class Reject(Control):
    """This job can't succeed: it goes to the dead letters at once, whatever its retries."""


class Snooze(Control):
    """Not yet: run the job again after `for_` seconds. It costs no attempt."""

    def __init__(self, for_: Seconds, reason: str = "") -> None:
        super().__init__(reason)
        self.for_: float = to_seconds(for_, option="for_")
