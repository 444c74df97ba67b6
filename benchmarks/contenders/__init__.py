"""The systems that are measured, each behind the same few calls; peers are imported when used."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from importlib import import_module
from typing import Any, ClassVar

from benchmarks.order import Body

__all__ = [
    "CALLERS",
    "CONTENDERS",
    "ENQUEUERS",
    "EXECUTOR",
    "OURS",
    "PEERS",
    "Contender",
    "at_once",
    "load",
]

CONCURRENCY = 256
ENQUEUERS = 64

OURS = ("mega", "mega-untracked")
PEERS = ("taskiq-nats", "faststream")
#: The standard library's ProcessPoolExecutor, which only CPU calls are measured beside.
EXECUTOR = "executor"
CALLERS = ("mega", EXECUTOR)

#: The module and class of each contender, in the order in which they are measured.
CONTENDERS = {
    "reference": "reference:Reference",
    "mega": "mega_jobs:Mega",
    "mega-untracked": "mega_jobs:MegaUntracked",
    "taskiq-nats": "taskiq_jobs:Taskiq",
    "faststream": "faststream_jobs:FastStreamJobs",
}


class Contender(ABC):
    """One system in one process. Entering connects a producer."""

    #: Whether `enqueue_many` is the system's own way.
    has_bulk: ClassVar[bool] = False

    def __init__(self, server: str, body: Body, *, ack_wait: float) -> None:
        self.server = server
        self.body = body
        self.ack_wait = ack_wait

    @abstractmethod
    async def __aenter__(self) -> Contender: ...
    @abstractmethod
    async def __aexit__(self, *exc_info: object) -> None: ...

    @abstractmethod
    async def enqueue(self, payload: dict[str, Any]) -> None:
        """Store one job; return when the server has confirmed it."""

    async def enqueue_many(self, payloads: list[dict[str, Any]]) -> None:
        """Store many jobs in the fastest way that the system offers."""
        await at_once(self, payloads)

    @abstractmethod
    async def work(self) -> None:
        """Run jobs until the process is killed. Nobody has entered it."""


async def at_once(contender: Contender, payloads: Iterable[dict[str, Any]]) -> None:
    """Enqueue from many tasks."""
    todo = iter(payloads)

    async def enqueue() -> None:
        for payload in todo:
            await contender.enqueue(payload)

    await asyncio.gather(*[enqueue() for _ in range(ENQUEUERS)])


def load(name: str) -> type[Contender]:
    """Return the class of a contender."""
    module, _, attribute = CONTENDERS[name].partition(":")
    found: type[Contender] = getattr(import_module(f"{__name__}.{module}"), attribute)
    return found
