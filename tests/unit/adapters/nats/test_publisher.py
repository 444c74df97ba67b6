"""Storing: once for each id, also when the answer is lost; never over the server's limit."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from mega.adapters.nats.broker import NatsBroker
from mega.adapters.nats.client import Client
from mega.errors import BrokerUnavailable, PayloadTooLarge, UnknownSubject
from mega.options import JobOptions
from mega.ports import Delivery, Queue
from mega.wire.message import Message, new_id
from tests.nats_server import NatsServer

QUEUE = Queue("email.send", JobOptions(concurrency=4))
STREAM = "MEGA_JOBS_email_send"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def message(job_id: str = "", body: bytes = b"1") -> Message:
    return Message(id=job_id or new_id(), subject=QUEUE.subject, body=body)


async def stored(client: Client) -> int:
    return int((await client.api(f"STREAM.INFO.{STREAM}"))["state"]["messages"])


async def test_the_same_id_is_stored_once(broker: NatsBroker, client: Client) -> None:
    await broker.provide(QUEUE)

    receipts = [await broker.publish(message("a")) for _ in range(2)]

    assert [False, True] == [receipt.duplicate for receipt in receipts]
    assert 1 == await stored(client)


async def test_a_delayed_copy_waits_on_its_own_subject_and_arrives_once(
    broker: NatsBroker, client: Client
) -> None:
    await broker.provide(QUEUE)
    due_at = datetime.now(UTC) + timedelta(seconds=0.5)
    await broker.publish(message("a.b"), due_at=due_at)
    body = {"last_by_subj": "mega.sched.email_send.a%2Eb"}
    assert 1 == (await client.api(f"STREAM.MSG.GET.{STREAM}", body))["message"]["seq"]
    arrived: list[tuple[str, datetime]] = []
    draining = anyio.Event()

    async def run(delivery: Delivery) -> None:
        arrived.append(((delivery.headers or {})["Mega-Id"], datetime.now(UTC)))
        await delivery.ack()
        draining.set()

    await broker.consume(QUEUE, run, draining=draining)

    assert ["a.b"] == [job_id for job_id, _ in arrived]
    assert arrived[0][1] >= due_at
    assert 0 == await stored(client)


async def test_a_message_may_be_as_large_as_the_server_allows(
    broker: NatsBroker, client: Client
) -> None:
    await broker.provide(QUEUE)
    headers = len("NATS/1.0\r\nMega-Id: a\r\nNats-Msg-Id: a\r\n\r\n")
    largest = broker.max_size - headers

    await broker.publish(message("a", b"x" * largest))
    with pytest.raises(PayloadTooLarge, match=str(broker.max_size + 1)):
        await broker.publish(message("b", b"x" * (largest + 1)))

    await broker.publish(message("c"))
    assert 2 == await stored(client)


async def test_a_subject_without_a_stream_is_a_clear_error(broker: NatsBroker) -> None:
    with pytest.raises(UnknownSubject, match=r'nothing keeps jobs on "email.send"'):
        await broker.publish(message())


async def test_lost_answers_are_asked_for_again_and_nothing_is_stored_twice(
    broker: NatsBroker, client: Client, server: NatsServer
) -> None:
    await broker.provide(QUEUE)

    async with asyncio.TaskGroup() as tasks:
        for number in range(200):
            tasks.create_task(broker.publish(message(f"job-{number}")))
        await asyncio.sleep(0)
        server.restart()

    assert 200 == await stored(client)


async def test_a_server_that_stays_away_is_an_error_in_three_lines(
    broker: NatsBroker, server: NatsServer
) -> None:
    await broker.provide(QUEUE)
    server.kill()

    with pytest.raises(BrokerUnavailable) as caught:
        await broker.publish(message())

    lines = str(caught.value).splitlines()
    assert 3 == len(lines)
    assert str(server.port) in lines[0]


@pytest.mark.parametrize("job_id", ["order 17", "a\tb", "x.*.>"])
async def test_any_id_of_a_foreign_producer_can_be_delayed(broker: NatsBroker, job_id: str) -> None:
    await broker.provide(QUEUE)
    message = Message(id=job_id, subject=QUEUE.subject, body=b"1")
    receipt = await broker.publish(message, due_at=datetime.now(UTC) + timedelta(hours=1))
    assert not receipt.duplicate
