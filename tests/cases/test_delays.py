"""Delayed jobs: the server keeps them, to the second, whatever happens to workers and link."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from mega import App, JobContext
from mega.errors import BadOption
from mega.events import JobRetried
from tests.apps.program import Program, run_to_end, write_app
from tests.cases.onlooker import Onlooker
from tests.cases.served import serving
from tests.nats_server import NatsServer, nats_url
from tests.proxy import Proxy
from tests.waiting import until

DAY = 86_400.0
FAR = [
    pytest.param(25 * DAY, id="25 days, over 2**31 ms"),
    pytest.param(49.8 * DAY, id="49.8 days, over 2**32 ms"),
    pytest.param(365 * DAY, id="a year"),
    pytest.param(30 * 365 * DAY, id="30 years"),
]


def pause(server: NatsServer, proxy: Proxy) -> None:
    os.kill(server.pid, signal.SIGSTOP)
    time.sleep(1)  # how long the server hangs: this is the fault, and no waiting
    os.kill(server.pid, signal.SIGCONT)


def cut(server: NatsServer, proxy: Proxy) -> None:
    proxy.cut()


def restart(server: NatsServer, proxy: Proxy) -> None:
    server.restart()


@pytest.mark.parametrize("disturb", [pause, cut, restart])
async def test_an_idle_worker_that_was_disturbed(
    subject: str, disturb: Callable[[NatsServer, Proxy], None]
) -> None:
    """delay-01: a fault while nothing but a delayed job is there does not lose the job.

    No new job comes that could wake the worker.
    """
    started: list[float] = []
    with NatsServer() as server, Proxy(server.port) as proxy:
        # Behind the proxy the end of a server looks like one that hangs up without a greeting.
        port = proxy.port if disturb is cut else server.port
        app = App("cases", broker=f"{nats_url(port).text}?ack_wait=1")

        @app.job(subject)
        async def work() -> None:
            started.append(time.monotonic())

        async with serving(app):
            due_at = time.monotonic() + 3
            await work.enqueue(delay=3)
            await anyio.to_thread.run_sync(disturb, server, proxy)
            await until(lambda: started, within=30, what="the delayed job")

    assert 1 == len(started)
    assert due_at - 0.5 < started[0]


async def test_a_delay_that_is_longer_than_the_lease(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """delay-02: a delayed job is in no worker's hands, and starts once when it is due."""
    started: list[tuple[float, int]] = []

    def worker() -> App:
        app = App("cases", broker=broker)

        @app.job(subject)
        async def work(ctx: JobContext) -> None:
            started.append((time.monotonic(), ctx.attempt))

        return app

    async with AsyncExitStack() as workers:
        apps = [worker() for _ in range(3)]
        for app in apps:
            await workers.enter_async_context(serving(app))
        due_at = time.monotonic() + 3
        job = await apps[0].enqueue(subject, delay=3)
        assert 0 == await onlooker.in_hand(subject)
        await job.wait(timeout=20)
        await onlooker.wait_until_empty(subject)

    ((at, attempt),) = started
    assert due_at - 0.5 < at
    assert 1 == attempt


WORKER = """
    from mega import App, JobContext
    app = App("delayed")
    @app.job("{subject}")
    async def work(ctx: JobContext) -> None:
        print("started attempt", ctx.attempt, flush=True)
    if __name__ == "__main__":
        app.run()
"""


def test_workers_that_are_killed_meanwhile(
    tmp_path: Path, home: Path, broker: str, subject: str
) -> None:
    """delay-02: a delayed job survives the death of all workers, and still runs once."""
    file = write_app(tmp_path, WORKER.format(subject=subject))
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Program(file, home=home, MEGA_BROKER=broker)) for _ in range(3)
        ]
        for worker in workers:
            worker.wait_for("ready in")
        delayed = run_to_end(
            file, "enqueue", subject, "--delay", "3", home=home, MEGA_BROKER=broker
        )
        assert 0 == delayed.code, delayed.errors
        for worker in workers:
            worker.signal(signal.SIGKILL)
            worker.wait()
        assert not any(worker.count("started") for worker in workers)
    with Program(file, home=home, MEGA_BROKER=broker) as late:
        late.wait_for("started attempt 1")
        late.signal(signal.SIGTERM)
        assert 0 == late.wait()
        assert 1 == late.count("started")


async def test_jobs_that_become_due_without_a_worker(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """delay-05: jobs that are due while no worker is there run late, once each."""
    app, seen = App("cases", broker=broker), []

    @app.job(subject)
    async def work(number: int) -> None:
        seen.append(number)

    async with app:
        for number in range(5):
            await work.enqueue(number, delay=0.5)
        await onlooker.wait_until_due(subject, 5)
    async with serving(app):
        await until(lambda: len(seen) >= 5, what="the jobs")
        await onlooker.wait_until_empty(subject)

    assert list(range(5)) == sorted(seen)


@pytest.mark.parametrize("delay", FAR)
async def test_a_delay_that_is_very_long(
    broker: str, subject: str, onlooker: Onlooker, delay: float
) -> None:
    """far-01: a delay of weeks and years is kept to the second, and does not run at once."""
    app, seen = App("cases", broker=broker), []

    @app.job(subject)
    async def work(name: str) -> None:
        seen.append(name)

    async with serving(app):
        due_at = datetime.now(UTC) + timedelta(seconds=delay)
        job = await work.enqueue("far", delay=delay)
        await work.enqueue("near", delay=1)
        await until(lambda: seen, what="the job that is due in a second")
        record = await job.state()
        (stored,) = await onlooker.jobs(subject)

    assert ["near"] == seen
    assert "waiting" == record.state
    assert record.due_at is not None
    assert 1 > abs((record.due_at - due_at).total_seconds())
    scheduled = (stored.headers or {})["Nats-Schedule"].removeprefix("@at ")
    assert 1 > abs((datetime.fromisoformat(scheduled) - due_at).total_seconds())


async def test_a_backoff_that_is_very_long(broker: str, subject: str, onlooker: Onlooker) -> None:
    """far-01: a retry in 25 days waits at the server, too."""
    app, runs = App("cases", broker=broker), []

    @app.job(subject, retries=1, backoff=25 * DAY)
    async def work() -> None:
        runs.append(1)
        raise ConnectionError

    async with serving(app) as served:
        due_at = datetime.now(UTC) + timedelta(days=25)
        job = await work.enqueue()
        await served.wait_for(JobRetried)
        record = await job.state()
        (stored,) = await onlooker.jobs(subject)

    assert [1] == runs
    assert "retrying" == record.state
    scheduled = (stored.headers or {})["Nats-Schedule"].removeprefix("@at ")
    assert 10 > abs((datetime.fromisoformat(scheduled) - due_at).total_seconds())


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 1e10},
        {"delay": 1e300},
        {"delay": float("inf")},
        {"delay": float("nan")},
        {"delay": -1},
        {"delay": timedelta.max},
        {"at": datetime.max.replace(tzinfo=UTC)},
    ],
    ids=str,
)
async def test_a_delay_that_cannot_be_meant(
    broker: str, subject: str, onlooker: Onlooker, options: dict[str, Any]
) -> None:
    """far-01: a delay beyond the year 2100 is refused, and nothing is stored."""
    app = App("cases", broker=broker)

    @app.job(subject)
    async def work() -> None: ...

    async with app:
        with pytest.raises(BadOption):
            await work.enqueue(**options)

    assert [] == await onlooker.jobs(subject)


@pytest.mark.parametrize("attempt", [16, 44, 47, 1075, 5000])
@pytest.mark.parametrize("backoff", ['{"initial":1000,"max":30000}', '{"factor":5}', None])
async def test_a_backoff_after_very_many_attempts(
    broker: str, subject: str, onlooker: Onlooker, attempt: int, backoff: str | None
) -> None:
    """far-03: the wait after any number of attempts is at most its `max`, without an overflow.

    A backoff is data and no function, so that none can raise.
    """
    app = App("cases", broker=broker)

    @app.job(subject)
    async def work() -> None:
        raise ConnectionError

    headers = {"Mega-Attempt": f"{attempt}", "Mega-Retries": "10000"}
    async with serving(app) as served:
        await onlooker.publish(
            subject, b"null", headers | ({"Mega-Backoff": backoff} if backoff else {})
        )
        (retried,) = await served.wait_for(JobRetried)

    longest = 30_000 if backoff and "max" in backoff else 30
    assert attempt == retried.attempt
    assert longest / 2 <= retried.delay <= longest


async def test_a_backoff_that_is_a_function(broker: str, subject: str) -> None:
    """far-03: a function as backoff, which could raise, is refused where it is declared."""
    app = App("cases", broker=broker)

    with pytest.raises(BadOption, match="backoff="):
        app.job(subject, backoff=lambda attempt: 1 / 0)  # type: ignore[arg-type]
