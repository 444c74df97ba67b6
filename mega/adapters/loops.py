"""asyncio's event loop for a thread beside the program, up to the end of the interpreter."""

from __future__ import annotations

import sys
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

__all__ = ["LoopAside"]

if sys.platform == "win32":
    from asyncio import ProactorEventLoop as Usual
else:
    from asyncio import SelectorEventLoop as Usual


class LoopAside(Usual):
    """A loop that can also be closed when no thread can be started any more.

    From Python 3.12 on that is so as soon as the interpreter ends, and asyncio starts one to
    shut down the executor in which it has looked up the names of hosts.
    """

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # A call from another thread that the end cuts off; who made it is told.
        if not isinstance(context.get("exception"), CancelledError):
            super().call_exception_handler(context)

    async def shutdown_default_executor(self, *args: Any, **options: Any) -> None:
        with suppress(RuntimeError):
            await super().shutdown_default_executor(*args, **options)
