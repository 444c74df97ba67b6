"""Workers that die while they run jobs: nothing is lost, and poison comes to an end."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pytest

from mega import App
from mega.events import JobDeadLettered, JobDone
from tests.apps.program import Program, write_app
from tests.cases.onlooker import Onlooker, stream_of
from tests.cases.served import serving
from tests.unit.adapters.nats.asking import until_answer
from tests.waiting import until_sync

HEAD = """
    import ctypes, os, signal, time
    from pathlib import Path
    import anyio
    from mega import App, JobContext
    app = App("crashes")
    """
TAIL = """
    if __name__ == "__main__":
        app.run()
    """
LONG = 60.0


class Crew:
    """Workers of one app, one after the other or side by side, and what all of them said."""

    def __init__(self, folder: Path, broker: str, source: str, stack: ExitStack) -> None:
        self._file = write_app(folder, HEAD + source + TAIL)
        self._home = folder / ".mega"
        self._broker = broker
        self._stack = stack
        self.workers: list[Program] = []

    def start(self, *arguments: str) -> Program:
        """Start one more worker; it is killed at the end of the test."""
        worker = Program(self._file, *arguments, home=self._home, MEGA_BROKER=self._broker)
        self.workers.append(self._stack.enter_context(worker))
        return worker

    def printed(self, pattern: str) -> list[str]:
        return [found for each in self.workers for found in re.findall(pattern, each.output)]

    def logged(self, pattern: str) -> bool:
        return any(re.search(pattern, each.errors) for each in self.workers)

    def wait_for_all(self, pattern: str, numbers: range) -> None:
        """Return once each of the numbers was printed by one of them."""
        wanted = {str(number) for number in numbers}
        until_sync(
            lambda: wanted <= set(self.printed(pattern)), within=LONG, what=f"{pattern} of all"
        )

    def replace_the_dead_until(self, is_over: Callable[[], bool]) -> int:
        """Keep one worker alive until it is over; return how many have died."""
        self.start()
        deaths = 0

        def look() -> bool:
            nonlocal deaths
            if self.workers[-1].has_ended:
                deaths += 1
                self.start()
            return is_over()

        until_sync(look, within=LONG, what="the end of it")
        return deaths


CrewOf: TypeAlias = Callable[[str], Crew]


@pytest.fixture
def crew_of(tmp_path: Path, broker: str, home: Path) -> Iterator[CrewOf]:
    with ExitStack() as stack:
        yield lambda source: Crew(tmp_path, broker, source, stack)


async def enqueue(broker: str, subject: str, *payloads: Any, **options: Any) -> list[str]:
    """Store jobs by an app that runs none; return their ids."""
    app = App("producer", broker=broker)

    @app.job(subject)
    async def work(payload: Any) -> None: ...

    async with app:
        return [(await work.enqueue(payload, **options)).id for payload in payloads]


POISON = """
    @app.job("{subject}", retries=2, concurrency=1)
    def work(text: str) -> None:
        print("start", text, flush=True)
        if text == "poison":
            {death}
    """


@pytest.mark.parametrize(
    "death",
    [
        pytest.param("os._exit(137)", id="exit"),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", id="SIGKILL"),
        pytest.param("ctypes.string_at(0)", id="segmentation fault"),
    ],
)
async def test_a_job_that_kills_its_worker(
    broker: str, subject: str, onlooker: Onlooker, crew_of: CrewOf, death: str
) -> None:
    """poison-01, dlq-03, dlqgrow-03: after retries + 1 deaths it is buried, and nobody stands."""
    crew = crew_of(POISON.format(subject=subject, death=death))
    neighbours = [f"neighbour {number}" for number in range(10)]
    (poison, *_) = await enqueue(broker, subject, "poison", *neighbours)

    deaths = crew.replace_the_dead_until(lambda: crew.logged("job.dlq"))
    crew.wait_for_all(r"start neighbour (\d+)", range(10))

    (letter,) = await onlooker.wait_for_dead_letters(subject)
    await onlooker.wait_until_empty(subject)
    consumer = await onlooker.client.jsm().consumer_info(stream_of(subject), "workers")
    assert 3 == deaths == len(crew.printed("start poison"))
    assert ("crashed", 3, "poison") == (letter["reason"], letter["attempts"], letter["payload"])
    # Only the last start is sure to be noted before the handler can kill its worker.
    crashes = {crash["number"]: crash["worker"].partition(":")[2] for crash in letter["crashes"]}
    pids = {number: str(crew.workers[number - 1].pid) for number in (1, 2, 3)}
    assert 3 in crashes
    assert crashes.items() <= pids.items()
    assert "it was handed out 3 times and never ended: its worker died in " in letter["error"]
    assert (0, 0) == (consumer.num_pending, consumer.num_ack_pending)
    record = await onlooker.record(poison)
    assert record is not None
    assert ("failed", 3) == (record["state"], record["attempt"])
    assert "never ended" in record["error"]


async def test_the_last_attempt_kills_its_worker(
    broker: str, subject: str, onlooker: Onlooker, crew_of: CrewOf
) -> None:
    """retry-13: a crash in the last attempt ends in the dead letters too, with the event."""
    crew = crew_of(
        f"""
    @app.job("{subject}", retries=1, backoff=0)
    def work(text: str, ctx: JobContext) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("no luck")
        os._exit(137)
    """
    )
    await enqueue(broker, subject, "x")
    assert 1 == crew.replace_the_dead_until(lambda: crew.logged("job.dlq"))
    (letter,) = await onlooker.wait_for_dead_letters(subject)
    assert ("crashed", 2) == (letter["reason"], letter["attempts"])
    assert [2] == [crash["number"] for crash in letter["crashes"]]


async def take_without_an_answer(onlooker: Onlooker, subject: str) -> None:
    """Take the next message as a worker does that is cut off before it can begin."""
    call = f"$JS.API.CONSUMER.MSG.NEXT.{stream_of(subject)}.workers"
    inbox = onlooker.client.new_inbox()
    taken = await onlooker.client.subscribe(inbox)
    await onlooker.client.publish(call, b'{"batch":1,"expires":9000000000}', reply=inbox)
    assert b'"x"' == (await taken.next_msg(timeout=10)).data
    await taken.unsubscribe()


@pytest.mark.parametrize("retries", [0, 1])
async def test_hand_overs_that_never_began(
    broker: str, subject: str, onlooker: Onlooker, retries: int
) -> None:
    """poison-01: a tracked job is not buried before its last run has begun."""
    app, runs = App("cases", broker=broker), []

    @app.job(subject, retries=retries)
    async def work(text: str) -> None:
        runs.append(text)

    await enqueue(broker, subject, "x")
    for _ in range(retries + 1):
        await take_without_an_answer(onlooker, subject)
    async with serving(app) as served:
        await served.wait_for(JobDone)

    assert ["x"] == runs
    assert [] == await onlooker.letters(subject)


async def test_hand_overs_of_an_untracked_job(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """poison-01: without a record only the hand-overs can be counted, and the letter says so."""
    app = App("cases", broker=broker)

    @app.job(subject, retries=0, track=False)
    async def work(text: str) -> None: ...

    await enqueue(broker, subject, "x")
    await take_without_an_answer(onlooker, subject)
    async with serving(app) as served:
        await served.wait_for(JobDeadLettered)
    (letter,) = await onlooker.dead_letters(subject)
    assert (
        "it was handed out once and never ended: its worker died, or the connection did."
        == letter["error"]
    )


async def test_a_cpu_task_that_faults(
    broker: str, subject: str, onlooker: Onlooker, crew_of: CrewOf
) -> None:
    """poison-02: a segmentation fault ends its call alone; retries, then the dead letter."""
    crew = crew_of(
        f"""
    @app.cpu_task()
    def fault() -> None:
        ctypes.string_at(0)
    @app.job("{subject}", retries=2, backoff=0.3)
    async def work(text: str) -> None:
        print("start", os.getpid(), flush=True)
        await fault.run()
    """
    )
    await enqueue(broker, subject, "x")
    assert 0 == crew.replace_the_dead_until(lambda: crew.logged("job.dlq"))
    (letter,) = await onlooker.wait_for_dead_letters(subject)
    assert ("retries", 3, "mega.errors.CpuCrashed") == (
        letter["reason"],
        letter["attempts"],
        letter["error_type"],
    )
    assert "SIGSEGV" in letter["error"]
    assert [str(crew.workers[0].pid)] * 3 == crew.printed(r"start (\d+)")


async def test_a_cpu_task_whose_process_is_killed(
    broker: str, subject: str, onlooker: Onlooker, crew_of: CrewOf
) -> None:
    """lost-02: the death of a pool's process is a failed attempt, never an end in silence."""
    crew = crew_of(
        f"""
    @app.cpu_task()
    def render(attempt: int) -> str:
        if attempt == 1:
            os.kill(os.getpid(), 9)
        return f"rendered {{attempt}}"
    @app.job("{subject}", backoff=0)
    async def work(text: str, ctx: JobContext) -> None:
        print(await render.run(ctx.attempt), flush=True)
    """
    )
    (job_id,) = await enqueue(broker, subject, "x")
    crew.start().wait_for("rendered 2")
    await onlooker.wait_until_empty(subject)
    record = await until_answer(
        lambda: onlooker.record(job_id),
        lambda found: found and found["state"] == "done",
        what="end",
    )
    assert record is not None
    assert 2 == record["attempt"]


MARKED = """
    @app.job("{subject}", concurrency={concurrency}, retries=9)
    async def work(number: int) -> None:
        print("start", number, flush=True)
        await anyio.sleep({seconds})
        print("end", number, flush=True)
    """


async def test_workers_that_are_killed_at_any_time(
    broker: str, subject: str, onlooker: Onlooker, crew_of: CrewOf
) -> None:
    """lost-01: a job whose worker is killed runs again, and to its end."""
    crew = crew_of(MARKED.format(subject=subject, concurrency=4, seconds=0.5))
    await enqueue(broker, subject, *range(12))
    for pause in [Random(number).uniform(0.05, 0.9) for number in range(4)]:
        worker = crew.start()
        worker.wait_for("start|ready in")
        until_sync(after(pause), what="a while")
        worker.signal(signal.SIGKILL)
        worker.wait()
    crew.start()
    crew.wait_for_all(r"end (\d+)", range(12))
    await onlooker.wait_until_empty(subject)
    assert [] == await onlooker.letters(subject)


def after(seconds: float) -> Callable[[], bool]:
    """Return what becomes true in that many seconds: the time of the blow, not a wait for it."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


async def test_a_worker_that_is_killed_with_jobs_behind(
    broker: str, subject: str, onlooker: Onlooker, crew_of: CrewOf
) -> None:
    """lost-03: what waits behind a killed worker's jobs was not acknowledged on receipt."""
    crew = crew_of(MARKED.format(subject=subject, concurrency=2, seconds=0.05))
    await enqueue(broker, subject, *range(50))
    first = crew.start()
    first.wait_for("end 5")
    first.signal(signal.SIGKILL)
    first.wait()
    crew.start()
    crew.wait_for_all(r"end (\d+)", range(50))
    await onlooker.wait_until_empty(subject)


async def test_a_worker_that_is_told_to_stop(
    broker: str, subject: str, onlooker: Onlooker, crew_of: CrewOf
) -> None:
    """lost-04: at SIGTERM what runs ends, and the rest is the next worker's, as its first run."""
    crew = crew_of(MARKED.format(subject=subject, concurrency=4, seconds=1.5))
    await enqueue(broker, subject, *range(12))
    first = crew.start()
    until_sync(lambda: len(crew.printed(r"start (\d+)")) == 4, what="four runs", within=LONG)
    os.killpg(first.pid, signal.SIGTERM)
    assert 0 == first.wait()
    running = crew.printed(r"start (\d+)")
    assert sorted(running) == sorted(crew.printed(r"end (\d+)"))

    crew.start()
    crew.wait_for_all(r"end (\d+)", range(12))
    assert sorted(map(str, range(12))) == sorted(crew.printed(r"start (\d+)"))
    await onlooker.wait_until_empty(subject)


@pytest.mark.parametrize(("grace", "starts"), [("20", 1), ("0.3", 2)])
async def test_the_time_that_a_worker_has_to_stop(
    broker: str, subject: str, onlooker: Onlooker, crew_of: CrewOf, grace: str, starts: int
) -> None:
    """lost-05: a run may end within the drain's time; after it the job is given back."""
    crew = crew_of(MARKED.format(subject=subject, concurrency=1, seconds=2))
    await enqueue(broker, subject, 0)
    first = crew.start("--drain-timeout", grace)
    first.wait_for("start 0")
    first.signal(signal.SIGTERM)
    assert 0 == first.wait()
    if starts == 2:
        assert [] == crew.printed("end 0")
        crew.start()
    crew.wait_for_all(r"end (\d+)", range(1))
    await onlooker.wait_until_empty(subject)
    assert starts == len(crew.printed("start 0"))


async def test_ctrl_c_while_a_job_runs(
    broker: str, subject: str, onlooker: Onlooker, crew_of: CrewOf
) -> None:
    """cancel-01: Ctrl-C ends a worker without a traceback, and the job goes back."""
    crew = crew_of(MARKED.format(subject=subject, concurrency=1, seconds=3))
    await enqueue(broker, subject, 0)
    first = crew.start("--drain-timeout", "0")
    first.wait_for("start 0")
    first.interrupt_group()
    assert 0 == first.wait()
    assert "Traceback" not in first.errors
    crew.start().wait_for("end 0")
    await onlooker.wait_until_empty(subject)
    assert [] == await onlooker.letters(subject)


async def test_a_worker_that_is_frozen_for_longer_than_its_lease(
    broker: str, subject: str, onlooker: Onlooker, crew_of: CrewOf, tmp_path: Path
) -> None:
    """nak-04: another worker runs the job meanwhile; the late finisher says so."""
    crew = crew_of(
        f"""
    @app.job("{subject}")
    async def work(number: int, ctx: JobContext) -> None:
        print("start", ctx.attempt, flush=True)
        while not Path("go").exists() and ctx.attempt == 1:
            await anyio.sleep(0.02)
    @app.on("job.done")
    async def note(event) -> None:
        print("done", event.attempt, event.lapsed, flush=True)
    """
    )
    (job_id,) = await enqueue(broker, subject, 0)
    frozen = crew.start()
    frozen.wait_for("start 1")
    frozen.signal(signal.SIGSTOP)
    crew.start().wait_for(r"done \d False")
    (tmp_path / "go").touch()
    frozen.signal(signal.SIGCONT)
    frozen.wait_for("done 1 True")
    assert f"{subject} {job_id}: its lease lapsed while it ran" in frozen.errors
    await onlooker.wait_until_empty(subject)
