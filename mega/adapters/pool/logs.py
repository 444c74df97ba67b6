"""Log records of a worker process, written by the parent's loggers: one writer, one set of rules.

Both sides import this room. Only the standard library.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["LogForwarder", "log_again", "log_levels"]


class LogForwarder(logging.Handler):
    """Sends each record as plain values, with `context` (job id and the like) added to it."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self.context: Mapping[str, str | int] = {}
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(self._plain(record))
        except Exception:
            self.handleError(record)

    def _plain(self, record: logging.LogRecord) -> dict[str, Any]:
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        plain = {
            name: value
            for name, value in vars(record).items()
            if value is None or type(value) in (str, int, float, bool)
        }
        return {**self.context, **plain, "msg": record.getMessage(), "exc_info": None}

    def install(self, levels: Mapping[str, int]) -> None:
        """Become the only handler of this process, at the parent's levels."""
        for logger in logging.root.manager.loggerDict.values():
            if isinstance(logger, logging.Logger):
                logger.handlers.clear()
                logger.propagate = True
        logging.root.handlers[:] = [self]
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def log_levels() -> dict[str, int]:
    """Return the levels that are set in this process, by logger name."""
    loggers = logging.root.manager.loggerDict.values()
    found = [logger for logger in loggers if isinstance(logger, logging.Logger)]
    levels = {logger.name: logger.level for logger in found if logger.level}
    return {**levels, "root": logging.root.level}


def log_again(plain: dict[str, Any]) -> None:
    """Hand a record of a worker to this process's logger of that name."""
    record = logging.makeLogRecord(plain)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
