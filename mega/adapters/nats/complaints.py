"""What the connection says of itself: one line each in the log, three in an error."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
import time
from collections import Counter

from nats.errors import UnexpectedEOF

from mega.errors import BrokerUnavailable
from mega.urls import BrokerUrl

__all__ = ["Complaints", "Repeats", "explain", "is_refusal", "logger"]

logger = logging.getLogger("mega.broker")

HINTS = {
    "nats": "Start `nats-server -js` there, or name another broker (--broker, MEGA_BROKER).",
    "embedded": "See what the server wrote into server.log, in its data folder.",
}
REPEAT_AFTER = 30.0
FIRST_REMINDER = 15.0
MOST_TEXTS = 1000


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


class Repeats:
    """Says a thing that goes on happening once in a while, with the number of times.

    The same thing has the same `key`. It is said at once, then after 30 s, 60 s, 120 s...
    """

    def __init__(self, *, level: int = logging.WARNING) -> None:
        self._level = level
        self._said: dict[str, tuple[float, float]] = {}
        self._unsaid: Counter[str] = Counter()

    def say(self, key: str, text: str) -> None:
        """Log the text, or count it."""
        now = time.monotonic()
        due_at, wait = self._said.get(key, (now, REPEAT_AFTER))
        if now < due_at:
            self._unsaid[key] += 1
            return
        times = self._unsaid.pop(key, 0)
        logger.log(self._level, "%s%s", text, f" (and {times} times before)" if times else "")
        if len(self._said) >= MOST_TEXTS:
            self.forget()
        self._said[key] = (now + wait, 2 * wait)

    def forget(self) -> None:
        """Say everything at once again: what went on happening has ended."""
        self._said.clear()
        self._unsaid.clear()


class Complaints:
    """Says what happens to the connection, and nothing too often. Quiet, it says all as debug."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._level = logging.DEBUG if is_quiet else logging.WARNING
        self.last_refusal = ""
        self._repeats = Repeats(level=self._level)
        self._down_since = math.inf
        self._reminded_after = 0.0

    def note(self, where: str, error: Exception) -> None:
        """Log an error of the connection; its end is told by `went_down`."""
        if isinstance(error, UnexpectedEOF | ConnectionResetError | BrokenPipeError):
            return
        text = explain(error)
        if "permissions violation" in text.lower():
            self.last_refusal = text
        self._repeats.say(text, f"{where} {text}")

    def failed_try(self, where: str, cause: str, wait: float) -> None:
        """Log one try of the first connect, before the next one."""
        if self._down_since == math.inf:
            logger.log(self._level, "%s %s; trying again in %g s", where, cause, wait)

    def went_down(self, where: str) -> None:
        """Log that the server is away."""
        self._down_since = time.monotonic()
        self._reminded_after = FIRST_REMINDER
        logger.log(
            self._level,
            "%s is away; reconnecting until it is back. Jobs wait there, enqueues fail",
            where,
        )

    def still_away(self, where: str) -> None:
        """Log it again, each time after twice as long."""
        seconds = time.monotonic() - self._down_since
        if seconds >= self._reminded_after:
            self._reminded_after *= 2
            logger.log(self._level, "%s is still away after %.0f s; reconnecting", where, seconds)

    def came_up(self, where: str) -> None:
        """Log that it is back, and for how long it was not."""
        self._repeats.forget()
        seconds = time.monotonic() - self._down_since
        self._down_since = math.inf
        logger.log(self._level, "%s is back after %.1f s", where, seconds)

    def unavailable(self, url: BrokerUrl, cause: str) -> BrokerUnavailable:
        """Return the error in three lines: which server, why, and what to start."""
        if self.last_refusal:
            cause = f"{cause} (the server said: {self.last_refusal})"
        return BrokerUnavailable(
            f"{url.text} can't be used.",
            where=f"Cause: {cause}.",
            hint=HINTS.get(url.kind, ""),
        )
