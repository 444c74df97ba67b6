"""A job whose worker lives is run once, however long and in whatever way it runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from mega import App, JobContext
from mega.events import JobDone
from tests.apps.program import Program, write_app
from tests.cases.onlooker import Onlooker, stream_of
from tests.cases.served import serving
from tests.nats_server import NatsServer
from tests.waiting import until_sync

WORKER = """
    import time
    import anyio
    from mega import App, JobContext
    app = App("leases")

    def say(word: str, ctx: JobContext) -> None:
        print(word, ctx.id, "attempt", ctx.attempt, flush=True)

    @app.job("{subject}.sleeps")
    async def sleeps(seconds: float, ctx: JobContext) -> None:
        say("begun", ctx)
        await anyio.sleep(seconds)
        say("ended", ctx)

    @app.job("{subject}.blocks")
    async def blocks(seconds: float, ctx: JobContext) -> None:
        say("begun", ctx)
        time.sleep(seconds)
        say("ended", ctx)

    @app.job("{subject}.spins")
    def spins(seconds: float, ctx: JobContext) -> None:
        say("begun", ctx)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sum(range(1000))
        say("ended", ctx)

    @app.job("{subject}.fails", retries=1, backoff={backoff})
    async def fails(ctx: JobContext) -> None:
        say("begun", ctx)
        if ctx.attempt == 1:
            raise ConnectionError("not yet")
        say("ended", ctx)

    @app.job("{subject}.once", concurrency=8, retries=0)
    async def once(ctx: JobContext) -> None:
        say("begun", ctx)
        say("ended", ctx)

    @app.job("{subject}.together", concurrency=4)
    async def together(seconds: float, ctx: JobContext) -> None:
        say("begun", ctx)
        await anyio.sleep(seconds)
        say("ended", ctx)
    app.run()
"""


class Workers:
    """Worker processes of one app file."""

    def __init__(self, stack: ExitStack, file: Path, home: Path, broker: str) -> None:
        self._stack = stack
        self._file = file
        self._home = home
        self._broker = broker
        self.all: list[Program] = []

    def start(self, count: int = 1) -> Program:
        """Start some more, and return the last one once they are all ready."""
        new = [Program(self._file, home=self._home, MEGA_BROKER=self._broker) for _ in range(count)]
        for worker in new:
            self.all.append(self._stack.enter_context(worker))
        for worker in new:
            worker.wait_for("ready in")
        return new[-1]

    def lines(self, word: str, job_id: str = "") -> list[str]:
        """Return the lines of all of them that begin so."""
        begin = f"{word} {job_id}".strip() + " "
        lines = [line for worker in self.all for line in worker.output.splitlines()]
        return [line for line in lines if line.startswith(begin)]

    def wait_for(self, word: str, job_id: str = "", count: int = 1, within: float = 20) -> Program:
        """Return a worker that said it, once it was said that often."""
        until_sync(
            lambda: len(self.lines(word, job_id)) >= count, within=within, what=f"{word} {job_id}"
        )
        return next(w for w in self.all if f"{word} {job_id}".strip() + " " in w.output)


@pytest.fixture
def backoff() -> float:
    return 30.0


@pytest.fixture
def workers(
    tmp_path: Path, home: Path, broker: str, subject: str, backoff: float
) -> Iterator[Workers]:
    file = write_app(tmp_path, WORKER.format(subject=subject, backoff=backoff))
    with ExitStack() as stack:
        yield Workers(stack, file, home, broker)


async def enqueue(broker: str, subject: str, payload: Any = None, **options: Any) -> str:
    app = App("cases", broker=broker)
    async with app:
        return (await app.enqueue(subject, payload, **options)).id


@pytest.mark.parametrize(("kind", "seconds"), [("sleeps", 10.0), ("blocks", 3.0), ("spins", 3.0)])
async def test_a_job_that_outlasts_its_lease(
    workers: Workers, broker: str, subject: str, onlooker: Onlooker, kind: str, seconds: float
) -> None:
    """ackwait-01, ackwait-02: it is started once, by one of two workers, and handed out once.

    It sleeps, keeps the event loop from turning, or keeps the interpreter busy in a thread.
    """
    await anyio.to_thread.run_sync(workers.start, 2)
    job_id = await enqueue(broker, f"{subject}.{kind}", seconds)
    await anyio.to_thread.run_sync(workers.wait_for, "ended", job_id, 1, 30)
    await onlooker.wait_until_empty(f"{subject}.{kind}")

    assert [f"begun {job_id} attempt 1"] == workers.lines("begun", job_id)


async def test_jobs_that_come_to_a_worker_whose_loop_stands_still(
    workers: Workers, broker: str, subject: str
) -> None:
    """ackwait-02: each of them runs once, in the other worker or when the loop turns again."""
    app = App("cases", broker=broker)
    workers.start(2)
    async with app:
        blocker = await app.enqueue(f"{subject}.blocks", 4.0)
        await anyio.to_thread.run_sync(workers.wait_for, "begun", blocker.id)
        for number in range(12):
            await app.enqueue(f"{subject}.together", 0.0, id=f"{subject}.{number}")
        await anyio.to_thread.run_sync(workers.wait_for, "ended", blocker.id)
        await anyio.to_thread.run_sync(workers.wait_for, "ended", "", 13)
        await anyio.sleep(2)  # in which a second run would begin

    names = [line.split()[1] for line in workers.lines("begun")]
    assert sorted(set(names)) == sorted(names)


async def test_jobs_that_come_to_a_worker_that_is_stopped(
    workers: Workers, broker: str, subject: str, onlooker: Onlooker
) -> None:
    """ackwait-02: without retries they still run, once, and none is called a crash."""
    app = App("cases", broker=broker)
    await anyio.to_thread.run_sync(workers.start, 2)
    stopped = workers.all[0]
    stopped.signal(signal.SIGSTOP)
    try:
        async with app:
            jobs = [await app.enqueue(f"{subject}.once") for _ in range(8)]
            ends = [await job.wait(timeout=20) for job in jobs]
    finally:
        stopped.signal(signal.SIGCONT)
    stopped.signal(signal.SIGTERM)
    await anyio.to_thread.run_sync(stopped.wait)
    await onlooker.wait_until_empty(f"{subject}.once")

    assert ["done"] * 8 == [end.state for end in ends]
    assert sorted(f"begun {job.id} attempt 1" for job in jobs) == sorted(workers.lines("begun"))


async def test_a_backoff_is_not_the_lease(
    workers: Workers, server: NatsServer, broker: str, subject: str, onlooker: Onlooker
) -> None:
    """nak-03: the consumer has the ack_wait that was asked for and no backoff of its own."""
    workers.start()
    for kind in ("sleeps", "fails"):
        info = await onlooker.client.jsm().consumer_info(stream_of(f"{subject}.{kind}"), "workers")
        assert 1.0 == info.config.ack_wait
        assert not info.config.backoff
        assert -1 == info.config.max_deliver


async def test_a_worker_that_is_killed_in_the_middle(
    workers: Workers, broker: str, subject: str
) -> None:
    """dup-01: the other worker's run is the second attempt, and says so."""
    workers.start(2)
    job_id = await enqueue(broker, f"{subject}.sleeps", 3.0)
    first = workers.wait_for("begun", job_id)
    first.signal(signal.SIGKILL)
    first.wait()
    workers.wait_for("ended", job_id)

    expected = [f"begun {job_id} attempt 1", f"begun {job_id} attempt 2"]
    assert expected == sorted(workers.lines("begun", job_id))


async def test_jobs_that_end_as_their_lease_does(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """dup-02: a job that has ended is never run again, and none comes without its payload."""
    app, seen = App("cases", broker=broker), []

    @app.job(subject, concurrency=50)
    async def work(payload: dict[str, int], ctx: JobContext) -> None:
        seen.append((payload["number"], ctx.attempt))
        await anyio.sleep(0.99)

    async with serving(app):
        for number in range(200):
            await work.enqueue({"number": number})
        await onlooker.wait_until_empty(subject)

    assert [(number, 1) for number in range(200)] == sorted(seen)


async def test_a_lease_that_is_renewed_has_not_lapsed(broker: str, subject: str) -> None:
    """nak-04: only a run whose lease was out counts as one that may be double."""
    app = App("cases", broker=broker)

    @app.job(subject)
    async def work() -> None:
        await anyio.sleep(2.5)  # more than twice ack_wait

    async with serving(app) as served:
        await work.enqueue()
        (done,) = await served.wait_for(JobDone)

    assert not done.lapsed


async def test_jobs_in_backoff_hold_no_slot(workers: Workers, broker: str, subject: str) -> None:
    """With a hundred jobs in a backoff of 30 s and one slot, a good job starts at once."""
    app = App("cases", broker=broker)
    workers.start()
    async with app:
        for _ in range(100):
            await app.enqueue(f"{subject}.fails")
        await anyio.to_thread.run_sync(workers.wait_for, "begun", "", 100, 30)
        job = await app.enqueue(f"{subject}.fails", id=f"{subject}.good")
        await anyio.to_thread.run_sync(workers.wait_for, "begun", job.id, 1, 5)

    assert 101 == len(workers.lines("begun"))


@pytest.mark.parametrize("backoff", [3.0])
async def test_workers_that_are_killed_in_the_backoff(
    workers: Workers, broker: str, subject: str
) -> None:
    """The server keeps the retries: they come though every worker was killed."""
    app = App("cases", broker=broker)
    first = workers.start()
    async with app:
        for _ in range(20):
            await app.enqueue(f"{subject}.fails")
    workers.wait_for("begun", "", 20)
    first.signal(signal.SIGKILL)
    first.wait()
    workers.start()
    workers.wait_for("ended", "", 20, 30)

    assert 20 == sum("attempt 2" in line for line in workers.lines("begun"))


async def test_the_slots_of_a_killed_worker_come_back(
    workers: Workers, broker: str, subject: str
) -> None:
    """dup-01: concurrency holds for the group, so what a dead worker had goes to the others."""
    app = App("cases", broker=broker)
    workers.start(2)
    async with app:
        for _ in range(8):
            await app.enqueue(f"{subject}.together", 2.0)
    workers.wait_for("begun", "", 4)
    dead, heir = workers.all
    begun_before = dead.count("begun")
    dead.signal(signal.SIGKILL)
    dead.wait()
    until_sync(lambda: heir.count("ended") >= 8 - dead.count("ended"), within=30, what="all jobs")

    assert 8 + begun_before == len(workers.lines("begun"))
