"""Claims by compare-and-set: one winner, growing fences, leases by the server's clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from mega.adapters.nats.broker import NatsBroker
from mega.adapters.nats.buckets import last_stored
from mega.adapters.nats.client import Client
from mega.adapters.nats.layout import CLAIMS, claims_stream, key_token
from mega.errors import LockBackendError
from mega.ports import Claim, Held, Lost, Skip
from tests.nats_server import NatsServer
from tests.unit.adapters.nats.asking import until_answer

KEY = "mega:schedule:nightly report"
TICK = datetime(2026, 11, 30, 3, tzinfo=UTC)
LATER = TICK + timedelta(days=1)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_of_many_contenders_one_wins(broker: NatsBroker) -> None:
    answers = await asyncio.gather(
        *(broker.claims.claim(KEY, tick=TICK, owner=f"o{n}", lease=None) for n in range(50))
    )

    won = [answer for answer in answers if isinstance(answer, Claim)]
    assert 1 == len(won)
    assert {Skip("taken", by=won[0].owner)} == {a for a in answers if isinstance(a, Skip)}
    assert TICK == await broker.claims.last_tick(KEY)


async def test_fences_grow_also_when_the_lease_was_given_up(broker: NatsBroker) -> None:
    fences = []
    for day in range(5):
        claim = await broker.claims.claim(
            KEY, tick=TICK + timedelta(days=day), owner=f"o{day}", lease=30.0
        )
        assert isinstance(claim, Claim)
        fences.append(claim.fence)
        await broker.claims.extend(claim)
        await broker.claims.release(claim)

    assert sorted(set(fences)) == fences


async def test_a_lease_that_ran_out_frees_the_schedule(broker: NatsBroker) -> None:
    await broker.claims.claim(KEY, tick=TICK, owner="a", lease=0.3)
    assert Skip("running", by="a") == await broker.claims.claim(
        KEY, tick=None, owner="b", lease=30.0
    )

    await until_answer(
        lambda: broker.claims.claim(KEY, tick=None, owner="b", lease=30.0),
        lambda answer: isinstance(answer, Claim),
        what="the lease to run out",
    )


async def test_a_denied_tick_does_not_lengthen_the_lease_that_denied_it(
    broker: NatsBroker,
) -> None:
    await broker.claims.claim(KEY, tick=TICK, owner="a", lease=1.0)

    days = count(1)
    await until_answer(
        lambda: broker.claims.claim(
            KEY, tick=TICK + timedelta(days=next(days)), owner="b", lease=30.0
        ),
        lambda answer: isinstance(answer, Claim),
        what="the lease to run out",
    )

    assert next(days) > 3


async def test_a_lease_is_lost_only_to_another_owner(broker: NatsBroker) -> None:
    mine = await broker.claims.claim(KEY, tick=TICK, owner="a", lease=0.0001)
    assert isinstance(mine, Claim)  # it has run out by now, and nobody takes it
    assert Held() == await broker.claims.extend(mine)

    await broker.claims.release(mine)
    theirs = await broker.claims.claim(KEY, tick=LATER, owner="b", lease=30.0)

    assert isinstance(theirs, Claim)
    assert Lost(by="b") == await broker.claims.extend(mine)
    await broker.claims.release(mine)
    assert Held() == await broker.claims.extend(theirs)


async def test_a_claim_that_is_repeated_begins_its_lease_anew(
    broker: NatsBroker, client: Client
) -> None:
    written = []
    for _ in range(2):
        answer = await broker.claims.claim(KEY, tick=TICK, owner="a", lease=30.0)
        stored = await last_stored(client, CLAIMS, key_token(KEY))
        written.append((answer, stored.sequence))  # a lease counts from the writing

    (first, before), (again, after) = written
    assert first == again
    assert before < after


async def test_a_record_that_vanished_is_no_proof_of_a_loss(
    broker: NatsBroker, client: Client
) -> None:
    mine = await broker.claims.claim(KEY, tick=TICK, owner="a", lease=30.0)
    assert isinstance(mine, Claim)
    await client.api("STREAM.PURGE.KV_MEGA_CLAIMS")

    assert Held(retaken=True) == await broker.claims.extend(mine)
    assert TICK == await broker.claims.last_tick(KEY)
    assert Skip("running", by="a") == await broker.claims.claim(
        KEY, tick=LATER, owner="b", lease=30.0
    )


async def test_a_tick_that_was_claimed_anew_after_a_loss_is_a_loss(
    broker: NatsBroker, client: Client
) -> None:
    mine = await broker.claims.claim(KEY, tick=TICK, owner="a", lease=30.0)
    assert isinstance(mine, Claim)
    await client.api("STREAM.PURGE.KV_MEGA_CLAIMS")
    theirs = await broker.claims.claim(KEY, tick=TICK, owner="b", lease=30.0)
    assert isinstance(theirs, Claim)
    await broker.claims.release(theirs)

    assert Lost(by="b") == await broker.claims.extend(mine)


async def test_fences_grow_over_the_loss_of_the_whole_bucket(
    broker: NatsBroker, client: Client, server: NatsServer
) -> None:
    before = await broker.claims.claim(KEY, tick=TICK, owner="a", lease=None)
    await client.api("STREAM.DELETE.KV_MEGA_CLAIMS")
    await client.api("STREAM.CREATE.KV_MEGA_CLAIMS", claims_stream(server.url()))
    after = await broker.claims.claim(KEY, tick=LATER, owner="b", lease=None)

    assert isinstance(before, Claim)
    assert isinstance(after, Claim)
    assert before.fence < after.fence


async def test_a_store_that_is_away_raises_and_nothing_else_does(
    broker: NatsBroker, server: NatsServer
) -> None:
    mine = await broker.claims.claim(KEY, tick=TICK, owner="a", lease=30.0)
    assert isinstance(mine, Claim)
    server.kill()

    with pytest.raises(LockBackendError):
        await broker.claims.claim(KEY, tick=LATER, owner="a", lease=30.0)
    with pytest.raises(LockBackendError):
        await broker.claims.extend(mine)
    with pytest.raises(LockBackendError):
        await broker.claims.last_tick(KEY)
