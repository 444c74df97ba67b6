"""A lease is renewed while its process lives, whatever the event loop does."""

from __future__ import annotations

import asyncio
import threading
import time

import anyio
import pytest

from mega.adapters.nats.broker import NatsBroker
from mega.adapters.nats.client import Client
from mega.adapters.nats.leases import Leases, snapshot
from mega.options import JobOptions
from mega.ports import Delivery, Queue
from mega.wire.message import Message
from tests.nats_server import NatsServer
from tests.waiting import until

QUEUE = Queue("email.send", JobOptions(concurrency=1))
CONSUMER = "MEGA_JOBS_email_send.workers"
ACK_WAIT = 1.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def lease_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mega-leases"]


async def test_a_blocked_loop_does_not_lose_its_job(broker: NatsBroker, client: Client) -> None:
    await broker.provide(QUEUE)
    await broker.publish(Message(id="a", subject=QUEUE.subject, body=b"1"))
    starts: list[int] = []
    draining = anyio.Event()
    await until_renewing(broker)

    async def run(delivery: Delivery) -> None:
        starts.append(delivery.starts)
        time.sleep(3.5 * ACK_WAIT)  # noqa: ASYNC251  # blocking the loop is what is tested
        info = await client.api(f"CONSUMER.INFO.{CONSUMER}")
        starts.append(info["num_redelivered"])
        await delivery.ack()
        draining.set()

    await broker.consume(QUEUE, run, draining=draining)

    assert [1, 0] == starts


async def until_renewing(broker: NatsBroker) -> None:
    """Start the thread first, as in a worker whose first job comes later than its start."""
    broker._leases.watch({})
    await until(lambda: broker._leases.is_renewing, what="the renewer's connection")


async def test_a_long_job_is_handed_out_once(broker: NatsBroker, server: NatsServer) -> None:
    await broker.provide(QUEUE)
    await broker.publish(Message(id="a", subject=QUEUE.subject, body=b"1"))
    draining = anyio.Event()
    starts: list[int] = []

    async def run(delivery: Delivery) -> None:
        starts.append(delivery.starts)
        await asyncio.sleep(2.5 * ACK_WAIT)
        await delivery.ack()
        draining.set()

    async with NatsBroker(server.url(), name="second") as second, asyncio.TaskGroup() as tasks:
        tasks.create_task(broker.consume(QUEUE, run, draining=draining))
        tasks.create_task(second.consume(QUEUE, run, draining=draining))

    assert [1] == starts


async def test_no_thread_runs_before_the_first_consume_or_after_the_end(
    server: NatsServer,
) -> None:
    async with NatsBroker(server.url(), name="test") as broker:
        await broker.provide(QUEUE)
        assert [] == lease_threads()
        draining = anyio.Event()
        draining.set()

        async def run(delivery: Delivery) -> None:
            raise AssertionError("nothing was enqueued")

        await broker.consume(QUEUE, run, draining=draining)
        assert 1 == len(lease_threads())

    assert [] == lease_threads()


async def test_it_ends_soon_when_the_server_is_away(server: NatsServer) -> None:
    leases = Leases(server.url(connect_timeout=3600.0), name="test")
    server.stop()
    leases.watch({})

    async with asyncio.timeout(4):
        await leases.close()

    assert [] == lease_threads()


def test_a_snapshot_is_taken_again_when_the_dict_changed_meanwhile() -> None:
    class Changing(dict[tuple[str, str], object]):
        failures = 2

        def values(self):  # type: ignore[no-untyped-def]
            if self.failures:
                self.failures -= 1
                raise RuntimeError("dictionary changed size during iteration")
            return super().values()

    assert [7] == snapshot(Changing({("1", "1"): 7}))  # type: ignore[arg-type]


async def test_leases_are_renewed_by_the_ack_wait_that_the_consumer_has(
    broker: NatsBroker, server: NatsServer, client: Client
) -> None:
    await broker.provide(QUEUE)  # with an ack_wait of 1 s
    async with NatsBroker(server.url(ack_wait=30.0), name="other release") as other:
        await other.publish(Message(id="a", subject=QUEUE.subject, body=b"1"))
        draining, redelivered = anyio.Event(), []

        async def run(delivery: Delivery) -> None:
            await anyio.sleep(2.5 * ACK_WAIT)  # longer than the lease
            info = await client.api(f"CONSUMER.INFO.{CONSUMER}")
            redelivered.append(info["num_redelivered"])
            await delivery.ack()
            draining.set()

        await other.consume(QUEUE, run, draining=draining)

    assert [0] == redelivered
