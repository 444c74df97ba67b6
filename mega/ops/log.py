"""Console logging for `app.run()`. An app that configures logging itself keeps its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TextIO

from mega.context import RunFilter

__all__ = ["Console", "log_to_console"]

FORMAT = "%(asctime)s %(levelname)-7s %(name)s  %(message)s"
TIME = "%H:%M:%S"
REPEAT_AFTER = 30.0


def log_to_console(level: int) -> None:
    """Show `mega`'s log lines on stderr from `level` up, and all others from WARNING up."""
    root = logging.getLogger()
    if root.handlers:
        return
    root.addHandler(Console())
    root.setLevel(logging.WARNING)
    logging.getLogger("mega").setLevel(level)


class Console(logging.StreamHandler[TextIO]):
    """Lines on stderr that name the run they belong to; a repeated complaint is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(RunFormatter(FORMAT, TIME))
        self._repeats = RepeatedLines()
        self._run_filter = RunFilter()

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        for summary in self._repeats.overdue(now):
            super().emit(summary)
        if self._repeats.is_news(record, now):
            self._run_filter.filter(record)
            super().emit(record)

    def close(self) -> None:
        self.acquire()
        try:
            for summary in self._repeats.overdue(float("inf")):
                super().emit(summary)
        finally:
            self.release()
        super().close()


class RunFormatter(logging.Formatter):
    """Puts the run into brackets before the text, if there is one."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base's name
        run, text = getattr(record, "run", ""), record.message
        try:
            record.message = f"[{run}] {text}" if run else text
            return super().formatMessage(record)
        finally:
            record.message = text


class RepeatedLines:
    """What mega complains of again within 30 s is counted, and told as one line after that.

    A line that was given its job or schedule is never held back: a handler's own, or an event.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], tuple[logging.LogRecord, float]] = {}
        self._more: dict[tuple[str, str], int] = {}

    def is_news(self, record: logging.LogRecord, now: float) -> bool:
        """Return whether the record is to be shown; else count it."""
        if not is_complaint(record):
            return True
        key = (record.name, record.getMessage())
        if key in self._first:
            self._more[key] = self._more.get(key, 0) + 1
            return False
        self._first[key] = (record, now)
        return True

    def overdue(self, now: float) -> Iterator[logging.LogRecord]:
        """Forget the lines that were shown long ago; yield a summary of each that came again."""
        for key, (first, shown_at) in list(self._first.items()):
            if now - shown_at < REPEAT_AFTER:
                break  # they are in the order of time
            del self._first[key]
            if more := self._more.pop(key, 0):
                text = f"{key[1]} ({more} more times since it was said)"
                yield logging.makeLogRecord(
                    {"name": first.name, "levelno": first.levelno, "levelname": first.levelname}
                    | {"msg": text}
                )


def is_complaint(record: logging.LogRecord) -> bool:
    """Whether it is mega's own, at least a warning, and was given no run."""
    is_own = record.name == "mega" or record.name.startswith("mega.")
    names_a_run = "job_id" in vars(record) or "schedule" in vars(record)
    return is_own and record.levelno >= logging.WARNING and not names_a_run
