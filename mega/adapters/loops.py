"""asyncio's event loop for a thread beside the program, up to the end of the interpreter."""

from __future__ import annotations

import socket
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
    """A loop that goes on, and can be closed, when no thread can be started any more.

    That is so as soon as the interpreter ends. asyncio looks up the names of hosts in an
    executor, and from Python 3.12 on starts a thread to shut that down.
    """

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        try:
            return await super().getaddrinfo(host, port, **options)
        except RuntimeError:  # the executor takes nothing more
            return socket.getaddrinfo(host, port, **options)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # A call from another thread that the end cuts off; who made it is told.
        if not isinstance(context.get("exception"), CancelledError):
            super().call_exception_handler(context)

    async def shutdown_default_executor(self, *args: Any, **options: Any) -> None:
        with suppress(RuntimeError):
            await super().shutdown_default_executor(*args, **options)
