"""What a process keeps of the jobs that have passed through it: nothing that grows."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import nats
import pytest
from nats.aio.client import Client

from mega import App
from mega.events import JobDone
from tests.apps.program import Program, run_to_end, write_app
from tests.cases.conftest import broker_of
from tests.cases.served import serving
from tests.nats_server import NatsServer
from tests.waiting import until

MB = 1 << 20

PRODUCER = """
    import asyncio, gc, os
    from mega import App
    app = App("producer")
    @app.job("{subject}")
    async def work(number: int) -> None: ...
    def rss() -> int:
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    async def enqueue(numbers: range) -> None:
        for number in numbers:
            await work.enqueue(number)
    async def enqueue_all() -> None:
        await asyncio.gather(*(enqueue(range(n, 10_000, 50)) for n in range(50)))
    async def main() -> None:
        async with app:
            await enqueue_all()
            await enqueue_all()  # what may have to be sent again is kept, up to a limit
            tasks, before = len(asyncio.all_tasks()), rss()
            await enqueue_all()
            print(len(asyncio.all_tasks()) - tasks, rss() - before)
    asyncio.run(main())
"""


def test_a_producer_that_forgets_its_jobs(
    tmp_path: Path, home: Path, broker: str, subject: str
) -> None:
    """mem-01: 10,000 enqueues after the first 20,000 leave no task and no memory behind."""
    file = write_app(tmp_path, PRODUCER.format(subject=subject))
    program = run_to_end(file, home=home, MEGA_BROKER=broker)
    assert 0 == program.code, program.errors
    tasks, grown = map(int, program.output.split())
    assert 0 == tasks
    assert grown < 3 * MB  # 300 bytes for each


FAILING = """
    import itertools, os
    from mega import App
    app = App("failing")
    runs = itertools.count(1)
    @app.job("{subject}", retries=0, concurrency=10)
    {kind} fail(number: int) -> None:
        large = bytearray(1 << 20)
        large[::4096] = b"x" * 256  # so that it is there
        run = next(runs)
        if run % 100 == 0:
            os.write(1, f"run {{run}}\\n".encode())
        raise ValueError(number)
    app.run()
"""


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_jobs_that_fail_with_large_variables(
    tmp_path: Path, home: Path, broker: str, subject: str, kind: str
) -> None:
    """mem-03: 500 failed runs keep none of their frames, each with 1 MB in a variable."""
    file = write_app(tmp_path, FAILING.format(subject=subject, kind=kind))
    producer = App("cases", broker=broker)
    with Program(file, home=home, MEGA_BROKER=broker) as worker:
        worker.wait_for("ready in")
        before = await fail_and_measure(producer, worker, subject, range(100))
        after = await fail_and_measure(producer, worker, subject, range(100, 600))
        worker.signal(signal.SIGTERM)
        assert 0 == worker.wait()
    assert after - before < 50 * MB


async def fail_and_measure(
    producer: App[Any], worker: Program, subject: str, numbers: range
) -> int:
    """Run jobs to their end in the worker, and return how many bytes it has then."""
    async with producer:
        for number in numbers:
            await producer.enqueue(subject, number)
    last = f"run {numbers.stop}\n"
    await until(lambda: last in worker.output, within=60, what=last)
    return rss_of(worker.pid)


def rss_of(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


@pytest.fixture
def own_server() -> Iterator[NatsServer]:
    """A server whose records are those of one test."""
    with NatsServer() as server:
        yield server


async def test_records_of_jobs_that_have_ended(own_server: NatsServer, subject: str) -> None:
    """mem-04: 500 records are gone from the store soon after their `result_ttl`."""
    app = App("cases", broker=broker_of(own_server))

    @app.job(subject, concurrency=20, result_ttl=3)
    async def work() -> None: ...

    async with await nats.connect(own_server.url().text) as client, serving(app) as served:
        for _ in range(500):
            await work.enqueue()
        await served.wait_for(JobDone, 500, within=30)
        assert await count_of_records(client) > 0
        deadline = anyio.current_time() + 30
        while await count_of_records(client):
            assert anyio.current_time() < deadline, "after 30 s there are records"
            await anyio.sleep(0.1)


async def count_of_records(client: Client) -> int:
    # A key of two tokens is a worker's sign of life.
    info = await client.jsm().stream_info("KV_MEGA_STATE", subjects_filter="$KV.MEGA_STATE.*")
    return len(info.state.subjects or {})
