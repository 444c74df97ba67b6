"""Workers whose server goes away: all consume again by themselves, and no job is lost."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import nats
import pytest

from mega import App
from mega.events import ScheduleDone
from tests.apps.program import Program, write_app
from tests.cases.conftest import broker_of
from tests.cases.onlooker import stream_of
from tests.cases.served import serving
from tests.nats_server import NatsServer, nats_url
from tests.proxy import Proxy
from tests.waiting import until, until_sync

SOON = 5.0

WORKER = """
    import os, anyio
    from mega import App
    app = App("reconnect")
    @app.job("{subject}", concurrency={concurrency}, track=False)
    async def work(name: str) -> None:
        print("begun", name, flush=True)
        await anyio.sleep(float(os.environ.get("LASTS", 0)))
        print("ended", name, flush=True)
    app.run()
"""


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server that no other test shares, because it is stopped and killed here."""
    with NatsServer() as server:
        yield server


def seen(word: str, *workers: Program) -> Counter[str]:
    """Return how often each job was begun, or ended, by these workers."""
    lines = [line.split() for worker in workers for line in worker.output.splitlines()]
    return Counter(line[1] for line in lines if line[0] == word)


async def enqueue(app: App[None], subject: str, *names: str) -> None:
    for name in names:
        await app.enqueue(subject, name, id=f"{subject}.{name}")


def outage(server: NatsServer, end: Callable[[], None], seconds: float) -> None:
    end()
    time.sleep(seconds)  # how long the server is away: this is the fault, and no waiting
    server.start()


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("seconds", [0.0, 3.0])
async def test_an_outage(
    tmp_path: Path, home: Path, subject: str, server: NatsServer, how: str, seconds: float
) -> None:
    """reconnect-01: jobs of before and after an outage run, without a restart of the worker."""
    file = write_app(tmp_path, WORKER.format(subject=subject, concurrency=1))
    app = App("cases", broker=broker_of(server))
    with Program(file, home=home, MEGA_BROKER=broker_of(server)) as worker:
        worker.wait_for("ready in")
        async with app:
            await enqueue(app, subject, *(f"before-{number}" for number in range(5)))
            await anyio.to_thread.run_sync(outage, server, getattr(server, how), seconds)
            await enqueue(app, subject, *(f"after-{number}" for number in range(5)))
        until_sync(lambda: len(seen("ended", worker)) == 10, within=30, what="all ten")


async def test_an_outage_that_is_longer_than_what_clients_try(
    tmp_path: Path, home: Path, subject: str, server: NatsServer
) -> None:
    """reconnect-07: nobody gives up: the worker is there again soon after a long outage."""
    file = write_app(tmp_path, WORKER.format(subject=subject, concurrency=1))
    app = App("cases", broker=broker_of(server))
    with Program(file, home=home, MEGA_BROKER=broker_of(server)) as worker:
        worker.wait_for("ready in")
        await anyio.to_thread.run_sync(outage, server, server.kill, 10.0)
        async with app:
            await enqueue(app, subject, "after")
        worker.wait_for("ended after", within=SOON)


async def test_slow_jobs_in_hand_and_waiting_while_the_server_is_killed(
    tmp_path: Path, home: Path, subject: str, server: NatsServer
) -> None:
    """reconnect-05: what is pending and what is in hand is all done, each once by one worker."""
    file = write_app(tmp_path, WORKER.format(subject=subject, concurrency=2))
    app = App("cases", broker=broker_of(server, ack_wait=2))
    names = [f"job-{number}" for number in range(20)]
    environment = {"MEGA_BROKER": broker_of(server, ack_wait=2), "LASTS": "0.5"}
    with Program(file, home=home, **environment) as worker:
        worker.wait_for("ready in")
        async with app:
            await enqueue(app, subject, *names)
            worker.wait_for("ended job-3")
            await anyio.to_thread.run_sync(server.restart)
            until_sync(lambda: len(seen("ended", worker)) == 20, within=30, what="all twenty")
        assert dict.fromkeys(names, 1) == seen("begun", worker)


async def test_five_kills_under_load(
    tmp_path: Path, home: Path, subject: str, server: NatsServer
) -> None:
    """reconnect-05: each of three workers consumes again within 5 s of the last restart."""
    file = write_app(tmp_path, WORKER.format(subject=subject, concurrency=3))
    broker, done = broker_of(server), threading.Event()
    app = App("cases", broker=broker)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Program(file, home=home, MEGA_BROKER=broker, LASTS="0.1"))
            for _ in range(3)
        ]
        for worker in workers:
            worker.wait_for("ready in")
        stored: list[str] = []

        async def load() -> None:
            while not done.is_set():
                names = [f"job-{len(stored) + number}" for number in range(10)]
                await enqueue(app, subject, *names)  # waits, or is repeated, while it is away
                stored.extend(names)
                await anyio.sleep(0.5)  # less than what three slots do meanwhile

        async with app, anyio.create_task_group() as group:
            group.start_soon(load)
            for _ in range(5):
                await anyio.sleep(0.7)
                await anyio.to_thread.run_sync(server.restart)
            before = [len(seen("begun", worker)) for worker in workers]
            await until(
                lambda: all(
                    len(seen("begun", worker)) > count
                    for worker, count in zip(workers, before, strict=True)
                ),
                within=SOON,
                what="each worker to consume again",
            )
            done.set()
        until_sync(
            lambda: set(stored) <= set(seen("ended", *workers)),
            within=60,
            what="all that is stored",
        )


async def test_a_connection_loss_shifts_no_due_time(subject: str, server: NatsServer) -> None:
    """reconnect-06: a delayed job and the ticks of a schedule keep their times after a loss."""
    started: list[float] = []
    ticks: list[float] = []
    with Proxy(server.port) as proxy:
        app = App("cases", broker=f"{nats_url(proxy.port).text}?ack_wait=1")

        @app.job(subject)
        async def work() -> None:
            started.append(time.monotonic())

        @app.schedule(every=2)
        async def tick() -> None:
            ticks.append(time.monotonic())

        async with serving(app, role="all") as served:
            due_at = time.monotonic() + 6
            await work.enqueue(delay=6)
            await anyio.sleep(1)
            proxy.refuse()
            await anyio.sleep(2)  # how long the connection is away
            proxy.heal()
            await until(lambda: started, within=20, what="the delayed job")
            await served.wait_for(ScheduleDone, 3)

    assert 1 == len(started)
    assert due_at - 0.5 < started[0] < due_at + 2


def test_what_an_outage_prints(
    tmp_path: Path, home: Path, subject: str, server: NatsServer
) -> None:
    """log-03: few lines, each with what it means: it went away, it stays away, it is back."""
    file = write_app(
        tmp_path,
        """
        import anyio
        from mega import App
        from mega.errors import BrokerUnavailable
        app = App("outage")
        @app.job("SUBJECT.other", concurrency=5)
        async def other() -> None: ...
        @app.job("SUBJECT.held", concurrency=5)
        async def held(number: int) -> None:
            print("holding", number, flush=True)
            while True:
                await anyio.sleep(0.1)
                try:
                    await other.enqueue()
                except BrokerUnavailable:
                    print("unavailable", flush=True)
        @app.on_startup
        async def begin() -> None:
            for number in range(5):
                await held.enqueue(number)
        app.run()
        """.replace("SUBJECT", subject),
    )
    with Program(file, "--drain-timeout", "1", home=home, MEGA_BROKER=broker_of(server)) as app:
        app.wait_for("holding 4")
        outage(server, server.stop, 17.0)
        app.wait_for("is back after")
        app.signal(signal.SIGTERM)
        app.wait()

    lines = [line for line in app.errors.splitlines() if " mega" in line]
    assert 5 <= app.count("unavailable")
    assert 2 == sum("is away" in line or "is still away" in line for line in lines)
    assert len(lines) < 20, app.errors
    assert "Traceback" not in app.errors


async def test_a_consumer_that_is_deleted_in_an_outage(
    tmp_path: Path, home: Path, subject: str, server: NatsServer
) -> None:
    """reconnect-01: the worker makes it again when it is back and finds none."""
    file = write_app(tmp_path, WORKER.format(subject=subject, concurrency=1))
    with (
        Proxy(server.port) as proxy,
        Program(file, home=home, MEGA_BROKER=f"{nats_url(proxy.port).text}?ack_wait=1") as worker,
    ):
        worker.wait_for("ready in")
        proxy.refuse()
        app = App("cases", broker=broker_of(server))
        async with app, await nats.connect(server.url().text) as client:
            await client.jsm().delete_consumer(stream_of(subject), "workers")
            await enqueue(app, subject, "after")
            proxy.heal()
        worker.wait_for("ended after", within=10)
