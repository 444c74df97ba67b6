"""How many run at once, in one worker and in all; and that no job takes the place of others."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from mega import App, JobContext
from mega.errors import BadOption
from mega.events import JobDone, JobFailed, JobRetried
from mega.runtime.long_runs import LongRuns
from mega.runtime.watchdog import Watchdog
from tests.apps.program import Program, write_app
from tests.cases.onlooker import Onlooker, stream_of
from tests.cases.served import serving
from tests.unit.adapters.nats.asking import until_answer
from tests.waiting import until, until_sync


class Tally:
    """How many of each name are inside at once, and how many were at most."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    @contextmanager
    def inside(self, *names: str) -> Iterator[None]:
        for name in names:
            self.now[name] += 1
            self.most[name] = max(self.most[name], self.now[name])
        try:
            yield
        finally:
            for name in names:
                self.now[name] -= 1
                self.done[name] += 1


async def test_a_limit_holds_whatever_starts_the_run(broker: str, subject: str) -> None:
    """conc-01: 20 runs by enqueue, 20 by schedules at once, 5 by hand: two at a time."""
    app, tally = App("cases", broker=broker), Tally()

    @app.job(subject, concurrency=2)
    async def work() -> None:
        with tally.inside("work"):
            await anyio.sleep(0.03)

    prefix = subject.replace(".", "-")
    schedules = [app.schedule(every=3, name=f"{prefix}-{n}")(work) for n in range(20)]
    async with serving(app, role="all") as served:
        for _ in range(20):
            await work.enqueue()
        for schedule in schedules[:5]:
            await schedule.run_now()
        await served.wait_for(JobDone, 45, within=30)

    assert 2 == tally.most["work"]


ONE_AT_A_TIME = """
    import os, time
    import anyio
    from mega import App, JobContext
    app = App("writers")
    log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    def write(word: str, number: int) -> None:
        os.write(log, f"{{word}} {{number}} {{os.getpid()}}\\n".encode())
    @app.job("{subject}", concurrency=1)
    async def work(number: int) -> None:
        write("start", number)
        await anyio.sleep(0.01)
        write("end", number)
    app.run()
"""


def runs_in(log: str, *, killed: int | None = None) -> list[int]:
    """Return which jobs ended, in order. Between a start and its end nothing else is written,
    but for the one run whose process was killed.
    """
    ended, open_run = [], None
    for line in log.splitlines():
        word, number, pid = line.split()
        if word == "start":
            assert open_run is None or open_run[1] == str(killed), f"{line} within {open_run}"
            open_run = (number, pid)
        else:
            assert (number, pid) == open_run, f"{line} within {open_run}"
            open_run = None
            ended.append(int(number))
    return ended


@pytest.mark.parametrize("is_killed", [False, True], ids=["all live", "one is killed"])
async def test_one_at_a_time_in_two_workers(
    tmp_path: Path, home: Path, broker: str, subject: str, is_killed: bool
) -> None:
    """conc-02: with concurrency=1 no two runs overlap in two workers, nor after a kill -9."""
    file, log = write_app(tmp_path, ONE_AT_A_TIME.format(subject=subject)), tmp_path / "log"
    log.touch()
    producer = App("cases", broker=broker)
    with (
        Program(file, home=home, MEGA_BROKER=broker) as first,
        Program(file, home=home, MEGA_BROKER=broker) as second,
    ):
        for worker in (first, second):
            worker.wait_for("ready in")
        async with producer:
            for number in range(100):
                await producer.enqueue(subject, number)
        await until(lambda: str(first.pid) in log.read_text(), within=30, what="the first works")
        if is_killed:
            first.signal(signal.SIGKILL)
        await until(
            lambda: len(set(re.findall(r"end (\d+)", log.read_text()))) == 100,
            within=60,
            what="all jobs",
        )
        for worker in (first, second)[is_killed:]:
            worker.signal(signal.SIGTERM)
            assert 0 == worker.wait()

    ended = runs_in(log.read_text(), killed=first.pid if is_killed else None)
    assert set(range(100)) == set(ended)
    # A run whose end was written but not yet acknowledged when the process was killed repeats.
    assert len(ended) <= 100 + is_killed


async def test_a_limit_of_the_worker_beside_those_of_its_jobs(broker: str, subject: str) -> None:
    """conc-04: three jobs of 5 at once in a worker of 6: each has 5 at most, all have 6."""
    app, tally = App("cases", broker=broker), Tally()

    def declare(name: str) -> Any:
        @app.job(f"{subject}.{name}", concurrency=5)
        async def work() -> None:
            with tally.inside(name, "all"):
                await anyio.sleep(0.05)

        return work

    jobs = [declare(name) for name in ("a", "b", "c")]
    async with app:
        for _ in range(15):
            for job in jobs:
                await job.enqueue()
    async with serving(app, max_jobs=6) as served:
        await served.wait_for(JobDone, 45, within=30)

    assert 6 == tally.most["all"]
    assert all(1 <= tally.most[name] <= 5 for name in ("a", "b", "c"))
    assert {"a": 15, "b": 15, "c": 15, "all": 45} == tally.done


async def test_jobs_take_turns_in_the_order_in_which_they_came(broker: str, subject: str) -> None:
    """conc-04, starve-02: under the worker's limit a flood of one job passes no other."""
    app, order = App("cases", broker=broker), []

    @app.job(f"{subject}.flood", concurrency=4)
    async def flood() -> None:
        order.append("flood")
        await anyio.sleep(0.02)

    @app.job(f"{subject}.rare")
    async def rare() -> None:
        order.append("rare")
        await anyio.sleep(0.02)

    async with app:
        for _ in range(60):
            await flood.enqueue()
        for _ in range(5):
            await rare.enqueue()
    async with serving(app, max_jobs=1) as served:
        await served.wait_for(JobDone, 65, within=30)

    # At most 4 of the flood are in hand and wait; each time round the rare one has its turn.
    last_rare = len(order) - order[::-1].index("rare")
    assert last_rare <= 45


async def test_a_job_that_waits_for_its_turn_keeps_its_lease_and_goes_back_unbegun(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """conc-04: it waits for longer than ack_wait and starts once; a drain costs it no attempt."""
    app, seen, may_end = App("cases", broker=broker), [], anyio.Event()

    @app.job(f"{subject}.first")
    async def first() -> None:
        await may_end.wait()

    @app.job(f"{subject}.second", retries=0)
    async def second(ctx: JobContext) -> None:
        seen.append(ctx.attempt)

    async with serving(app, max_jobs=1) as served:
        await first.enqueue()
        await until(lambda: served.session.around.in_hand, what="the first one runs")
        beats = await onlooker.beats(second.subject)
        waiting = await second.enqueue()
        # Each third of ack_wait there is one: it waits for more than three times ack_wait.
        await until(lambda: len(beats) > 10, what="the renewals")
        served.stop()
        assert served.session.around.in_hand
        consumer = await onlooker.client.jsm().consumer_info(stream_of(waiting.subject), "workers")
        await until_answer(
            lambda: onlooker.in_hand(waiting.subject), lambda held: held == 0, what="its return"
        )
        may_end.set()
    assert ([], 0) == (seen, consumer.num_redelivered)
    assert "waiting" == (await onlooker.record(waiting.id) or {})["state"]

    async with serving(app, max_jobs=1) as served:
        await served.wait_for(JobDone)
    assert [1] == seen


BAD_COUNTS = [0, -1, 1.5, "2", True, None]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("concurrency", value) for value in BAD_COUNTS),
        # None is the default there: as many as concurrency.
        *(("per_worker", value) for value in BAD_COUNTS if value is not None),
    ],
    ids=repr,
)
def test_a_limit_that_is_no_count(option: str, value: Any) -> None:
    """conc-05: refused on the decorator's line, with the job and the value."""
    options: dict[str, Any] = {option: value}
    with pytest.raises(BadOption, match=re.escape(f"{option}={value!r}")) as refused:
        App("cases").job("email.send", **options)
    assert re.fullmatch(r"test_concurrency\.py:\d+ email\.send", refused.value.where)


@pytest.mark.parametrize("value", BAD_COUNTS[:-1], ids=repr)
async def test_a_limit_of_the_worker_that_is_no_count(value: Any) -> None:
    """conc-05: the same for a worker, before it connects."""
    with pytest.raises(BadOption, match=re.escape(f"max_jobs={value!r}")):
        await App("cases", broker="nats://127.0.0.1:1").serve(max_jobs=value)


async def test_a_job_that_never_ends_takes_no_slot_of_another(
    broker: str, subject: str, caplog: pytest.LogCaptureFixture
) -> None:
    """starve-01: it is told of while it runs, ended by its time-out, and another job goes on."""
    app = App("cases", broker=broker)

    @app.job(f"{subject}.endless", concurrency=2, timeout=2, retries=0)
    async def endless() -> None:
        while True:  # noqa: ASYNC110 - as the case has it
            await anyio.sleep(0.01)

    @app.job(f"{subject}.good")
    async def good() -> None: ...

    async with serving(app) as served, anyio.create_task_group() as group:
        around = served.session.around
        long_runs = LongRuns(around.in_hand, now=around.clock.monotonic, after=0.4)
        group.start_soon(Watchdog(long_runs, limit=0.5).run)
        jobs = [await endless.enqueue() for _ in range(4)]
        await until(lambda: len(around.in_hand) == 2, what="both slots are taken")
        for _ in range(50):
            await (await good.enqueue()).wait(timeout=10)
        failed = await served.wait_for(JobFailed, 4)
        group.cancel_scope.cancel()

    assert {job.id for job in jobs} == {event.job_id for event in failed}
    assert {TimeoutError} == {type(event.error) for event in failed}
    for job in jobs:
        assert f"{subject}.endless {job.id} attempt 1 has been running for" in caplog.text


async def test_a_job_that_never_ends_is_told_of_again_and_again(
    broker: str, subject: str, caplog: pytest.LogCaptureFixture
) -> None:
    """starve-01: without a time-out too, at doubling times."""
    app = App("cases", broker=broker)

    @app.job(subject)
    async def endless() -> None:
        await anyio.sleep_forever()

    async with serving(app, drain_timeout=0) as served, anyio.create_task_group() as group:
        around = served.session.around
        long_runs = LongRuns(around.in_hand, now=around.clock.monotonic, after=0.2)
        group.start_soon(Watchdog(long_runs, limit=0.25).run)
        await endless.enqueue()
        await until(lambda: caplog.text.count("has been running for") >= 3, what="three lines")
        group.cancel_scope.cancel()


@pytest.mark.parametrize("seconds", [0, 0.0005], ids=["no-op", "holds the loop"])
async def test_a_flood_of_one_job_starves_no_other(
    broker: str, subject: str, seconds: float
) -> None:
    """starve-02: ten jobs behind a flood of another one are done long before it ends."""
    app, done = App("cases", broker=broker), Counter[str]()
    floods = 5_000 if seconds == 0 else 2_000

    @app.job(f"{subject}.flood", concurrency=10, track=False)
    async def flood() -> None:
        if seconds:
            time.sleep(seconds)  # noqa: ASYNC251 - it holds the loop
        done["flood"] += 1

    @app.job(f"{subject}.rare", track=False)
    async def rare() -> None:
        done["rare"] += 1
        if done["rare"] == 10:
            done["flood before"] = done["flood"]

    async with app:
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(enqueue_many, flood, floods // 20)
        for _ in range(10):
            await rare.enqueue()
    async with serving(app):
        await until(lambda: done["flood"] == floods, within=60, what="the flood ends")

    assert 10 == done["rare"]
    assert done["flood before"] <= floods / 2


async def enqueue_many(job: Any, count: int) -> None:
    for _ in range(count):
        await job.enqueue()


TWO_WORKERS = """
    import os
    import anyio
    from mega import App
    app = App("workers")
    @app.job("{subject}", concurrency=2, per_worker=1, track=False)
    async def work(seconds: float) -> None:
        os.write(1, f"begun {{seconds}}\\n".encode())
        await anyio.sleep(seconds)
        os.write(1, f"done {{seconds}}\\n".encode())
    app.run()
"""


async def test_short_jobs_do_not_wait_behind_a_long_one(
    tmp_path: Path, home: Path, broker: str, subject: str
) -> None:
    """starve-05: with one slot in each of two workers, nothing is fetched that can't begin."""
    file = write_app(tmp_path, TWO_WORKERS.format(subject=subject))
    producer = App("cases", broker=broker)
    with (
        Program(file, "--drain-timeout", "0.1", home=home, MEGA_BROKER=broker) as first,
        Program(file, "--drain-timeout", "0.1", home=home, MEGA_BROKER=broker) as second,
    ):
        workers = first, second
        for worker in workers:
            worker.wait_for("ready in")
        async with producer:
            await producer.enqueue(subject, 600.0)
            await until(lambda: any(w.count("begun 600") for w in workers), what="the long one")
            for _ in range(10):
                await producer.enqueue(subject, 0.1)
        until_sync(lambda: sum(w.count(r"done 0\.1") for w in workers) == 10, within=10, what="ten")
        counts = sorted((w.count("begun 600"), w.count(r"done 0\.1")) for w in workers)
        assert [(0, 10), (1, 0)] == counts
        for worker in workers:
            worker.signal(signal.SIGTERM)
            assert 0 == worker.wait()


async def test_jobs_of_one_worker_have_slots_of_their_own(broker: str, subject: str) -> None:
    """starve-01: one job's failures and waits leave the slots of another untouched."""
    app, tally = App("cases", broker=broker), Tally()

    @app.job(f"{subject}.bad", concurrency=3, retries=1, backoff=30)
    async def bad() -> None:
        raise ConnectionError

    @app.job(f"{subject}.good", concurrency=3)
    async def good() -> None:
        with tally.inside("good"):
            await anyio.sleep(0.02)

    async with app:
        for _ in range(20):
            await bad.enqueue()
            await good.enqueue()
    async with serving(app) as served:
        await served.wait_for(JobDone, 20)
        await served.wait_for(JobRetried, 20)

    assert 3 == tally.most["good"]
