"""Streams and consumers: created if absent, compared, never altered."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from mega.adapters.nats import layout
from mega.adapters.nats.broker import NatsBroker
from mega.adapters.nats.client import ApiError, Client
from mega.adapters.nats.streams import Streams
from mega.errors import BrokerUnavailable, StreamMismatch
from mega.options import JobOptions
from mega.ports import Queue
from mega.wire.message import Message
from tests.nats_server import NatsServer

QUEUE = Queue("email.send", JobOptions(concurrency=2))
STREAM = "MEGA_JOBS_email_send"
CONSUMER = f"{STREAM}.workers"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def config(client: Client, what: str) -> dict[str, Any]:
    found: dict[str, Any] = (await client.api(what))["config"]
    return found


async def test_the_job_stream_is_what_section_6_says(broker: NatsBroker, client: Client) -> None:
    await broker.provide(QUEUE)

    found = await config(client, f"STREAM.INFO.{STREAM}")
    assert ["email.send", "mega.sched.email_send.*"] == found["subjects"]
    assert ("workqueue", "file", "old") == (found["retention"], found["storage"], found["discard"])
    assert 120_000_000_000 == found["duplicate_window"]
    assert found["allow_msg_schedules"]
    assert found["allow_msg_ttl"]
    assert found["allow_atomic"]


async def test_the_consumer_caps_what_is_in_hand(broker: NatsBroker, client: Client) -> None:
    await broker.provide(QUEUE)

    found = await config(client, f"CONSUMER.INFO.{CONSUMER}")
    assert (2, 1_000_000_000) == (found["max_ack_pending"], found["ack_wait"])
    assert ("email.send", "explicit") == (found["filter_subject"], found["ack_policy"])
    assert -1 == found["max_deliver"]


async def test_providing_again_says_nothing(
    broker: NatsBroker, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.provide(QUEUE)
    await broker.provide(QUEUE)

    assert [] == warnings(caplog)


async def test_drift_is_one_warning_and_the_stream_stays_as_it_is(
    server: NatsServer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = layout.job_stream(QUEUE, server.url()) | {"max_msgs": 50}
    await client.api(f"STREAM.CREATE.{STREAM}", theirs)

    async with NatsBroker(server.url(), name="test") as broker:
        await broker.provide(QUEUE)
        await broker.provide(QUEUE)

    expected = f"stream {STREAM}: max_msgs is 50, wanted -1; left as it is"
    assert [expected] == warnings(caplog)
    assert 50 == (await config(client, f"STREAM.INFO.{STREAM}"))["max_msgs"]


@pytest.mark.parametrize(
    "change",
    [{"retention": "limits"}, {"allow_msg_schedules": False}, {"subjects": ["email.send"]}],
)
async def test_a_stream_that_would_lose_jobs_is_refused(
    broker: NatsBroker, server: NatsServer, client: Client, change: dict[str, Any]
) -> None:
    await client.api(f"STREAM.CREATE.{STREAM}", layout.job_stream(QUEUE, server.url()) | change)

    with pytest.raises(StreamMismatch, match=next(iter(change))):
        await broker.provide(QUEUE)


async def test_a_subject_that_another_stream_takes_is_refused(
    broker: NatsBroker, client: Client
) -> None:
    await client.api("STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["email.>"]})

    with pytest.raises(StreamMismatch, match="overlap"):
        await broker.provide(QUEUE)


async def test_a_new_release_sets_the_limits_that_it_declares(
    broker: NatsBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.provide(QUEUE)
    await broker.provide(Queue(QUEUE.subject, JobOptions(concurrency=4)), is_serving=True)

    assert 4 == (await config(client, f"CONSUMER.INFO.{CONSUMER}"))["max_ack_pending"]
    assert [f"consumer {CONSUMER}: max_ack_pending is now 4, it was 2"] == warnings(caplog)


@pytest.mark.parametrize(("old", "new"), [(5.0, 20.0), (20.0, 5.0)])
async def test_an_ack_wait_of_a_new_release_is_set_when_no_worker_is_there(
    server: NatsServer, client: Client, old: float, new: float
) -> None:
    for ack_wait in (old, new):
        async with NatsBroker(server.url(ack_wait=ack_wait), name="test") as broker:
            await broker.provide(QUEUE, is_serving=True)

    assert new == (await config(client, f"CONSUMER.INFO.{CONSUMER}"))["ack_wait"] / 10**9


async def take_one(client: Client) -> None:
    """Be a worker that has a job in hand."""
    taken = asyncio.Event()

    async def take(message: object) -> None:
        taken.set()

    inbox = client.nc.new_inbox()
    await client.subscribe(inbox, take)
    await client.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{CONSUMER}", b"1", inbox)
    await taken.wait()


async def test_an_ack_wait_is_not_shortened_under_a_job_in_hand(
    server: NatsServer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Who has it renews its lease by the old one."""
    async with NatsBroker(server.url(ack_wait=20.0), name="old") as broker:
        await broker.provide(QUEUE)
        await broker.publish(Message(id="a", subject=QUEUE.subject, body=b"{}"))
        await take_one(client)

    async with NatsBroker(server.url(ack_wait=5.0), name="new") as broker:
        await broker.provide(QUEUE, is_serving=True)

    assert 20 == (await config(client, f"CONSUMER.INFO.{CONSUMER}"))["ack_wait"] / 10**9
    expected = f"consumer of stream {STREAM}: workers: ack_wait is 20 s, wanted 5 s; left as it is"
    assert [expected] == warnings(caplog)


async def test_an_old_release_that_looks_again_does_not_set_them_back(
    broker: NatsBroker, client: Client, server: NatsServer
) -> None:
    await broker.provide(Queue(QUEUE.subject, JobOptions(concurrency=4)))

    limits = await Streams(client, is_provisioning=True).provide(QUEUE)

    assert 4 == limits.in_hand
    assert 4 == (await config(client, f"CONSUMER.INFO.{CONSUMER}"))["max_ack_pending"]


async def test_without_provisioning_nothing_is_created(server: NatsServer, client: Client) -> None:
    async with NatsBroker(server.url(), name="test", is_provisioning=False) as broker:
        with pytest.raises(BrokerUnavailable, match=f"stream {STREAM} doesn't exist"):
            await broker.provide(QUEUE)

    assert 0 == (await client.api("INFO"))["streams"]


async def test_dead_letters_get_their_stream_when_one_is_needed(
    server: NatsServer, client: Client
) -> None:
    streams = Streams(client, is_provisioning=True)
    await streams.provide(QUEUE)
    with pytest.raises(ApiError):
        await client.api(f"STREAM.INFO.{STREAM}_DLQ")

    await streams.provide_dead_letters(QUEUE)

    found = await config(client, f"STREAM.INFO.{STREAM}_DLQ")
    assert ["email.send.dlq"] == found["subjects"]
    assert 7 * 24 * 3600 == found["max_age"] // 1_000_000_000


async def test_a_producer_does_not_set_the_limits_of_the_workers(
    broker: NatsBroker, client: Client
) -> None:
    await broker.provide(Queue(QUEUE.subject, JobOptions(concurrency=50)), is_serving=True)
    await broker.provide(QUEUE)

    assert 50 == (await config(client, f"CONSUMER.INFO.{CONSUMER}"))["max_ack_pending"]
