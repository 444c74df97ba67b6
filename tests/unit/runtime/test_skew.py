"""A scheduler whose clock is wrong says so, by how much and which way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import anyio
import pytest

from mega.adapters.memory import MemoryBroker
from mega.adapters.memory_stores import MemoryClaims
from mega.errors import LockBackendError
from mega.group import Group
from mega.runtime.skew import BETWEEN_LOOKS, SkewWatch
from mega.testing import VirtualClock
from tests.unit.runtime.schedulers import processes


class OtherClock(MemoryClaims):
    """A store whose clock is that many seconds ahead, and which takes a while to tell."""

    def __init__(self, clock: VirtualClock, ahead: float, *, takes: float = 0.0) -> None:
        super().__init__(clock)
        self.ahead: float | None = ahead
        self._takes = takes

    async def time(self) -> datetime:
        await self._clock.sleep(self._takes)
        if self.ahead is None:
            raise LockBackendError("the lock store is away.")
        return self._clock.now() + timedelta(seconds=self.ahead)


@asynccontextmanager
async def watched(clock: VirtualClock, **stores: OtherClock) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(SkewWatch(stores, clock).run)
        await clock.advance(0)
        yield
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("ahead", "text"),
    [
        (-0.9, "is 0.9 s ahead of that of the lock store 'main': its ticks start that much early"),
        (
            3600.0,
            "is 3600.0 s behind that of the lock store 'main': its ticks start that much late",
        ),
    ],
)
async def test_a_clock_that_is_wrong_is_told_once(
    ahead: float, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    async with watched(clock, main=OtherClock(clock, ahead)):
        await clock.advance(3 * BETWEEN_LOOKS)
    assert [f"the clock of this machine {text}"] == caplog.messages


@pytest.mark.parametrize("ahead", [-0.5, 0.0, 0.5])
async def test_half_a_second_is_not_worth_a_line(
    ahead: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    async with watched(clock, main=OtherClock(clock, ahead)):
        await clock.advance(3 * BETWEEN_LOOKS)
    assert [] == caplog.messages


async def test_what_a_slow_answer_leaves_open_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    async with watched(clock, main=OtherClock(clock, 0.4, takes=0.8)):
        await clock.advance(BETWEEN_LOOKS)
    assert [] == caplog.messages


async def test_a_clock_that_changes_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    store = OtherClock(clock, 0.0)
    async with watched(clock, main=store):
        for ahead in (2.0, 2.2, None, 4.0, 0.0):
            store.ahead = ahead
            await clock.advance(BETWEEN_LOOKS)
    told = [
        line.removeprefix("the clock of this machine ").split(" that")[0]
        for line in caplog.messages
    ]
    assert ["is 2.0 s behind", "is 4.0 s behind", "agrees with the lock store 'main' again"] == told


async def test_each_store_has_a_clock_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    async with watched(clock, default=OtherClock(clock, 0.0), main=OtherClock(clock, 2.0)):
        await clock.advance(0)
    (line,) = caplog.messages
    assert "'main'" in line


async def test_a_scheduler_compares_its_clock_at_its_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group, clock = Group(), VirtualClock()

    @group.schedule(every=60)
    async def minutely() -> None: ...

    class Broker(MemoryBroker):
        claims = OtherClock(clock, -0.7)  # type: ignore[assignment]

    async with Broker(clock) as broker, processes(group, clock, "one", broker=broker):
        await clock.advance(0)
    (line,) = caplog.messages
    assert "is 0.7 s ahead of that of the lock store 'default'" in line
