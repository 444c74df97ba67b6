"""Console logging for `app.run()`. An app that configures logging itself keeps its own."""

from __future__ import annotations

import logging

__all__ = ["log_to_console"]

FORMAT = "%(asctime)s %(levelname)-7s %(name)s  %(message)s"
TIME = "%H:%M:%S"


def log_to_console(level: int) -> None:
    """Show `mega`'s log lines on stderr from `level` up, and all others from WARNING up."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT, TIME))
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("mega").setLevel(level)
