"""Links that break, and links that look open while nothing passes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest
from nats.aio.msg import Msg

from mega.adapters.nats.broker import NatsBroker
from mega.adapters.nats.client import Client
from mega.adapters.nats.lease_clock import lease_clock
from mega.adapters.nats.standstill import LEAST_DOUBT
from mega.options import JobOptions
from mega.ports import Delivery, Queue
from mega.urls import BrokerUrl
from mega.wire.message import Message
from tests.nats_server import NatsServer, nats_url
from tests.proxy import Direction, Proxy
from tests.unit.adapters.nats.asking import until_answer
from tests.waiting import until

QUEUE = Queue("email.send", JobOptions(concurrency=4))
CONSUMER = "MEGA_JOBS_email_send.workers"
DIRECTIONS: list[Direction | None] = ["up", "down", None]
#: Nobody waits half a minute for nats-py to notice.
SOON = 15.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Runs:
    """What was run, and what was not. Jobs whose id begins with "long" last until they are let go.

    Those `in_the_row` wait for their turn before they begin.
    """

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.left: list[str] = []
        self.in_the_row: dict[str, asyncio.Event] = {}
        self.waiting: list[Delivery] = []
        self.lapsed: dict[str, bool] = {}
        self.go_on = asyncio.Event()

    async def __call__(self, delivery: Delivery) -> None:
        job_id = (delivery.headers or {})["Mega-Id"]
        if job_id in self.in_the_row:
            self.waiting.append(delivery)
            await self.in_the_row[job_id].wait()
        if not delivery.begin():
            self.left.append(job_id)
            return
        self.begun.append(job_id)
        if job_id.startswith("long"):
            await self.go_on.wait()
        self.lapsed[job_id] = delivery.lapsed
        await delivery.ack()

    async def until_begun(self, job_id: str, *, within: float = SOON) -> None:
        await until(lambda: job_id in self.begun, within=within, what=job_id)


@asynccontextmanager
async def working(*urls: BrokerUrl) -> AsyncIterator[tuple[Runs, list[NatsBroker]]]:
    """Let a worker on each URL consume meanwhile, and drain them at the end."""
    runs, draining, brokers = Runs(), anyio.Event(), []
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        for url in urls:
            brokers.append(await stack.enter_async_context(NatsBroker(url, name="worker")))
            await brokers[-1].provide(QUEUE)
            tasks.create_task(brokers[-1].consume(QUEUE, runs, draining=draining))
        await until(lambda: all(b._leases.is_renewing for b in brokers), what="the renewers")
        yield runs, brokers
        runs.go_on.set()
        draining.set()
        await asyncio.sleep(0)


async def enqueue(client: Client, job_id: str) -> None:
    headers = {"Mega-Id": job_id, "Nats-Msg-Id": job_id}
    await client.replies.ask(QUEUE.subject, b"{}", headers=headers, timeout=30)


def port_of(broker: NatsBroker) -> int:
    url = broker._client.nc.connected_url
    assert url is not None
    return int(url.port or 0)


async def test_a_cut_is_not_felt(proxy: Proxy, client: Client) -> None:
    async with working(nats_url(proxy.port)) as (runs, _):
        for number in range(3):
            proxy.cut()
            await enqueue(client, f"job-{number}")
            await runs.until_begun(f"job-{number}")
        assert not any(runs.lapsed.values())


async def test_a_link_that_flaps_leaves_one_connection_each(proxy: Proxy, client: Client) -> None:
    async with working(nats_url(proxy.port)) as (runs, _):
        for number in range(10):
            proxy.cut()
            await enqueue(client, f"job-{number}")
            await asyncio.sleep(0.1)
        for number in range(10):  # what was cut off on its way comes back after ack_wait
            await runs.until_begun(f"job-{number}")
        await until(lambda: len(proxy._links) == 2, what="one link for jobs and one for leases")


@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_a_dead_link_is_left_for_another(
    server: NatsServer, client: Client, direction: Direction | None
) -> None:
    with Proxy(server.port) as one, Proxy(server.port) as other:
        servers = tuple(f"nats://127.0.0.1:{proxy.port}" for proxy in (one, other))
        url = BrokerUrl(text="both", kind="nats", servers=servers, ack_wait=1.0)
        async with working(url) as (runs, [broker]):
            used = one if port_of(broker) == one.port else other
            used.blackhole(direction)
            for number in range(8):  # as many as one pull may have asked for and more
                await enqueue(client, f"job-{number}")
            for number in range(8):
                await runs.until_begun(f"job-{number}")
            await until(lambda: port_of(broker) != used.port, within=SOON, what="another link")
            used.heal()


@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_a_link_that_comes_alive_again_is_used_at_once(
    proxy: Proxy, client: Client, direction: Direction | None
) -> None:
    async with working(nats_url(proxy.port)) as (runs, [broker]):
        proxy.blackhole(direction)
        await until(lambda: not broker._client.up.is_set(), within=SOON, what="it was noticed")
        await enqueue(client, "meanwhile")
        proxy.heal()
        await runs.until_begun("meanwhile", within=8.0)


@pytest.mark.parametrize("seconds", [2.0, 8.0])
async def test_a_server_that_stood_still(server: NatsServer, seconds: float) -> None:
    async with (
        NatsBroker(server.url(), name="producer") as producer,
        working(server.url()) as (runs, _),
    ):
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await producer.publish(Message(id="after", subject=QUEUE.subject, body=b"{}"))
        await runs.until_begun("after", within=8.0)


async def test_what_was_sent_right_before_a_cut_is_sent_again(proxy: Proxy, client: Client) -> None:
    """In its order; and what has surely arrived is kept no longer."""
    heard: list[bytes] = []

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    await client.subscribe("news", hear)
    await client.round_trip(5)
    sender = Client(nats_url(proxy.port), name="sender")
    await sender.open()
    proxy.blackhole("up")
    for number in range(3):
        await sender.tell("news", b"%d" % number)
    await until(lambda: proxy.held > 0, what="the news in the proxy, which loses them")
    proxy.cut()
    proxy.heal()

    await until(lambda: heard == [b"0", b"1", b"2"], what="the news")
    await until(lambda: not list(sender.outbox.unconfirmed()), what="confirmation")
    await sender.close()


async def test_a_hand_over_that_the_link_held_up_is_not_begun(
    server: NatsServer, proxy: Proxy, client: Client
) -> None:
    """Its lease has ended meanwhile, and another worker has run it; it must not begin here too."""
    async with working(nats_url(proxy.port)) as (runs, (held,)):
        await enqueue(client, "one")
        await runs.until_begun("one")
        proxy.blackhole("down")
        await enqueue(client, "late")
        async with working(server.url()) as (others, _):
            await others.until_begun("late")
            doubt = LEAST_DOUBT + 0.5
            await until(lambda: lease_clock() - held._client.proven_at > doubt, what="doubt")
            proxy.heal()
            await until(lambda: lease_clock() - held._client.proven_at < 1, what="a good link")
            await until_empty(client)
        assert ["one"] == runs.begun


async def test_a_job_whose_ack_was_cut_off_is_not_run_again(
    server: NatsServer, proxy: Proxy, client: Client
) -> None:
    """Neither by this worker nor by another one, which would know nothing of it."""
    async with working(nats_url(proxy.port)) as (runs, _):
        await enqueue(client, "one")
        await runs.until_begun("one")
        await enqueue(client, "long")
        await runs.until_begun("long")
        proxy.blackhole("up")
        runs.go_on.set()
        await until(lambda: "long" in runs.lapsed, what="the end of the run")
        await asyncio.sleep(0.1)  # so that the ack is in the proxy, which loses it
        proxy.cut()
        proxy.heal()
        async with working(server.url()) as (others, _):
            await until_empty(client)
            assert [] == others.begun
        assert 0 == await redelivered(client)


async def until_empty(client: Client) -> None:
    await until_answer(
        lambda: client.api("STREAM.INFO.MEGA_JOBS_email_send"),
        lambda info: info["state"]["messages"] == 0,
        what="an empty stream",
    )


async def redelivered(client: Client) -> int:
    return int((await client.api(f"CONSUMER.INFO.{CONSUMER}"))["num_redelivered"])


def lead_leases_through(proxy: Proxy, broker: NatsBroker) -> None:
    broker._leases.go_to(f"nats://127.0.0.1:{proxy.port}", token="")


@pytest.mark.parametrize("fault", ["refuse", "blackhole"])
async def test_leases_go_over_the_main_connection_while_their_own_is_away(
    server: NatsServer, proxy: Proxy, client: Client, fault: str
) -> None:
    runs, draining = Runs(), anyio.Event()
    async with NatsBroker(server.url(), name="worker") as broker:
        await broker.provide(QUEUE)
        lead_leases_through(proxy, broker)
        call = asyncio.create_task(broker.consume(QUEUE, runs, draining=draining))
        await until(lambda: broker._leases.is_renewing, what="the renewer")
        await enqueue(client, "long")
        await runs.until_begun("long")
        getattr(proxy, fault)()
        await asyncio.sleep(4.0)  # several times ack_wait
        assert 0 == await redelivered(client)
        runs.go_on.set()
        draining.set()
        await call
        proxy.heal()

    assert {"long": False} == runs.lapsed


@pytest.mark.parametrize("fault", ["refuse", "blackhole"])
async def test_leases_are_renewed_while_the_main_connection_is_away(
    server: NatsServer, proxy: Proxy, client: Client, fault: str
) -> None:
    runs, draining = Runs(), anyio.Event()
    async with NatsBroker(nats_url(proxy.port), name="worker") as broker:
        await broker.provide(QUEUE)
        broker._leases.go_to(server.url().text, token="")
        call = asyncio.create_task(broker.consume(QUEUE, runs, draining=draining))
        await until(lambda: broker._leases.is_renewing, what="the renewer")
        await enqueue(client, "long")
        await runs.until_begun("long")
        getattr(proxy, fault)()
        await asyncio.sleep(4.0)  # several times ack_wait
        assert 0 == await redelivered(client)
        proxy.heal()
        runs.go_on.set()
        draining.set()
        await call

    assert {"long": False} == runs.lapsed


async def test_a_lease_that_nobody_could_renew_is_known_to_have_lapsed(
    proxy: Proxy, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(nats_url(proxy.port)) as (runs, [broker]):
        await enqueue(client, "long")
        await runs.until_begun("long")
        proxy.refuse()
        await asyncio.sleep(2.0)  # longer than ack_wait
        proxy.heal()
        await broker._client.up.wait()
        await enqueue(client, "short")
        await runs.until_begun("short")

    assert {"long": True, "short": False} == runs.lapsed
    assert ["long", "short"] == runs.begun
    said = [r.getMessage() for r in caplog.records if "leases of 1 jobs in hand" in r.getMessage()]
    assert 1 == len(said)


async def test_what_lapsed_before_its_turn_is_left_to_another_worker(
    server: NatsServer, proxy: Proxy, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(nats_url(proxy.port)) as (runs, _):
        turn = runs.in_the_row["long"] = asyncio.Event()
        await enqueue(client, "long")
        await until(lambda: runs.waiting, what="the job in the row")
        proxy.refuse()
        async with working(server.url()) as (others, _):
            await others.until_begun("long")
            proxy.heal()
            turn.set()
            await until(lambda: runs.left, what="the end of the row")
            others.go_on.set()
            await until_empty(client)

    assert ([], ["long"]) == (runs.begun, runs.left)
    assert "it isn't begun here" in caplog.text


async def test_what_lapsed_before_its_turn_and_came_again_is_begun_by_that_hand_over(
    proxy: Proxy, client: Client
) -> None:
    async with working(nats_url(proxy.port)) as (runs, _):
        turn = runs.in_the_row["one"] = asyncio.Event()
        await enqueue(client, "one")
        await until(lambda: runs.waiting, what="the job in the row")
        [waiting] = runs.waiting
        proxy.refuse()
        await until(lambda: waiting.lapsed, what="the end of its lease")
        proxy.heal()
        await until(lambda: waiting.starts == 2, within=SOON, what="the second hand-over")
        turn.set()
        await runs.until_begun("one")

    assert ({"one": False}, ["one"]) == (runs.lapsed, runs.begun)


async def test_a_blocked_loop_does_not_part_from_a_live_link(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with NatsBroker(server.url(), name="worker") as broker:
        first = broker._client.nc
        await broker._client.round_trip(5)
        for _ in range(3):
            time.sleep(5.0)  # noqa: ASYNC251  # blocking the loop is what is tested
            await asyncio.sleep(0.1)
        await broker._client.round_trip(5)

        assert first is broker._client.nc
        assert 0 == first.stats["reconnects"]
    assert [] == [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


async def test_a_flood_of_large_bodies_does_not_break_the_link(server: NatsServer) -> None:
    """The server would close a connection that is 64 MiB behind: this is 100 MB at once."""
    queue, body = Queue("big.jobs", JobOptions(concurrency=100)), b"1" * 1_000_000
    starts: list[int] = []
    draining = anyio.Event()

    async def run(delivery: Delivery) -> None:
        starts.append(delivery.starts)
        if len(starts) == 1:
            time.sleep(1.0)  # noqa: ASYNC251  # in which the server sends all that it may
        await delivery.ack()

    async with NatsBroker(server.url(ack_wait=30.0), name="worker") as broker:
        await broker.provide(queue)
        for number in range(100):
            await broker.publish(Message(id=f"job-{number}", subject=queue.subject, body=body))
        call = asyncio.create_task(broker.consume(queue, run, draining=draining))
        await until(lambda: len(starts) >= 100, within=60, what="all jobs")
        draining.set()
        await call

    assert [1] * 100 == starts
