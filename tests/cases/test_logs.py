"""Each line that is logged in a run can say which run it was; a line outside says none."""

from __future__ import annotations

import re
import signal
from collections import defaultdict
from pathlib import Path

from tests.apps.program import Program, write_app
from tests.waiting import until_sync

#: Logging as a user sets it up: mega's filter on a handler of one's own.
LOGGING = """
    import asyncio, logging, sys, threading, contextvars
    import anyio
    from mega import App, JobContext
    from mega.context import RunFilter
    from mega.events import JobDone
    handler = logging.StreamHandler(sys.stdout)
    handler.addFilter(RunFilter())
    handler.setFormatter(logging.Formatter(
        "%(job_id)s|%(subject)s|%(attempt)s|%(name)s|%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    library, user = logging.getLogger("library"), logging.getLogger("user")
    app = App("logging")

    @app.cpu_task()
    def cpu(number: int, job_id: str) -> None:
        logging.getLogger("library").info("cpu of %s", job_id)

    async def child(job_id: str) -> None:
        await anyio.sleep(0.01)
        library.info("child of %s", job_id)

    @app.job("{subject}.async", concurrency=10, retries=1, backoff=0)
    async def in_async(number: int, ctx: JobContext) -> None:
        user.info("handler of %s", ctx.id)
        async with anyio.create_task_group() as group:
            group.start_soon(child, ctx.id)
        await asyncio.create_task(child(ctx.id))
        await anyio.to_thread.run_sync(library.info, "thread of %s", ctx.id)
        if number < 3:
            await cpu.run(number, ctx.id)
        ctx.log.info("log of %s", ctx.id)
        if ctx.attempt == 1 and number >= 5:
            raise ConnectionError("try again")

    @app.job("{subject}.plain", concurrency=10)
    def in_thread(number: int, ctx: JobContext) -> None:
        library.info("handler of %s", ctx.id)
        copy = contextvars.copy_context()
        thread = threading.Thread(
            target=copy.run, args=(library.info, "own thread of %s", ctx.id))
        thread.start()
        thread.join()

    @app.on(JobDone)
    async def note(event: JobDone) -> None:
        user.info("outside: %s is done", event.job_id)

    async def tell_outside() -> None:
        while True:
            user.info("outside")
            await asyncio.sleep(0.005)

    @app.on_startup
    async def begin() -> None:
        app.telling = asyncio.create_task(tell_outside())
        for number in range(10):
            await in_async.enqueue(number)
            await in_thread.enqueue(number)
    app.run()
"""


def test_each_line_has_the_ids_of_its_job(
    tmp_path: Path, home: Path, broker: str, subject: str
) -> None:
    """log-01: lines of the user, of libraries and of mega, in tasks, threads and CPU tasks, have
    the id of their job; what is logged beside the jobs has none, also after errors.
    """
    file = write_app(tmp_path, LOGGING.format(subject=subject))
    with Program(file, home=home, MEGA_BROKER=broker) as worker:
        until_sync(lambda: worker.count(r"outside: \w+ is done") == 20, within=30, what="all jobs")
        worker.signal(signal.SIGTERM)
        assert 0 == worker.wait()
    lines = [line.split("|", 4) for line in worker.output.splitlines() if line.count("|") >= 4]

    texts = defaultdict(list)
    for job_id, name, attempt, logger, text in lines:
        what, _, own = text.partition(" of ")
        if own:
            assert own == job_id, text
            assert name.startswith(f"{subject}."), text
            texts[what].append(int(attempt))
        elif text.startswith("outside"):
            assert ("None", "None", "None") == (job_id, name, attempt), text
        elif text.startswith("job.retry"):
            assert ("mega.events", "1") == (logger, attempt), text
            assert job_id in text
    assert {"handler": 25, "child": 30, "thread": 15, "cpu": 3, "log": 15, "own thread": 10} == {
        what: len(attempts) for what, attempts in texts.items()
    }
    assert 5 == texts["log"].count(2)
    assert 5 == sum("job.retry" in line[4] for line in lines)


CONSOLE = """
    import logging
    from mega import App, JobContext
    app = App("console")
    @app.job("{subject}", retries=0)
    async def work(ctx: JobContext) -> None:
        logging.getLogger("library").warning("odd data")
        ctx.log.warning("half done")
        raise ConnectionError("the server is away")
    @app.on_startup
    async def begin() -> None:
        logging.getLogger("library").warning("starting")
        await work.enqueue()
    app.run()
"""


def test_the_console_names_the_run(tmp_path: Path, home: Path, broker: str, subject: str) -> None:
    """log-01: without any set-up, a line of a run begins with the run in brackets."""
    file = write_app(tmp_path, CONSOLE.format(subject=subject))
    with Program(file, home=home, MEGA_BROKER=broker) as worker:
        worker.wait_for("job.dlq")
        worker.signal(signal.SIGTERM)
        assert 0 == worker.wait()
    run = rf"\[{re.escape(subject)} \w{{24}} attempt 1\]"
    for logger, text in [("library", "odd data"), ("mega.job", "half done")]:
        assert re.search(rf"(?m)WARNING {logger}  {run} {text}$", worker.errors), worker.errors
    assert re.search(r"(?m)WARNING library  starting$", worker.errors)
    # What names the job in its text does not do so twice.
    assert re.search(rf"(?m)ERROR   mega\.events  job\.fail {re.escape(subject)} ", worker.errors)
