"""What a child process is told to do, and the one job that every contender runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from benchmarks.record import Record

__all__ = ["BATCH", "Body", "How", "Order", "make_body", "payload"]

Body: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
How: TypeAlias = Literal["one by one", "64 at once", "in bulk", "paced"]

#: So many payloads are made, and handed to `enqueue_many`, at once.
BATCH = 10_000
PADDING = "x" * 60


@dataclass(frozen=True, kw_only=True)
class Order:
    """One process of one trial. `how` is None for a worker; `pause` is what each job sleeps."""

    contender: str
    server: str
    record: str
    jobs: int
    ack_wait: float
    loop: str
    how: How | None = None
    pause: float = 0.0

    def to_text(self) -> str:
        """Return it as a command line carries it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Order:
        """Return the order in a command line."""
        return cls(**json.loads(text))

    def open_record(self) -> Record:
        """Return the record that all processes of the trial share."""
        return Record(Path(self.record), self.jobs)


def payload(number: int, *, pause: float) -> dict[str, Any]:
    """Return a job's payload, about 100 bytes of JSON."""
    return {"number": number, "pause": pause, "padding": PADDING}


def make_body(record: Record) -> Body:
    """Return the job: note the start, sleep if asked to, note the end."""

    async def body(payload: dict[str, Any]) -> None:
        number, pause = payload["number"], payload["pause"]
        if not record.cpu_before:
            record.cpu_before = time.process_time()
        record.begin(number)
        if pause:
            await asyncio.sleep(pause)
        record.end(number)

    return body
