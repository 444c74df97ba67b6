"""What surrounds a handler: its context variables, its thread, its loop, those who listen."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import from_thread

from mega import App, JobContext, current_job
from mega.errors import UnknownEvent
from mega.events import (
    EVENTS,
    Event,
    JobDeadLettered,
    JobDone,
    JobFailed,
    JobRetried,
    JobStarted,
    ScheduleDone,
    ScheduleFailed,
    ScheduleSkipped,
    ThreadLeft,
)
from tests.apps.program import Program, write_app
from tests.cases.onlooker import Onlooker
from tests.cases.served import serving
from tests.waiting import until

#: One job of each kind, which tells what it finds and leaves something behind.
CONTEXTS = """
    import anyio, asyncio, contextvars, os, threading
    from mega import App, JobContext, current_job
    tenant = contextvars.ContextVar("tenant", default="nobody")
    app = App("contexts")

    def say(*words: object) -> None:
        os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one piece
    def take(name: str) -> str:
        found = tenant.get()
        tenant.set(name)
        return found
    def job_id() -> str:
        job = current_job()
        return job.id if job else "none"
    async def job_id_in_task() -> str:
        return job_id()
    def in_own_thread() -> str:
        found, copy = [], contextvars.copy_context()
        thread = threading.Thread(target=lambda: found.append(copy.run(job_id)))
        thread.start()
        thread.join()
        return found[0]

    @app.cpu_task()
    def cpu(name: str) -> str:
        return take(name) + " " + job_id()

    @app.job("{subject}.async")
    async def in_async(name: str, ctx: JobContext) -> None:
        say("async", take(name), await cpu.run(name))
        ids = [
            job_id(), await asyncio.create_task(job_id_in_task()),
            await anyio.to_thread.run_sync(job_id), await asyncio.to_thread(job_id),
            await anyio.to_thread.run_sync(in_own_thread),
        ]
        say("ids of async", set(ids) == {{ctx.id}})

    @app.job("{subject}.plain")
    def in_thread(name: str, ctx: JobContext) -> None:
        say("plain", take(name))
        ids = [job_id(), in_own_thread(), anyio.from_thread.run(job_id_in_task)]
        say("ids of plain", set(ids) == {{ctx.id}})

    @app.on_startup
    async def begin() -> None:
        say("outside", job_id())
        for name in ("ada", "grace", "joan"):
            await in_async.enqueue(name)
            await in_thread.enqueue(name)
    app.run()
"""


def test_each_run_has_a_context_of_its_own(
    tmp_path: Path, home: Path, broker: str, subject: str
) -> None:
    """ctx-01, ctx-02: a variable is seen by no other run; the job is known wherever it runs.

    In a CPU task there is no current job: it is another process. Its log lines have the id.
    """
    file = write_app(tmp_path, CONTEXTS.format(subject=subject))
    with Program(file, home=home, MEGA_BROKER=broker) as worker:
        for kind in ("async", "plain"):
            worker.wait_for(rf"(?s)(ids of {kind} True.*){{3}}")
        worker.signal(signal.SIGTERM)
        assert 0 == worker.wait()
    assert 3 == worker.count(r"(?m)^async nobody nobody none$")
    assert 3 == worker.count(r"(?m)^plain nobody$")
    assert 1 == worker.count(r"(?m)^outside none$")


async def test_jobs_at_once_do_not_see_each_other(broker: str, subject: str) -> None:
    """ctx-01: of fifty jobs at once each one knows itself alone."""
    app, seen = App("cases", broker=broker), []

    @app.job(subject, concurrency=50)
    async def work(ctx: JobContext) -> None:
        await anyio.sleep(0.05)
        job = current_job()
        seen.append((ctx.id, job and job.id))

    async with serving(app) as served:
        for _ in range(100):
            await work.enqueue()
        await served.wait_for(JobDone, 100)

    assert 100 == len(seen)
    assert all(expected == actual for expected, actual in seen)
    assert None is current_job()


class Wild(BaseException):
    """What is no Exception."""


def errors() -> list[BaseException]:
    import asyncio

    return [ValueError("no"), SystemExit(1), asyncio.CancelledError(), Wild()]


@pytest.mark.parametrize("error", errors(), ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
async def test_a_listener_that_raises(
    broker: str,
    subject: str,
    onlooker: Onlooker,
    error: BaseException,
    is_async: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """listen-01: whatever listeners of all events raise, the jobs end as they would without."""
    app = App("cases", broker=broker)

    async def raise_async(event: Event) -> None:
        raise error

    def raise_plain(event: Event) -> None:
        raise error

    for kind in (JobStarted, JobDone, JobRetried, JobFailed, JobDeadLettered):
        app.on(kind)(raise_async if is_async else raise_plain)

    @app.job(subject, retries=1, backoff=0)
    async def work(fails: bool) -> str:
        if fails:
            raise ConnectionError
        return "done"

    async with serving(app) as served:
        bad = await work.enqueue(True)
        good = await work.enqueue(False)
        assert "done" == await good.result(timeout=10)
        assert "failed" == (await bad.wait(timeout=10)).state
        await onlooker.wait_for_dead_letters(subject)
        await served.wait_for(JobDeadLettered)
        again = await work.enqueue(False)
        assert "done" == await again.result(timeout=10)
        await until(lambda: "told of job.dlq, raised" in caplog.text, what="the complaint")


async def test_a_listener_that_hangs(broker: str, subject: str, onlooker: Onlooker) -> None:
    """listen-03: jobs are acknowledged, and others told, while a listener hangs."""
    app, told, may_go_on = App("cases", broker=broker), [], anyio.Event()

    @app.on(JobDone)
    async def hang(event: JobDone) -> None:
        await may_go_on.wait()
        told.append(event.job_id)

    @app.job(subject)
    async def work() -> None: ...

    async with serving(app) as served:
        jobs = [await work.enqueue() for _ in range(3)]
        await onlooker.wait_until_empty(subject)
        await served.wait_for(JobDone, 3)
        assert [] == told
        may_go_on.set()
        await until(lambda: len(told) == 3, what="the listener")

    assert [job.id for job in jobs] == told


HANGING = """
    import anyio
    from mega import App
    from mega.events import JobDone
    app = App("hanging")
    @app.on(JobDone)
    async def hang(event: JobDone) -> None:
        print("told", flush=True)
        await anyio.sleep_forever()
    @app.job("{subject}")
    async def work() -> None:
        print("ran", flush=True)
    @app.on_startup
    async def begin() -> None:
        for _ in range(3):
            await work.enqueue()
    app.run()
"""


def test_a_listener_that_hangs_at_the_end(
    tmp_path: Path, home: Path, broker: str, subject: str
) -> None:
    """listen-03: the end of a process waits some seconds for it, and says what it has missed."""
    file = write_app(tmp_path, HANGING.format(subject=subject))
    with Program(file, home=home, MEGA_BROKER=broker) as worker:
        worker.wait_for("told")
        worker.wait_for(r"(?s)(ran.*){3}")
        worker.signal(signal.SIGTERM)
        assert 0 == worker.wait(within=20)
    assert re.search(r"2 events did not reach the subscriber app\.py:\d+ hang", worker.errors)


def test_a_listener_of_an_event_that_is_not_there() -> None:
    """listen-03: a mistyped event is refused with the names that there are."""
    with pytest.raises(UnknownEvent, match=r"there is no event 'dnoe'") as refused:
        App("cases").on("dnoe")
    assert all(kind in refused.value.hint for kind in EVENTS)
    with pytest.raises(UnknownEvent) as refused:
        App("cases").on("job.dnoe")
    assert 'Did you mean "job.done"?' == refused.value.hint


BLOCKING = """
    import time
    import anyio
    from mega import App, JobContext
    app = App("blocking")
    begun = []

    def fetch_all() -> None:
        time.sleep(10)  # the guilty line

    @app.job("{subject}.bad", retries=0)
    async def bad(ctx: JobContext) -> None:
        print("bad attempt", ctx.attempt, flush=True)
        while len(begun) < 4:
            await anyio.sleep(0.01)
        fetch_all()

    @app.job("{subject}.good", concurrency=4)
    async def good(ctx: JobContext) -> None:
        print("good attempt", ctx.attempt, flush=True)
        begun.append(ctx.id)
        await anyio.sleep(0.2)  # so that it is in hand when the loop is blocked
        print("good done", ctx.attempt, flush=True)

    @app.on_startup
    async def begin() -> None:
        for _ in range(4):
            await good.enqueue()
        await bad.enqueue()
    app.run()
"""


def test_a_handler_that_blocks_the_loop(
    tmp_path: Path, home: Path, broker: str, subject: str
) -> None:
    """block-01: after 5 s its job and line are logged; leases are renewed, nothing runs twice."""
    file = write_app(tmp_path, BLOCKING.format(subject=subject))
    with Program(file, home=home, MEGA_BROKER=broker) as worker:
        worker.wait_for(r"the event loop turns again after \d+\.\d s")
        worker.wait_for(r"(?s)(good done 1.*){4}")
        worker.signal(signal.SIGTERM)
        assert 0 == worker.wait()
    found = re.findall(
        r"the event loop has not turned for (\d+\.\d) s: (\S+) \w+ attempt 1", worker.errors
    )
    ((seconds, guilty),) = found
    assert (f"{subject}.bad", True) == (guilty, 5.0 <= float(seconds) < 10.0)
    assert re.search(r'app\.py", line \d+, in fetch_all\n +time\.sleep\(10\)', worker.errors)
    assert (1, 4, 4) == tuple(map(worker.count, ("bad attempt", "good attempt", "good done")))


async def test_more_plain_jobs_than_slots(broker: str, subject: str) -> None:
    """block-04: slots are threads; a time-out begins with its handler, not in any queue."""
    app = App("cases", broker=broker)
    at_once, most, lock = 0, 0, threading.Lock()

    @app.job(subject, concurrency=50, timeout=2.5, retries=0)
    def work() -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(1)
        with lock:
            at_once -= 1

    async with app:  # all are there before the first one begins
        for _ in range(150):
            await work.enqueue()
    async with serving(app) as served:
        await served.wait_for(JobDone, 150, within=30)
        assert [] == served.those(JobFailed)
    assert 50 == most


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What threads wait for that don't end by themselves; it is open in the end."""
    gate = threading.Event()
    yield gate
    gate.set()


async def test_a_plain_handler_that_does_not_end(
    broker: str,
    subject: str,
    onlooker: Onlooker,
    gate: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """block-04: after its time-out the job is answered and its slot free; its thread is counted.

    What the thread does later harms nobody.
    """
    app, late = App("cases", broker=broker), []

    @app.job(subject, concurrency=1, timeout=0.3, retries=0)
    def work(hangs: bool) -> None:
        if hangs:
            gate.wait()
            late.append(from_thread.run(work.enqueue, False))

    async with serving(app) as served:
        for _ in range(2):
            await work.enqueue(True)
        good = await work.enqueue(False)
        letters = await onlooker.wait_for_dead_letters(subject, 2)
        assert "done" == (await good.wait(timeout=10)).state
        await onlooker.wait_until_empty(subject)
        threads = served.session.around.threads
        assert 2 == threads.left
        assert [1, 2] == [event.left for event in await served.wait_for(ThreadLeft, 2)]
        gate.set()
        await until(lambda: threads.left == 0, what="the threads end")
        done = await served.wait_for(JobDone, 3)

    assert {good.id, *(job.id for job in late)} == {event.job_id for event in done}
    assert ["builtins.TimeoutError"] * 2 == [letter["error_type"] for letter in letters]
    assert all("the run took longer than its 0.3 s." in letter["error"] for letter in letters)
    assert "its thread can't be stopped and goes on without it; 2 such threads" in caplog.text


ENDLESS = """
    import threading
    from mega import App
    app = App("endless")
    @app.job("{subject}", timeout=0.2, retries=0)
    def work() -> None:
        threading.Event().wait()
    @app.on_startup
    async def begin() -> None:
        await work.enqueue()
    app.run()
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_thread_that_is_left_does_not_hold_the_process(
    tmp_path: Path, home: Path, broker: str, subject: str, backend: str
) -> None:
    """block-04: a process with such a thread ends well, and does not wait out its drain."""
    if backend == "trio":
        source = ENDLESS.replace("app.run()", "app.run(backend='trio', broker='memory:')")
    else:
        source = ENDLESS
    file = write_app(tmp_path, source.format(subject=subject))
    environment = {} if backend == "trio" else {"MEGA_BROKER": broker}
    with Program(file, home=home, **environment) as worker:
        worker.wait_for("its thread can't be stopped and goes on without it; 1 such")
        worker.wait_for("job.dlq")
        worker.signal(signal.SIGTERM)
        assert 0 == worker.wait(within=12)


@pytest.mark.parametrize("lock", [False, True], ids=["no lock", "lock"])
async def test_a_scheduled_run_that_hangs(broker: str, subject: str, lock: bool) -> None:
    """sched-01: it is cancelled by its time-out; ticks meanwhile are skipped with the reason."""
    app, begun = App("cases", broker=broker), []
    name = subject.replace(".", "-")

    @app.schedule(every=0.5, timeout=1.8, name=name, lock=lock)
    async def tick() -> None:
        begun.append(anyio.current_time())
        if len(begun) == 1:
            await anyio.sleep_forever()

    async with serving(app, role="scheduler") as served:
        (failed,) = await served.wait_for(ScheduleFailed)
        await served.wait_for(ScheduleDone, 2)
        skipped = served.those(ScheduleSkipped)

    assert isinstance(failed.error, TimeoutError)
    assert 2 <= len(skipped)
    assert {("running", name)} == {(event.reason, event.name) for event in skipped}


async def test_a_plain_scheduled_run_that_hangs(
    broker: str, subject: str, gate: threading.Event
) -> None:
    """sched-01: a plain function is left behind in its thread, and later ticks run."""
    app, begun = App("cases", broker=broker), []

    @app.schedule(every=0.5, timeout=0.8, name=subject.replace(".", "-"))
    def tick() -> None:
        begun.append(time.monotonic())
        if len(begun) == 1:
            gate.wait()

    async with serving(app, role="scheduler") as served:
        (failed,) = await served.wait_for(ScheduleFailed)
        await served.wait_for(ScheduleDone, 2)
        assert 1 == served.session.around.threads.left
        gate.set()
        await until(lambda: served.session.around.threads.left == 0, what="the thread ends")

    assert isinstance(failed.error, TimeoutError)


async def test_middleware_stands_around_jobs_of_a_real_queue(broker: str, subject: str) -> None:
    """ctx-01: what middleware sets for one job is gone at the next one on the slot."""
    app, seen = App("cases", broker=broker), []

    @app.middleware
    async def note(ctx: JobContext, call_next: Any) -> Any:
        seen.append(ctx.headers.get("tenant"))
        return f"{ctx.headers.get('tenant')}: {await call_next()}"

    @app.job(subject)
    def work() -> str:
        return "done"

    async with serving(app):
        job = await work.enqueue(headers={"tenant": "ada"})
        assert "ada: done" == await job.result(timeout=10)
        job = await work.enqueue()
        assert "None: done" == await job.result(timeout=10)

    assert ["ada", None] == seen
