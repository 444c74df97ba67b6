"""A broker that is not there yet, and enqueues that come too early or from within a handler."""

from __future__ import annotations

import re
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from mega import App
from mega.errors import BrokerUnavailable, NotConnected
from tests.apps.program import Program, run_to_end, write_app
from tests.cases.served import serving
from tests.local_server import free_port
from tests.nats_server import NatsServer, nats_url
from tests.proxy import Proxy
from tests.waiting import until

WORKER = """
    from mega import App
    app = App("early", broker="{url}")
    @app.job("greet")
    async def greet() -> None:
        print("greeted", flush=True)
    @app.schedule("0 3 * * *", timezone="UTC")
    async def nightly() -> None: ...
    if __name__ == "__main__":
        app.run()
"""


@pytest.mark.parametrize("role", ["worker", "scheduler", "all"])
def test_a_worker_that_is_started_before_the_server(tmp_path: Path, home: Path, role: str) -> None:
    """startup-01: it writes one line for each try, and runs jobs once the server is up."""
    with NatsServer() as server:
        server.stop()
        url = f"{server.url().text}?connect_timeout=60"
        file = write_app(tmp_path, WORKER.format(url=url))
        with Program(file, "--role", role, home=home) as worker:
            worker.wait_for(f"{server.url().text} refused the connection; trying again in 0.5 s")
            worker.wait_for(f"{server.url().text} refused the connection; trying again in 2 s")
            server.start()
            worker.wait_for("ready in")
            if role != "scheduler":
                assert 0 == run_to_end(file, "enqueue", "greet", home=home).code
                worker.wait_for("greeted")
            worker.signal(signal.SIGTERM)
            assert 0 == worker.wait()
    for line in worker.errors.splitlines():
        assert re.search("trying again in|stopping|creating stream|is back|INFO", line), line


def test_a_worker_whose_server_never_comes(tmp_path: Path, home: Path) -> None:
    """startup-01: after `connect_timeout` it ends with one error that hides the password."""
    address = f"127.0.0.1:{free_port()}"
    url = f"nats://ada:s3cret@{address}?connect_timeout=3"
    file = write_app(tmp_path, WORKER.format(url=url))

    program = run_to_end(file, "--role", "worker", home=home)

    assert 3 == program.code
    assert f"mega: BrokerUnavailable: nats://{address} can't be used." in program.errors
    assert "s3cret" not in program.output + program.errors
    assert "Traceback" not in program.errors


def test_a_worker_that_is_stopped_while_it_tries(tmp_path: Path, home: Path) -> None:
    """startup-01: a worker that waits for its server can be stopped."""
    url = f"nats://127.0.0.1:{free_port()}?connect_timeout=600"
    file = write_app(tmp_path, WORKER.format(url=url))
    with Program(file, home=home) as worker:
        worker.wait_for("trying again in")
        worker.signal(signal.SIGTERM)
        assert 0 == worker.wait()


async def test_a_server_that_restarts_under_a_producer(subject: str) -> None:
    """startup-01: a producer and a worker outlive a restart of the server."""
    with NatsServer() as server:
        app, seen = App("cases", broker=f"{server.url().text}?ack_wait=1"), []

        @app.job(subject)
        async def take(number: int) -> None:
            seen.append(number)

        async with serving(app):
            await take.enqueue(1)
            await until(lambda: seen, what="the first job")
            await anyio.to_thread.run_sync(server.restart)
            await enqueue_when_up(lambda: take.enqueue(2, id="second"))
            await until(lambda: 2 in seen, within=20, what="the job after the restart")

    assert [1, 2] == seen


async def enqueue_when_up(enqueue: Callable[[], Awaitable[Any]]) -> None:
    """Enqueue; a broker that is still away is an error, after which an id makes it safe."""
    with anyio.fail_after(30):
        while True:
            try:
                await enqueue()
            except BrokerUnavailable:
                continue
            return


@pytest.mark.parametrize("what", ["enqueue", "enqueue by a handle", "run_now", "a CPU call"])
async def test_what_needs_a_connection_says_so(broker: str, subject: str, what: str) -> None:
    """enq-01: without `async with app` it raises NotConnected, which tells what to write."""
    app = App("cases", broker=broker)

    @app.job(subject)
    async def send_email() -> None: ...

    @app.schedule(every=60, name="nightly")
    async def nightly() -> None: ...

    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "enqueue": lambda: app.enqueue(send_email),
        "enqueue by a handle": send_email.enqueue,
        "run_now": nightly.run_now,
        "a CPU call": app.cpu_task()(top_level).run,
    }
    with pytest.raises(NotConnected, match="needs a connection") as caught:
        await calls[what]()

    assert "`async with app:`" in caught.value.hint


def top_level() -> None: ...


async def test_a_connection_that_was_closed_again(broker: str, subject: str) -> None:
    """enq-01: after the block is left it is as before it, and entering again connects again."""
    app = App("cases", broker=broker)

    @app.job(subject)
    async def send_email() -> None: ...

    for _ in range(2):
        async with app:
            await send_email.enqueue()
        with pytest.raises(NotConnected):
            await send_email.enqueue()


async def test_a_server_that_cannot_be_reached(subject: str) -> None:
    """enq-01: an unreachable server is an error that names it, within `connect_timeout`."""
    url = f"nats://127.0.0.1:{free_port()}"
    app = App("cases", broker=f"{url}?connect_timeout=1")

    with pytest.raises(BrokerUnavailable) as caught, anyio.fail_after(15):
        async with app:
            pass

    assert f"{url} can't be used." in str(caught.value)
    assert "Start `nats-server -js` there" in caught.value.hint


async def test_a_server_that_goes_away_under_an_enqueue(subject: str) -> None:
    """enq-01: an enqueue while the server is away fails with its address, and doesn't hang."""
    with NatsServer() as server:
        app = App("cases", broker=server.url().text)

        @app.job(subject)
        async def send_email() -> None: ...

        async with app:
            await send_email.enqueue()
            server.kill()
            with pytest.raises(BrokerUnavailable, match=server.url().text), anyio.fail_after(30):
                await send_email.enqueue()


LEVELS = 100


async def test_jobs_that_enqueue_jobs(server: NatsServer, subject: str) -> None:
    """enq-05: a handler enqueues on the connection that its worker has, 100 levels deep."""
    with Proxy(server.port) as proxy:
        app, ended = App("cases", broker=nats_url(proxy.port).text), []

        @app.job(f"{subject}.a")
        async def first(level: int) -> None:
            await second.enqueue(level)
            await third.enqueue(level)

        @app.job(f"{subject}.b")
        async def second(level: int) -> None:
            if level < LEVELS:
                await first.enqueue(level + 1)

        @app.job(f"{subject}.c")
        async def third(level: int) -> None:
            ended.append(level)

        async with serving(app):
            await first.enqueue(1)
            await until(lambda: len(ended) == LEVELS, within=60, what="all levels")
            assert 2 == proxy.links  # one for all, and one that renews leases

    assert list(range(1, LEVELS + 1)) == sorted(ended)
