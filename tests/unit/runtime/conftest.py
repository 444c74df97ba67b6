"""A stage for each test of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from mega.adapters.memory import MemoryBroker
from mega.events import Event
from mega.runtime.hub import Hub
from mega.runtime.surroundings import Surroundings
from mega.testing import VirtualClock
from tests.unit.runtime.stage import Stage


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    clock = VirtualClock()
    events: list[Event] = []

    async def note(event: Event) -> None:
        events.append(event)

    hub = Hub([(Event, note)])
    async with MemoryBroker(clock) as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(hub.run)
        around = Surroundings(app=None, broker=broker, hub=hub, clock=clock, worker="host:1")
        yield Stage(broker, clock, around, events)
        hub.close()
