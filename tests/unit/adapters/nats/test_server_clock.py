"""The server's clock, as it is known to a machine whose own clock is wrong."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest

from mega.adapters.nats.broker import NatsBroker
from mega.adapters.nats.client import Client
from mega.adapters.nats.server_clock import ServerClock, utc_now
from tests.nats_server import NatsServer

NEAR = timedelta(seconds=1)
SKEW = timedelta(seconds=120)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Wall:
    """A clock on the wall that somebody sets."""

    def __init__(self, skew: timedelta = timedelta()) -> None:
        self.skew = skew

    def now(self) -> datetime:
        return datetime.now(UTC) + self.skew


async def test_a_wrong_clock_is_set_right(broker: NatsBroker, client: Client) -> None:
    for skew in (SKEW, -SKEW):
        clock = ServerClock(client, Wall(skew).now)
        assert NEAR < abs(clock.now() - utc_now())
        await clock.measure()
        assert abs(clock.now() - utc_now()) < NEAR


async def test_a_broker_knows_the_time_from_the_start(server: NatsServer) -> None:
    async with NatsBroker(server.url(), name="test", now=Wall(SKEW).now) as broker:
        assert abs(broker.now() - utc_now()) < NEAR


async def test_a_clock_that_is_set_is_measured_anew(broker: NatsBroker, client: Client) -> None:
    wall = Wall()
    clock = ServerClock(client, wall.now)
    assert abs(await clock.measured_now() - utc_now()) < NEAR
    wall.skew = SKEW
    assert NEAR < abs(clock.now() - utc_now())
    assert abs(await clock.measured_now() - utc_now()) < NEAR


async def test_a_server_that_says_nothing_leaves_what_is_known(
    broker: NatsBroker, client: Client, server: NatsServer
) -> None:
    wall = Wall(SKEW)
    clock = ServerClock(client, wall.now)
    await clock.measure()
    server.kill()
    wall.skew += SKEW
    assert abs(await clock.measured_now() - utc_now() - SKEW) < NEAR


async def test_a_server_without_the_bucket_is_believed_to_be_right(client: Client) -> None:
    clock = ServerClock(client, utc_now)
    assert abs(await clock.measured_now() - utc_now()) < NEAR


async def test_a_wrong_clock_is_told_once(
    broker: NatsBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ServerClock(client, Wall(SKEW).now)
    behind = ServerClock(client, Wall(-SKEW).now)
    with caplog.at_level(logging.WARNING, "mega.broker"):
        for _ in range(2):
            await clock.measure()
        await behind.measure()
        await ServerClock(client, utc_now).measure()
    ahead, late = (record.getMessage() for record in caplog.records)
    assert ahead.startswith("the clock of this machine is 120.0 s ahead of that of nats://")
    assert late.startswith("the clock of this machine is 120.0 s behind that of nats://")
