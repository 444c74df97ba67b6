"""A lease is renewed while its process lives, whatever the event loop does."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import anyio
import nats
import pytest

from mega.adapters.nats.broker import NatsBroker
from mega.adapters.nats.buckets import last_stored
from mega.adapters.nats.client import Client
from mega.adapters.nats.layout import STATE
from mega.adapters.nats.leases import Leases, snapshot
from mega.options import JobOptions
from mega.ports import Delivery, Queue
from mega.wire.message import Message
from tests.local_server import free_port
from tests.nats_server import NatsServer
from tests.unit.adapters.nats.asking import until_answer
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


async def test_a_job_that_is_done_keeps_its_lease_until_its_ack_is_sent(
    broker: NatsBroker, server: NatsServer
) -> None:
    """The next job blocks the loop before anything is written to the socket."""
    queue = Queue("email.send", JobOptions(concurrency=2))
    await broker.provide(queue)
    for job_id in ("done", "blocking"):
        await broker.publish(Message(id=job_id, subject=queue.subject, body=b"1"))
    may_block, draining = asyncio.Event(), anyio.Event()
    statuses: list[str | None] = []
    await until_renewing(broker)

    async def run(delivery: Delivery) -> None:
        if (delivery.headers or {})["Mega-Id"] == "blocking":
            await may_block.wait()
            time.sleep(2.5 * ACK_WAIT)  # noqa: ASYNC251  # blocking the loop is what is tested
            with ThreadPoolExecutor(1) as aside:
                statuses.append(aside.submit(asyncio.run, what_others_get(server)).result())
            draining.set()
        may_block.set()  # and so before the ack's turn comes to be written
        await delivery.ack()

    await broker.consume(queue, run, draining=draining)

    assert ["404"] == statuses


async def what_others_get(server: NatsServer) -> str | None:
    """Return with which status the server refuses another worker's pull, or None for a job."""
    nc = await nats.connect(server.url().servers[0])
    try:
        pull = f"$JS.API.CONSUMER.MSG.NEXT.{CONSUMER}"
        reply = await nc.request(pull, b'{"batch":1,"no_wait":true}')
        return (reply.headers or {}).get("Status")
    finally:
        await nc.close()


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


async def test_signs_of_life_go_over_the_main_connection_when_the_own_one_is_away(
    broker: NatsBroker, client: Client
) -> None:
    """Else a live worker would count as dead, and its jobs as waiting."""
    broker._leases.go_to(f"nats://127.0.0.1:{free_port()}", token="")
    broker._leases.watch({})
    await broker.attend("vm:1")

    async def signs() -> int:
        return (await last_stored(client, STATE, "worker.vm:1")).sequence

    first = await signs()
    await until_answer(signs, lambda now: now >= first + 3, what="three more signs of life")
    assert not broker._leases.is_renewing
    assert await broker.state.is_alive("vm:1")


async def test_it_ends_soon_when_the_server_is_away(server: NatsServer) -> None:
    url = server.url(connect_timeout=3600.0)
    leases = Leases(url, name="test", main=Client(url, name="main"))
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


def enqueue_from_another_thread(server: NatsServer, subject: str, ids: list[str]) -> None:
    async def enqueue() -> None:
        async with NatsBroker(server.url(), name="producer", is_provisioning=False) as producer:
            for job_id in ids:
                await producer.publish(Message(id=job_id, subject=subject, body=b"{}"))

    thread = threading.Thread(target=asyncio.run, args=(enqueue(),))
    thread.start()
    thread.join()


async def test_what_comes_while_the_loop_stands_still_keeps_its_lease(
    broker: NatsBroker, server: NatsServer, client: Client
) -> None:
    """It lies in the socket for several times `ack_wait`, and is handed out once."""
    queue = Queue("email.many", JobOptions(concurrency=4))
    await broker.provide(queue)
    starts: list[int] = []
    draining = anyio.Event()

    async def run(delivery: Delivery) -> None:
        starts.append(delivery.starts)
        if len(starts) == 1:
            time.sleep(ACK_WAIT)  # noqa: ASYNC251  # blocking the loop is what is tested
            enqueue_from_another_thread(server, queue.subject, ["b", "c", "d"])
            time.sleep(3 * ACK_WAIT)  # noqa: ASYNC251
        await delivery.ack()

    call = asyncio.create_task(broker.consume(queue, run, draining=draining))
    await until(lambda: broker._leases.is_renewing, what="the renewer")
    await broker.publish(Message(id="a", subject=queue.subject, body=b"{}"))
    await until(lambda: len(starts) == 4, what="all jobs")
    draining.set()
    await call

    assert [1, 1, 1, 1] == starts
    assert 0 == (await client.api("CONSUMER.INFO.MEGA_JOBS_email_many.workers"))["num_redelivered"]
    assert {} == broker._leases.standstill.inboxes


async def test_what_came_before_anybody_listened_is_not_begun_late(
    broker: NatsBroker, server: NatsServer
) -> None:
    """Its lease is over: it runs in the second worker, and not in the first as well."""
    queue = Queue("email.many", JobOptions(concurrency=4))
    await broker.provide(queue)
    begun: list[str] = []
    draining = anyio.Event()

    async def block(delivery: Delivery) -> None:
        job_id = (delivery.headers or {})["Mega-Id"]
        begun.append(job_id)
        if job_id == "a":
            enqueue_from_another_thread(server, queue.subject, ["b", "c"])
            run_elsewhere(server, queue, begun, count=2)
        await delivery.ack()

    call = asyncio.create_task(broker.consume(queue, block, draining=draining))
    await until(lambda: broker._leases.is_renewing, what="the renewer")
    await broker.publish(Message(id="a", subject=queue.subject, body=b"{}"))
    await until(lambda: len(begun) >= 3, what="all jobs")
    await asyncio.sleep(ACK_WAIT)  # in which the late ones would begin
    draining.set()
    await call

    assert ["a", "b", "c"] == sorted(begun)


async def test_what_lost_its_lease_while_it_waited_for_a_slot_is_not_begun(
    broker: NatsBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the whole process is stopped: then nobody renews."""
    queue = Queue("email.many", JobOptions(concurrency=3))
    await broker.provide(queue)
    for job_id in ("a", "b", "c"):
        await broker.publish(Message(id=job_id, subject=queue.subject, body=b"{}"))
    starts: list[int] = []
    draining = anyio.Event()

    async def run(delivery: Delivery) -> None:
        if not delivery.begin():
            return
        starts.append(delivery.starts)
        if len(starts) == 1:
            broker._leases._held.clear()
            time.sleep(2.5 * ACK_WAIT)  # noqa: ASYNC251  # blocking the loop is what is tested
        await delivery.ack()
        if len(starts) == 3:
            draining.set()

    async with asyncio.timeout(20):
        await broker.consume(queue, run, draining=draining)

    assert [1, 2, 2] == starts
    assert "email.many: a job came, or waited, for so long" in caplog.text


def run_elsewhere(server: NatsServer, queue: Queue, begun: list[str], *, count: int) -> None:
    """Be a second worker, while this one's loop stands still, until that many were begun."""

    async def work() -> None:
        draining, mine = anyio.Event(), list[str]()

        async def run(delivery: Delivery) -> None:
            mine.append((delivery.headers or {})["Mega-Id"])
            await delivery.ack()
            if len(mine) == count:
                draining.set()

        async with NatsBroker(server.url(), name="second") as second:
            await second.consume(queue, run, draining=draining)
        begun.extend(mine)

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    thread.join()
