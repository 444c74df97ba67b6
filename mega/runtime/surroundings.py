"""What all runs of one process share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mega.context import RunContext
from mega.declare.registry import Middleware
from mega.options import DEFAULT_LOCK, Lock
from mega.ports import Broker, ClaimStore, Clock
from mega.runtime.hub import Hub
from mega.runtime.threads import Threads

__all__ = ["Surroundings"]


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The app that is served, with its broker, events and clock.

    `worker` names this process to people: in records, dead letters and skips. `locks` are the
    lock stores beside the broker's. `in_hand` are the runs whose handlers are being called,
    with the clock's reading at their start.
    """

    app: Any
    broker: Broker
    hub: Hub
    clock: Clock
    worker: str
    locks: Mapping[str, ClaimStore] = field(default_factory=dict)
    middleware: Sequence[Middleware] = ()
    threads: Threads = field(default_factory=Threads)
    in_hand: dict[RunContext, float] = field(default_factory=dict)

    def claims_for(self, lock: Lock | None) -> ClaimStore:
        """Return the store that decides the ticks of a schedule with that lock."""
        if lock is None or lock.store == DEFAULT_LOCK:
            return self.broker.claims
        return self.locks[lock.store]
