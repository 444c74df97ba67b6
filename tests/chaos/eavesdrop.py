"""What passes the proxies of a chaos run: which copy of which job was handed to whom, and answered.

Only the reports show it: it tells a hand-over that never arrived from one that came too late.
"""

from __future__ import annotations

import re
import time

from tests.chaos.history import Passing
from tests.proxy import Direction

__all__ = ["Eavesdropper"]

#: `$JS.ACK.<stream>.workers.<number of the hand-over>.<sequence>.…`
REPLY = rb"\$JS\.ACK\.(MEGA_JOBS_\w+)\.workers\.(\d+)\.(\d+)\."
HANDED_OVER = re.compile(rb"^HMSG \S+ \S+ " + REPLY + rb".*?\r\nMega-Id: ([^\r]+)", re.DOTALL)
ANSWERED = re.compile(rb"^H?PUB " + REPLY + rb".*?\r\n(.*)\r\n$", re.DOTALL)
ANSWERS = {b"": "ack", b"+WPI": "renewal", b"-NAK": "nak"}


class Eavesdropper:
    """Notes by job; `passings` is what it fills."""

    def __init__(self, passings: dict[str, list[Passing]]) -> None:
        self._passings = passings
        self._jobs: dict[tuple[bytes, bytes], str] = {}

    def note(self, slot: str, direction: Direction, message: bytes) -> None:
        """Take one message of that slot's proxy."""
        pattern = HANDED_OVER if direction == "down" else ANSWERED
        if b"$JS.ACK." in message and (match := pattern.match(message)):
            stream, number, copy, rest = match.groups()
            if direction == "down":
                self._jobs[stream, copy] = rest.decode()
            what = "hand-over" if direction == "down" else ANSWERS.get(rest, "answer")
            job_id = self._jobs.get((stream, copy))
            if job_id is not None:
                passing = Passing(time.monotonic(), slot, what, int(copy), int(number))
                self._passings.setdefault(job_id, []).append(passing)
