"""Signs of life of one connection."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mega.adapters.nats.client import Client
from mega.adapters.nats.lease_clock import lease_clock
from mega.adapters.nats.pulse import LOOK_EVERY, Pulse
from tests.nats_server import nats_url
from tests.proxy import Proxy
from tests.waiting import until


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    client = Client(nats_url(proxy.port), name="pulse")
    await client.open()
    yield client
    await client.close()


async def test_an_answer_proves_when_its_question_was_sent(client: Client) -> None:
    answers: list[float] = []
    pulse = Pulse(lambda: answers.append(lease_clock()))
    begun = lease_clock()

    assert pulse.is_felt(client.nc)
    await until(lambda: pulse.proven_at >= begun, what="the answer")
    assert [] == answers
    assert pulse.is_felt(client.nc)
    assert 1 == len(answers)


async def test_an_answer_that_was_held_up_is_followed_by_another_question_at_once(
    client: Client, proxy: Proxy
) -> None:
    """Or the link would be in doubt until the next look, and hand-overs would not begin."""
    answers: list[float] = []
    pulse = Pulse(lambda: answers.append(lease_clock()))
    proxy.blackhole("down")
    begun = lease_clock()
    assert pulse.is_felt(client.nc)
    await until(lambda: lease_clock() - begun > LOOK_EVERY, what="a late answer")
    healed = lease_clock()
    proxy.heal()

    await until(lambda: pulse.proven_at >= healed, what="the answer to a second question")
    assert 1 == len(answers)
