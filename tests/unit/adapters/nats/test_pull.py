"""The standing pull: it comes back after whatever ended it, and never has too much in hand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from mega.adapters.nats.broker import NatsBroker
from mega.adapters.nats.client import Client
from mega.adapters.nats.pull import why_ended
from mega.options import JobOptions
from mega.ports import Delivery, Queue
from mega.wire.message import Message
from tests.nats_server import NatsServer
from tests.unit.adapters.nats.asking import until_answer
from tests.waiting import until

SUBJECT = "email.send"
QUEUE = Queue(SUBJECT, JobOptions(concurrency=4))
ONE = Queue(SUBJECT, JobOptions(concurrency=1))
STREAM = "MEGA_JOBS_email_send"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Runs:
    """What was run. `gate` is closed while runs must not end."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.begun: list[str] = []
        self.starts: list[int] = []
        self.now = self.most = 0
        self.gate = asyncio.Event()
        if is_open:
            self.gate.set()

    async def __call__(self, delivery: Delivery) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        self.begun.append((delivery.headers or {})["Mega-Id"])
        self.starts.append(delivery.starts)
        await self.gate.wait()
        await delivery.ack()
        self.now -= 1

    async def until_begun(self, job_id: str) -> None:
        await until(lambda: job_id in self.begun, what=job_id)


@asynccontextmanager
async def consuming(
    broker: NatsBroker, runs: Runs, queue: Queue = QUEUE
) -> AsyncIterator[anyio.Event]:
    """Consume meanwhile, and drain at the end."""
    draining = anyio.Event()
    call = asyncio.create_task(broker.consume(queue, runs, draining=draining))
    try:
        yield draining
        draining.set()
        runs.gate.set()
        await call
    finally:
        call.cancel()
        await asyncio.wait({call})


async def enqueue(broker: NatsBroker, *ids: str) -> None:
    for job_id in ids:
        await broker.publish(Message(id=job_id, subject=SUBJECT, body=b"{}"))


async def left(client: Client) -> int:
    return int((await client.api(f"STREAM.INFO.{STREAM}"))["state"]["messages"])


async def test_it_comes_back_after_the_server_was_killed(
    broker: NatsBroker, server: NatsServer
) -> None:
    await broker.provide(QUEUE)
    runs = Runs()

    async with consuming(broker, runs):
        for number in range(3):
            await enqueue(broker, f"before-{number}")
            await runs.until_begun(f"before-{number}")
            server.restart()
            await enqueue(broker, f"after-{number}")
            await runs.until_begun(f"after-{number}")

    assert 6 == len(runs.begun)


async def test_a_job_in_hand_is_not_run_again_when_a_killed_server_hands_it_out_again(
    broker: NatsBroker, server: NatsServer, client: Client
) -> None:
    await broker.provide(QUEUE)
    await enqueue(broker, "one", "two")
    runs = Runs(is_open=False)

    async with consuming(broker, runs):
        await until(lambda: runs.now == 2, what="both in hand")
        server.restart()  # before it wrote down that it had handed them out
        await client.up.wait()
        await enqueue(broker, "three")
        await until(lambda: "three" in runs.begun, what="the third")

    assert ["one", "three", "two"] == sorted(runs.begun)
    await until_empty(client)


async def until_empty(client: Client) -> None:
    await until_answer(lambda: left(client), lambda number: number == 0, what="an empty stream")


async def test_a_deleted_consumer_is_created_again(
    broker: NatsBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.provide(QUEUE)
    runs = Runs()

    async with consuming(broker, runs):
        await enqueue(broker, "before")
        await until(lambda: runs.begun == ["before"], what="the job before")
        await client.api(f"CONSUMER.DELETE.{STREAM}.workers")
        await enqueue(broker, "after")
        await until(lambda: runs.begun == ["before", "after"], what="the job after")

    loud = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert any("Consumer Deleted" in text for text in loud)
    assert any("creating it again" in text for text in loud)


async def test_a_deleted_stream_is_created_again_and_its_first_jobs_run(
    broker: NatsBroker, client: Client
) -> None:
    """The new stream counts from 1 again: its first job isn't the one that was acknowledged."""
    await broker.provide(QUEUE)
    runs = Runs()

    async with consuming(broker, runs):
        await enqueue(broker, "before")
        await until(lambda: runs.begun == ["before"], what="the job before")
        await client.api(f"STREAM.DELETE.{STREAM}")
        await enqueue(broker, "after")
        await until(lambda: runs.begun == ["before", "after"], what="the job after")


async def test_two_workers_share_the_concurrency(broker: NatsBroker, server: NatsServer) -> None:
    await broker.provide(QUEUE)
    await enqueue(broker, *(f"job-{number}" for number in range(12)))
    runs = Runs(is_open=False)

    async with (
        NatsBroker(server.url(), name="second") as second,
        consuming(broker, runs),
        consuming(second, runs),
    ):
        await until(lambda: runs.now == 4, what="four in hand")
        runs.gate.set()
        await until(lambda: len(runs.begun) == 12, what="all jobs")

    assert 4 == runs.most


async def test_one_worker_takes_no_more_than_its_slots(
    broker: NatsBroker, server: NatsServer, client: Client
) -> None:
    queue = Queue(SUBJECT, JobOptions(concurrency=100, per_worker=2))
    await broker.provide(queue)
    await enqueue(broker, *(f"job-{number}" for number in range(10)))
    runs = Runs(is_open=False)

    async with consuming(broker, runs, queue):
        await until(lambda: runs.now == 2, what="two in hand")
        info = await client.api(f"CONSUMER.INFO.{STREAM}.workers")
        assert (2, 8) == (info["num_ack_pending"], info["num_pending"])
        runs.gate.set()
        await until(lambda: len(runs.begun) == 10, what="all jobs")

    assert 2 == runs.most


async def test_draining_gives_back_what_was_not_begun_and_that_costs_no_start(
    broker: NatsBroker, server: NatsServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(SUBJECT, JobOptions(concurrency=1))
    await broker.provide(queue)
    runs, heirs = Runs(is_open=False), Runs()
    # What came beyond the slots would go back by itself before the drain.
    monkeypatch.setattr("mega.adapters.nats.consume.GRACE", 1.0)

    async with NatsBroker(server.url(), name="heir") as heir:
        async with consuming(broker, runs, queue) as draining:
            await enqueue(broker, "begun")
            await until(lambda: runs.now == 1, what="the job in hand")
            # An operator widens the limit, so more arrives than there are slots.
            await change_consumer(client, max_ack_pending=10)
            await enqueue(broker, "waiting")
            await until_pending(client, 2)
            draining.set()
            await until_pending(client, 1)
        assert ["begun"] == runs.begun
        async with consuming(heir, heirs, queue):
            await until(lambda: heirs.begun, what="the job that was given back")

    assert (["waiting"], [1]) == (heirs.begun, heirs.starts)
    assert 0 == await left(client)


async def change_consumer(client: Client, **fields: int) -> None:
    """Change the consumer as an operator does, by another tool."""
    config = (await client.api(f"CONSUMER.INFO.{STREAM}.workers"))["config"] | fields
    body = {"stream_name": STREAM, "config": config}
    await client.api(f"CONSUMER.CREATE.{STREAM}.workers", body)


async def test_a_limit_that_was_raised_lets_no_worker_take_more_than_its_slots(
    broker: NatsBroker, client: Client, server: NatsServer
) -> None:
    """The job beyond them goes back as it came, and runs where there is a free slot."""
    await broker.provide(ONE)
    busy, free = Runs(is_open=False), Runs()

    async with consuming(broker, busy, ONE):
        await enqueue(broker, "long")
        await until(lambda: busy.now == 1, what="the job in hand")
        await change_consumer(client, max_ack_pending=4)
        await enqueue(broker, "short-1", "short-2")
        await until_pending(client, 1)  # both went back
        async with NatsBroker(server.url(), name="second") as second, consuming(second, free, ONE):
            await until(lambda: len(free.begun) == 2, what="the short jobs")

    assert ["long"] == busy.begun
    assert [1, 1] == free.starts


@pytest.mark.parametrize("limit", [1, 2, 50])
async def test_a_limit_that_was_changed_loses_nothing(
    broker: NatsBroker, client: Client, limit: int
) -> None:
    await broker.provide(QUEUE)
    ids = [f"job-{number}" for number in range(30)]
    runs = Runs(is_open=False)

    async with consuming(broker, runs):
        await enqueue(broker, *ids[:15])
        await until(lambda: runs.now == 4, what="four in hand")
        await change_consumer(client, max_ack_pending=limit)
        await enqueue(broker, *ids[15:])
        runs.gate.set()
        await until(lambda: set(runs.begun) == set(ids), what="all jobs")

    assert runs.most <= 4
    assert sorted(ids) == sorted(runs.begun)


async def test_an_ack_wait_that_was_shortened_is_learned(
    server: NatsServer, client: Client
) -> None:
    runs = Runs(is_open=False)
    async with NatsBroker(server.url(ack_wait=30.0), name="test") as broker:
        await broker.provide(QUEUE)
        async with consuming(broker, runs):
            await enqueue(broker, "long")
            await until(lambda: runs.now == 1, what="the job in hand")
            await change_consumer(client, ack_wait=1_000_000_000)
            await until(lambda: broker._leases._every < 1, what="shorter beats")

    assert ["long"] == runs.begun
    await until_empty(client)


async def test_the_config_that_came_back_after_a_restart_is_looked_at(
    broker: NatsBroker, client: Client, server: NatsServer
) -> None:
    await broker.provide(QUEUE)
    runs = Runs()

    async with consuming(broker, runs):
        await enqueue(broker, "before")
        await until(lambda: runs.begun == ["before"], what="the job before")
        await change_consumer(client, max_ack_pending=50)
        server.restart()
        await enqueue(broker, *(f"after-{number}" for number in range(20)))
        await until(lambda: len(runs.begun) == 21, what="all jobs")

    assert runs.most <= 4


async def until_pending(client: Client, wanted: int) -> None:
    await until_answer(
        lambda: client.api(f"CONSUMER.INFO.{STREAM}.workers"),
        lambda info: info["num_ack_pending"] == wanted,
        what=f"{wanted} in hand",
    )


async def test_cancelling_ends_the_runs_and_returns(broker: NatsBroker) -> None:
    await broker.provide(QUEUE)
    await enqueue(broker, "one")
    ended: list[str] = []
    begun = asyncio.Event()

    async def run(delivery: Delivery) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("one")

    call = asyncio.create_task(broker.consume(QUEUE, run, draining=anyio.Event()))
    await begun.wait()
    call.cancel()
    await asyncio.wait({call})

    assert call.cancelled()
    assert ["one"] == ended


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        ("409", "Consumer Deleted", "missing"),
        ("503", "", "missing"),
        ("409", "Leadership Change", "lost"),
        ("409", "Server Shutdown", "lost"),
        ("409", "Exceeded MaxWaiting", "refused"),
    ],
)
def test_what_a_status_means(status: str, text: str, expected: str) -> None:
    assert expected == why_ended(status, text)
