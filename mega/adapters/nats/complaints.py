"""What the connection says of itself: one line each in the log, three in an error."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time

from nats.errors import UnexpectedEOF

from mega.errors import BrokerUnavailable
from mega.options import BrokerUrl

__all__ = ["Complaints", "explain", "is_refusal", "logger"]

logger = logging.getLogger("mega.broker")

HINTS = {
    "nats": "Start `nats-server -js` there, or name another broker (--broker, MEGA_BROKER).",
    "embedded": "See what the server wrote into server.log, in its data folder.",
}
REPEAT_AFTER = 30.0


def explain(error: BaseException) -> str:
    """Return the end of a sentence that begins with the server's address."""
    match error:
        case ConnectionRefusedError():
            return "refused the connection"
        case TimeoutError() | asyncio.TimeoutError():
            return "did not answer in time"
        case socket.gaierror():
            return "is not a host that can be found"
        case ssl.SSLError():
            return f"failed in the TLS handshake: {error.reason or error}"
        case UnexpectedEOF() | ConnectionResetError():
            return "closed the connection"
        case _:
            return str(error).removeprefix("nats: ") or type(error).__name__


def is_refusal(error: BaseException) -> bool:
    """Whether trying again can't help: the server knows the client and won't have it."""
    return any(word in str(error).lower() for word in ("authorization", "authentication"))


class Complaints:
    """Says each thing once in a while, however often it happens. Quiet, it says all as debug."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._level = logging.DEBUG if is_quiet else logging.WARNING
        self.last_refusal = ""
        self._said_at: dict[str, float] = {}
        self._down_since = 0.0

    def note(self, where: str, error: Exception) -> None:
        """Log an error of the connection; its end is told by `went_down`."""
        if isinstance(error, UnexpectedEOF | ConnectionResetError | BrokenPipeError):
            return
        text = explain(error)
        if "permissions violation" in text.lower():
            self.last_refusal = text
        self._say(f"{where} {text}")

    def failed_try(self, where: str, cause: str, wait: float) -> None:
        """Log one try of the first connect, before the next one."""
        logger.log(self._level, "%s %s; trying again in %g s", where, cause, wait)

    def went_down(self, where: str) -> None:
        """Log that the server is away."""
        self._down_since = time.monotonic()
        logger.log(self._level, "%s is away; reconnecting until it is back", where)

    def came_up(self, where: str) -> None:
        """Log that it is back, and for how long it was not."""
        self._said_at.clear()
        logger.log(
            self._level, "%s is back after %.1f s", where, time.monotonic() - self._down_since
        )

    def unavailable(self, url: BrokerUrl, cause: str) -> BrokerUnavailable:
        """Return the error in three lines: which server, why, and what to start."""
        if self.last_refusal:
            cause = f"{cause} (the server said: {self.last_refusal})"
        return BrokerUnavailable(
            f"{url.text} can't be used.",
            where=f"Cause: {cause}.",
            hint=HINTS.get(url.kind, ""),
        )

    def _say(self, text: str) -> None:
        now = time.monotonic()
        if now - self._said_at.get(text, -REPEAT_AFTER) >= REPEAT_AFTER:
            self._said_at[text] = now
            logger.log(self._level, "%s", text)
