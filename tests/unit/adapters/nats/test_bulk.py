"""Many messages at once: in batches where that goes, never twice when an answer is lost."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import pytest

from mega.adapters.nats.broker import NatsBroker
from mega.adapters.nats.bulk import MOST_BYTES, MOST_MESSAGES, cut
from mega.adapters.nats.client import Client
from mega.adapters.nats.layout import job_stream
from mega.adapters.nats.publisher import Outgoing
from mega.errors import BrokerFull, BrokerUnavailable, PayloadTooLarge
from mega.options import JobOptions
from mega.ports import NotBegun, Queue, Receipt
from mega.wire.message import Message, new_id
from tests.nats_server import NatsServer, nats_url
from tests.proxy import Proxy

QUEUE = Queue("email.send", JobOptions(concurrency=4))
STREAM = "MEGA_JOBS_email_send"
COMMITTED = rb'"batch":'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def messages(count: int, body: bytes = b"1") -> list[Message]:
    return [Message(id=new_id(), subject=QUEUE.subject, body=body) for _ in range(count)]


async def stored(client: Client) -> int:
    return int((await client.api(f"STREAM.INFO.{STREAM}"))["state"]["messages"])


async def headers_of_last(client: Client) -> str:
    request = {"last_by_subj": QUEUE.subject}
    answer = await client.api(f"STREAM.MSG.GET.{STREAM}", request)
    return b64decode(answer["message"]["hdrs"]).decode()


def without_batches() -> dict[str, Any]:
    """Return a stream as an operator, or an older release, may have made it."""
    return job_stream(QUEUE, nats_url(0)) | {"allow_atomic": False}


async def test_many_are_stored_in_batches(broker: NatsBroker, client: Client) -> None:
    await broker.provide(QUEUE)
    receipts = await broker.publish_many(messages(1001))
    assert [Receipt(duplicate=False)] * 1001 == receipts
    assert 1001 == await stored(client)


async def test_the_last_of_a_batch_commits_it(broker: NatsBroker, client: Client) -> None:
    await broker.provide(QUEUE)
    await broker.publish_many(messages(3))
    assert "Nats-Batch-Sequence: 3\r\nNats-Batch-Commit: 1\r\n" in await headers_of_last(client)
    await broker.publish_many(messages(1))
    assert "Nats-Batch" not in await headers_of_last(client)


async def test_a_stream_without_batches_takes_many_all_the_same(
    broker: NatsBroker, client: Client
) -> None:
    await client.api(f"STREAM.CREATE.{STREAM}", without_batches())
    for _ in range(2):
        receipts = await broker.publish_many(messages(600))
        assert [Receipt(duplicate=False)] * 600 == receipts
    assert 1200 == await stored(client)
    assert "Nats-Batch" not in await headers_of_last(client)


async def test_a_batch_whose_answer_is_lost_is_stored_once(
    server: NatsServer, proxy: Proxy, client: Client
) -> None:
    async with NatsBroker(nats_url(proxy.port), name="test") as broker:
        await broker.provide(QUEUE)
        proxy.drop(COMMITTED)
        outcomes = await broker.publish_many(messages(50))
    assert 1 == proxy.dropped[COMMITTED]
    assert [Receipt] * 50 == [type(outcome) for outcome in outcomes]
    assert 50 == await stored(client)


async def test_a_batch_that_is_cut_in_two_is_stored_once(
    server: NatsServer, proxy: Proxy, client: Client
) -> None:
    async with NatsBroker(nats_url(proxy.port), name="test") as broker:
        await broker.provide(QUEUE)
        proxy.drop(rb"Nats-Batch-Sequence: 20\r\n", direction="up")
        outcomes = await broker.publish_many(messages(50))
    assert [Receipt] * 50 == [type(outcome) for outcome in outcomes]
    assert 50 == await stored(client)


async def test_a_server_that_restarts_in_between_has_each_message_once(
    broker: NatsBroker, client: Client, server: NatsServer
) -> None:
    await broker.provide(QUEUE)
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(broker.publish_many(messages(700))) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.to_thread(server.restart)
    outcomes = [outcome for call in calls for outcome in call.result()]
    assert [Receipt] * 2100 == [type(outcome) for outcome in outcomes]
    assert 2100 == await stored(client)


async def test_a_server_that_stays_away_is_told_for_each(
    broker: NatsBroker, server: NatsServer
) -> None:
    await broker.provide(QUEUE)
    server.kill()
    begun: list[Message] = []

    async def begin(part: Sequence[Message]) -> None:
        begun.extend(part)

    sent = messages(1200)
    outcomes = await broker.publish_many(sent, on_begin=begin)
    kinds = [type(outcome) for outcome in outcomes]
    assert [BrokerUnavailable] * 1000 + [NotBegun] * 200 == kinds
    assert sent[:1000] == begun


async def test_what_can_not_begin_is_not_sent(broker: NatsBroker, client: Client) -> None:
    refusal = BrokerUnavailable("no room for records.")

    async def begin(part: Sequence[Message]) -> None:
        raise refusal

    await broker.provide(QUEUE)
    assert [refusal] * 2 == await broker.publish_many(messages(2), on_begin=begin)
    assert 0 == await stored(client)


async def test_what_there_is_no_room_for_is_told_message_by_message() -> None:
    with NatsServer(limits="max_file_store: 1MB") as server:
        async with NatsBroker(server.url(), name="test") as broker:
            await broker.provide(QUEUE)
            outcomes = await broker.publish_many(messages(1000, b"x" * 1500))
            kept = await stored(broker._client)
    kinds = [type(outcome) for outcome in outcomes]
    assert {Receipt, BrokerFull} == set(kinds)
    assert [Receipt] * 500 == kinds[:500]
    assert kinds.count(Receipt) == kept


async def test_a_message_that_its_batch_would_make_too_large_is_refused(
    broker: NatsBroker, client: Client
) -> None:
    """Over its limit the server would close the connection."""
    await broker.provide(QUEUE)
    # It would fit alone, but not with the headers of a batch.
    largest = broker.max_size - len("NATS/1.0\r\n\r\n") - 2 * len("Mega-Id: \r\n" + new_id()) - 30
    with pytest.raises(PayloadTooLarge):
        await broker.publish_many(messages(2, b"x" * largest))
    await broker.publish_many(messages(2))
    assert 2 == await stored(client)


async def test_what_the_stream_finds_too_large_is_told_message_by_message(
    broker: NatsBroker, client: Client
) -> None:
    """Someone gave the stream a limit below the server's."""
    await broker.provide(QUEUE)
    info = await client.api(f"STREAM.INFO.{STREAM}")
    await client.api(f"STREAM.UPDATE.{STREAM}", info["config"] | {"max_msg_size": 500})
    outcomes = await broker.publish_many(messages(1) + messages(1, b"x" * 1000))
    assert [Receipt, PayloadTooLarge] == [type(outcome) for outcome in outcomes]
    assert 1 == await stored(client)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([1], [1]),
        ([1] * MOST_MESSAGES, [MOST_MESSAGES]),
        ([1] * (2 * MOST_MESSAGES + 1), [MOST_MESSAGES, MOST_MESSAGES, 1]),
        ([MOST_BYTES + 1] * 3, [1, 1, 1]),
        ([MOST_BYTES // 2] * 5, [2, 2, 1]),
        ([MOST_BYTES + 1, 1, 1], [1, 2]),
    ],
)
def test_batches_have_a_size_that_the_server_takes(sizes: list[int], expected: list[int]) -> None:
    outgoings = [Outgoing("email.send", b"x" * size, {}) for size in sizes]
    batches = [outgoings[part] for part in cut(outgoings)]
    assert expected == [len(batch) for batch in batches]
    assert outgoings == [outgoing for batch in batches for outgoing in batch]
