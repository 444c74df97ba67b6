"""What all runs of one process share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mega.declare.registry import Middleware
from mega.ports import Broker, Clock
from mega.runtime.hub import Hub

__all__ = ["Surroundings"]


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The app that is served, with its broker, events and clock.

    `worker` names this process to people: in records, dead letters and skips.
    """

    app: Any
    broker: Broker
    hub: Hub
    clock: Clock
    worker: str
    middleware: Sequence[Middleware] = ()
