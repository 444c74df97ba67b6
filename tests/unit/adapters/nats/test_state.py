"""Job records: written without waiting, read behind one's own writes, followed without a gap."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator

import msgspec
import pytest

from mega.adapters.nats.broker import NatsBroker
from mega.adapters.nats.client import Client
from mega.wire.record import JobRecord, JobState
from tests.nats_server import NatsServer, nats_url
from tests.proxy import Proxy
from tests.unit.adapters.nats.asking import until_answer
from tests.waiting import until

FIRST = JobRecord(id="a.b", subject="email.send", state="waiting")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def at(state: JobState, attempt: int = 1) -> JobRecord:
    return msgspec.structs.replace(FIRST, state=state, attempt=attempt)


async def test_every_write_has_a_time_to_live(broker: NatsBroker, client: Client) -> None:
    headers: list[str] = []
    for write, ttl in ((broker.state.create, 0.2), (broker.state.write, 59.1)):
        await write(FIRST, ttl=ttl)
        await broker.state.get("a.b")
        request = {"last_by_subj": "$KV.MEGA_STATE.a%2Eb"}
        answer = await client.api("STREAM.MSG.GET.KV_MEGA_STATE", request)
        headers.append(b64decode(answer["message"]["hdrs"]).decode())

    assert "Nats-TTL: 1\r\n" in headers[0]
    assert "Nats-TTL: 60\r\n" in headers[1]


async def test_a_record_goes_when_its_time_is_over(broker: NatsBroker, client: Client) -> None:
    await broker.state.write(FIRST, ttl=1)
    assert FIRST == await broker.state.get("a.b")

    await until_answer(
        lambda: broker.state.get("a.b"), lambda record: record is None, what="the end of it"
    )

    await broker.state.create(FIRST, ttl=60)
    assert FIRST == await broker.state.get("a.b")


async def test_create_does_not_replace(broker: NatsBroker) -> None:
    await broker.state.write(at("running"), ttl=60)
    await broker.state.create(at("waiting"), ttl=60)

    assert at("running") == await broker.state.get("a.b")


async def test_a_read_sees_the_writes_before_it(broker: NatsBroker) -> None:
    for attempt in range(1, 301):
        await broker.state.write(at("running", attempt), ttl=60)
        if attempt % 3 == 0:
            assert at("running", attempt) == await broker.state.get("a.b")


async def test_following_starts_with_the_present_record_and_ends_with_the_last(
    broker: NatsBroker,
) -> None:
    await broker.state.write(at("running", 1), ttl=60)

    async with broker.state.follow("a.b") as records:
        assert at("running", 1) == await anext(records)
        for attempt in range(2, 501):
            await broker.state.write(at("running", attempt), ttl=60)
        seen = [0]
        async with asyncio.timeout(10):
            while seen[-1] != 500:
                seen.append((await anext(records)).attempt)

    assert sorted(set(seen)) == seen


async def test_a_write_that_the_store_refused_is_not_followed(broker: NatsBroker) -> None:
    await broker.state.write(at("running"), ttl=60)

    async with broker.state.follow("a.b") as records:
        assert at("running") == await anext(records)
        await broker.state.create(at("waiting"), ttl=60)
        await broker.state.write(at("done"), ttl=60)
        assert at("done") == await anext(records)


async def test_a_follower_misses_nothing_while_its_connection_is_away(
    broker: NatsBroker, server: NatsServer, client: Client
) -> None:
    async with broker.state.follow("a.b") as records:
        await broker.state.write(at("running"), ttl=60)
        assert at("running") == await anext(records)
        server.restart()
        await until(lambda: not client.up.is_set(), what="the link to break")
        async with NatsBroker(server.url(), name="elsewhere") as elsewhere:
            await elsewhere.state.write(at("done"), ttl=60)
            await elsewhere.state.get("a.b")
        async with asyncio.timeout(20):
            assert at("done") == await anext(records)


async def test_a_record_of_a_newer_release_is_as_good_as_none(
    broker: NatsBroker, client: Client
) -> None:
    record = b'{"id": "a", "subject": "email.send", "state": "paused"}'
    await client.nc.publish("$KV.MEGA_STATE.a", record)
    await client.nc.flush()
    await until_answer(lambda: broker.state.get("a"), lambda found: found is None, what="none")


@pytest.fixture
async def worker(proxy: Proxy, broker: NatsBroker) -> AsyncIterator[NatsBroker]:
    """A broker whose link can be cut; the other one has made the bucket."""
    async with NatsBroker(nats_url(proxy.port), name="worker") as worker:
        yield worker


async def test_a_record_that_was_lost_with_the_connection_is_written_again(
    broker: NatsBroker, worker: NatsBroker, proxy: Proxy
) -> None:
    await broker.state.create(FIRST, ttl=60)
    await broker.state.get("a.b")
    proxy.blackhole("up")
    await worker.state.write(at("running"), ttl=60)
    await worker.state.write(at("done"), ttl=60)
    await until(lambda: proxy.held > 0, what="the records in the proxy, which loses them")
    cut_and_heal(proxy)

    await until_record(broker, at("done"))


async def test_a_record_that_arrived_is_not_put_back_after_a_cut(
    broker: NatsBroker, worker: NatsBroker, proxy: Proxy
) -> None:
    """The retry ran in another worker before this one's connection was back."""
    await worker.state.write(at("retrying"), ttl=60)
    assert at("retrying") == await worker.state.get("a.b")
    proxy.refuse()
    await until(lambda: not worker._client.up.is_set(), what="the end of the connection")
    await broker.state.write(at("done", 2), ttl=60)
    assert at("done", 2) == await broker.state.get("a.b")
    proxy.heal()
    await until(worker._client.up.is_set, what="the connection")
    assert worker.state._repeating is not None
    await worker.state._repeating

    assert at("done", 2) == await worker.state.get("a.b")
    assert at("done", 2) == await broker.state.get("a.b")


async def test_what_is_written_without_a_connection_is_kept_unless_another_went_further(
    broker: NatsBroker, worker: NatsBroker, proxy: Proxy
) -> None:
    other = msgspec.structs.replace(FIRST, id="other")
    await broker.state.create(FIRST, ttl=60)
    proxy.refuse()
    await until(lambda: not worker._client.up.is_set(), what="the end of the connection")
    await worker.state.write(at("retrying"), ttl=60)
    await worker.state.write(other, ttl=60)
    await broker.state.write(at("done", 2), ttl=60)
    await broker.state.get("a.b")
    proxy.heal()

    await until_answer(
        lambda: broker.state.get("other"), lambda record: record == other, what="the other"
    )
    assert worker.state._repeating is not None
    await worker.state._repeating
    assert at("done", 2) == await worker.state.get("a.b")


async def test_repeating_reads_again_when_somebody_writes_meanwhile(broker: NatsBroker) -> None:
    await broker.state.write(at("running"), ttl=60)
    await broker.state.write(at("done"), ttl=60)
    await broker.state.get("a.b")
    kept = await broker.state.look("a.b")
    assert await broker.state.replace("a.b", at("waiting"), version=kept.version, ttl=60)

    await asyncio.gather(*(broker.state.repeat("a.b") for _ in range(8)))

    assert at("done") == await broker.state.get("a.b")


def cut_and_heal(proxy: Proxy) -> None:
    proxy.cut()
    proxy.heal()


async def until_record(broker: NatsBroker, expected: JobRecord) -> None:
    await until_answer(
        lambda: broker.state.get(expected.id), lambda found: found == expected, what=expected.state
    )
