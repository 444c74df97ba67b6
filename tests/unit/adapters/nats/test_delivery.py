"""One hand-over: what its reply subject says, and the four ways to end it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import anyio
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from mega.adapters.nats.broker import NatsBroker
from mega.adapters.nats.client import ApiError, Client
from mega.adapters.nats.delivery import REMEMBERED, Desk, NatsDelivery
from mega.options import JobOptions
from mega.ports import Delivery, Queue, Run
from mega.wire.message import Message, server_id, unpack
from mega.wire.record import JobRecord
from tests.nats_server import NatsServer
from tests.unit.adapters.nats.asking import until_answer

SUBJECT = "email.send"
QUEUE = Queue(SUBJECT, JobOptions(concurrency=4))
STREAM = "MEGA_JOBS_email_send"
FAR = datetime(2100, 1, 1, tzinfo=UTC)
JOB = Message(id="a", subject=SUBJECT, body=b"1")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def desk() -> Desk:
    nothing = cast(Any, None)
    return Desk(nothing, nothing, nothing, nothing, nothing, QUEUE)


def delivery_of(reply: str, desk: Desk) -> NatsDelivery:
    return NatsDelivery(Msg(_client=NatsClient(), reply=reply, data=b"1"), desk)


async def consume_until(broker: NatsBroker, ended: asyncio.Event, run: Run) -> None:
    draining = anyio.Event()
    call = asyncio.create_task(broker.consume(QUEUE, run, draining=draining))
    async with asyncio.timeout(20):
        await ended.wait()
        draining.set()
        await call


def copy_of(delivery: Delivery) -> Message:
    found = unpack(SUBJECT, delivery.headers, delivery.body, fallback_id=delivery.fallback_id)
    return found.next_copy(
        attempt=found.attempt + 1, enqueued_at=found.enqueued_at or delivery.stored_at
    )


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.S.workers.3.17.21.1796060645477020033.5",
        "$JS.ACK.hub.hash.S.workers.3.17.21.1796060645477020033.5",
        "$JS.ACK.hub.hash.S.workers.3.17.21.1796060645477020033.5.random",
    ],
)
def test_every_form_of_the_reply_subject_is_read(reply: str, desk: Desk) -> None:
    delivery = delivery_of(reply, desk)

    assert (3, ("17", "1796060645477020033")) == (delivery.starts, delivery.place)
    assert datetime(2026, 11, 30, 17, 44, 5, 477020, UTC) == delivery.stored_at


def test_the_memory_of_ended_copies_is_bounded(desk: Desk) -> None:
    for number in range(3 * REMEMBERED):
        desk.remember((str(number), "0"))

    assert desk.has_ended((str(3 * REMEMBERED - 1), "0"))
    assert desk.has_ended((str(2 * REMEMBERED), "0"))
    assert not desk.has_ended(("0", "0"))


async def test_a_retry_is_stored_before_the_original_goes(
    broker: NatsBroker, client: Client
) -> None:
    await broker.provide(QUEUE)
    await broker.publish(JOB)
    seen: list[tuple[str, str]] = []
    ended = asyncio.Event()

    async def run(delivery: Delivery) -> None:
        headers = delivery.headers or {}
        seen.append((headers["Mega-Id"], headers.get("Mega-Attempt", "1")))
        if len(seen) == 3:
            await delivery.ack()
            ended.set()
        else:
            await delivery.retry(copy_of(delivery), after=0.0)

    await consume_until(broker, ended, run)

    assert [("a", "1"), ("a", "2"), ("a", "3")] == seen
    assert 0 == (await client.api(f"STREAM.INFO.{STREAM}"))["state"]["messages"]


async def test_a_retry_that_is_repeated_after_a_crash_is_stored_once(
    broker: NatsBroker, client: Client
) -> None:
    """The crash: the copy is stored, the original is not acknowledged and comes back."""
    await broker.provide(QUEUE)
    await broker.publish(JOB)
    ended = asyncio.Event()

    async def run(delivery: Delivery) -> None:
        assert isinstance(delivery, NatsDelivery)
        if delivery.starts == 1:
            copy = copy_of(delivery)
            await delivery._desk.publisher.publish(copy, server_id=server_id(copy), due_at=FAR)
        else:
            # The crash counts as an attempt, and the chain of the job's copies doesn't fork.
            await delivery.retry(copy_of(delivery).but(attempt=3), after=3600)
            ended.set()

    await consume_until(broker, ended, run)

    assert 1 == (await client.api(f"STREAM.INFO.{STREAM}"))["state"]["messages"]


async def test_a_copy_of_the_same_attempt_is_not_taken_for_a_duplicate(broker: NatsBroker) -> None:
    """A snooze: the id and the attempt are those of the first publish."""
    await broker.provide(QUEUE)
    await broker.publish(JOB)
    ended = asyncio.Event()
    count = 0

    async def run(delivery: Delivery) -> None:
        nonlocal count
        count += 1
        if count == 3:
            await delivery.ack()
            ended.set()
        else:
            await delivery.retry(copy_of(delivery).but(attempt=1), after=0.0)

    await consume_until(broker, ended, run)

    assert 3 == count


async def test_a_job_that_is_given_back_starts_afresh(broker: NatsBroker) -> None:
    await broker.provide(QUEUE)
    await broker.publish(JOB)
    starts: list[int] = []
    ended = asyncio.Event()

    async def run(delivery: Delivery) -> None:
        starts.append(delivery.starts)
        if len(starts) == 3:
            await delivery.ack()
            ended.set()
        else:
            await delivery.give_back(copy_of(delivery).but(attempt=1))

    await consume_until(broker, ended, run)

    assert [1, 1, 1] == starts


async def test_a_dead_letter_creates_its_stream_also_when_someone_deleted_it(
    broker: NatsBroker, client: Client
) -> None:
    await broker.provide(QUEUE)
    await broker.publish(JOB)
    await broker.publish(JOB.but(id="b"))
    with pytest.raises(ApiError):
        await client.api(f"STREAM.INFO.{STREAM}_DLQ")
    ended = asyncio.Event()
    letters: list[Any] = []

    async def run(delivery: Delivery) -> None:
        job_id = (delivery.headers or {})["Mega-Id"]
        await delivery.dead_letter(b'{"why":"no"}', letter_id=job_id)
        letters.append(await client.api(f"STREAM.MSG.GET.{STREAM}_DLQ", {"seq": 1}))
        await client.api(f"STREAM.DELETE.{STREAM}_DLQ")
        if len(letters) == 2:
            ended.set()

    queue = Queue(SUBJECT, JobOptions(concurrency=1))
    draining = anyio.Event()
    call = asyncio.create_task(broker.consume(queue, run, draining=draining))
    async with asyncio.timeout(20):
        await ended.wait()
        draining.set()
        await call

    assert ["email.send.dlq"] * 2 == [letter["message"]["subject"] for letter in letters]
    assert 0 == (await client.api(f"STREAM.INFO.{STREAM}"))["state"]["messages"]


async def test_a_copy_whose_ack_was_lost_is_acknowledged_again_without_a_run(
    broker: NatsBroker, client: Client, server: NatsServer
) -> None:
    await broker.provide(QUEUE)
    await broker.publish(JOB)
    runs = 0
    draining = anyio.Event()

    async def run(delivery: Delivery) -> None:
        nonlocal runs
        runs += 1
        assert isinstance(delivery, NatsDelivery)
        delivery._desk.remember(delivery.place)  # as `ack` does, but the server hears nothing

    call = asyncio.create_task(broker.consume(QUEUE, run, draining=draining))
    await until_answer(
        lambda: client.api(f"STREAM.INFO.{STREAM}"),
        lambda info: info["state"]["messages"] == 0,
        what="the second ack",
    )
    draining.set()
    await call

    assert 1 == runs


async def test_the_record_that_was_lost_with_an_ack_is_written_again_before_the_second_one(
    broker: NatsBroker, client: Client, server: NatsServer
) -> None:
    await broker.provide(QUEUE)
    await broker.publish(JOB)
    running = JobRecord(id="a", subject=SUBJECT, state="running")
    done = JobRecord(id="a", subject=SUBJECT, state="done")
    draining = anyio.Event()

    async def run(delivery: Delivery) -> None:
        assert isinstance(delivery, NatsDelivery)
        await broker.state.write(done, ttl=60)
        await broker.state.get("a")
        version = (await broker.state.look("a")).version
        await broker.state.replace("a", running, version=version, ttl=60)  # the server lost it
        delivery._desk.remember(delivery.place)  # as `ack` does, but the server hears nothing

    async with NatsBroker(server.url(), name="onlooker") as onlooker:
        call = asyncio.create_task(broker.consume(QUEUE, run, draining=draining))
        await until_answer(
            lambda: client.api(f"STREAM.INFO.{STREAM}"),
            lambda info: info["state"]["messages"] == 0,
            what="the second ack",
        )
        assert done == await onlooker.state.get("a")
        draining.set()
        await call
