"""Jobs whose worker died: they come back soon, cost an attempt, and nobody says that they run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from mega import App, Job
from tests.apps.program import Program, run_to_end, write_app
from tests.cases.onlooker import Onlooker
from tests.unit.adapters.nats.asking import until_answer

#: How each run ends, by attempt, stands in PLAN: `k` kills the worker, `f` raises, `d` is done,
#: `h` hangs.
WORKER = """
    import anyio, os, signal
    from mega import App, JobContext
    app = App("stuck")
    @app.job("{subject}", retries=2, backoff=0, timeout=3600)
    async def work(ctx: JobContext) -> None:
        print("begun attempt", ctx.attempt, flush=True)
        match os.environ["PLAN"][ctx.attempt - 1]:
            case "k":
                os.kill(os.getpid(), signal.SIGKILL)
            case "f":
                raise ConnectionError("no luck")
            case "h":
                await anyio.sleep_forever()
        print("done", flush=True)
    if __name__ == "__main__":
        app.run()
"""


def run_plan(file: Path, plan: str, *, home: Path, broker: str) -> list[int]:
    """Start a worker again whenever it was killed; return the attempts, once the plan is done."""
    attempts: list[int] = []
    environment = {"PLAN": plan, "MEGA_BROKER": broker}
    while len(attempts) < len(plan):
        with Program(file, home=home, **environment) as worker:
            worker.wait_for(f"begun attempt {len(attempts) + 1}")
            if "k" not in plan[len(attempts) :]:
                worker.wait_for(f"begun attempt {len(plan)}")
                worker.wait_for("done" if plan.endswith("d") else "job.dlq")
                worker.signal(signal.SIGTERM)
            worker.wait()
        attempts += [int(line.split()[-1]) for line in begun(worker)]
    return attempts


def begun(worker: Program) -> list[str]:
    return [line for line in worker.output.splitlines() if line.startswith("begun")]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [("kd", None), ("kkd", None), ("kfd", None), ("fkd", None), ("kff", "retries")],
)
async def test_a_crash_costs_one_attempt(
    tmp_path: Path,
    home: Path,
    broker: str,
    subject: str,
    onlooker: Onlooker,
    plan: str,
    reason: str | None,
) -> None:
    """sched-05: a run whose worker died is one attempt, and the usual retries follow it.

    With two retries there are three runs, and no dead letter before the third has failed.
    """
    file = write_app(tmp_path, WORKER.format(subject=subject))
    producer = run_to_end(file, "enqueue", subject, home=home, MEGA_BROKER=broker)
    assert 0 == producer.code, producer.errors

    attempts = run_plan(file, plan, home=home, broker=broker)

    letters = await onlooker.dead_letters(subject)
    assert list(range(1, len(plan) + 1)) == attempts
    assert ([reason] if reason else []) == [letter["reason"] for letter in letters]
    await onlooker.wait_until_empty(subject)


async def test_a_job_that_kills_its_worker_each_time(
    tmp_path: Path, home: Path, broker: str, subject: str, onlooker: Onlooker
) -> None:
    """sched-05: after three runs that killed their workers the fourth worker buries the job."""
    file = write_app(tmp_path, WORKER.format(subject=subject))
    assert 0 == run_to_end(file, "enqueue", subject, home=home, MEGA_BROKER=broker).code

    assert [1, 2, 3] == run_plan(file, "kkk", home=home, broker=broker)
    assert [] == await onlooker.dead_letters(subject)
    with Program(file, home=home, PLAN="kkk", MEGA_BROKER=broker) as worker:
        worker.wait_for("job.dlq")
        worker.signal(signal.SIGTERM)
        assert 0 == worker.wait()

    (letter,) = await onlooker.dead_letters(subject)
    assert "crashed" == letter["reason"]
    assert [] == begun(worker)


def test_a_worker_that_is_restarted_at_once(
    tmp_path: Path, home: Path, broker: str, subject: str
) -> None:
    """stuck-03: a job with a limit of an hour is back within the lease, not after the hour."""
    file = write_app(tmp_path, WORKER.format(subject=subject))
    environment = {"PLAN": "hd", "MEGA_BROKER": broker}
    assert 0 == run_to_end(file, "enqueue", subject, home=home, MEGA_BROKER=broker).code
    with Program(file, home=home, **environment) as first:
        first.wait_for("begun attempt 1")
        first.signal(signal.SIGKILL)
        first.wait()
    with Program(file, home=home, **environment) as second:
        second.wait_for("ready in")
        second.wait_for("begun attempt 2", within=1 + 5)
        second.wait_for("done")


async def test_a_job_whose_worker_is_gone(
    tmp_path: Path, home: Path, broker: str, subject: str
) -> None:
    """stuck-01: once the lease of a killed worker has run out, no job of it is said to run."""
    app = App("asking", broker=broker)
    file = write_app(tmp_path, WORKER.format(subject=subject))
    states: list[str] = []

    @app.job(subject)
    async def work() -> None: ...

    async def ask(job: Job[None]) -> bool:
        states.append((await job.state()).state)
        return states[-1] != "running"

    async with app:
        job = await work.enqueue()
        with Program(file, home=home, PLAN="hd", MEGA_BROKER=broker) as worker:
            worker.wait_for("begun attempt 1")
            assert not await ask(job)
            worker.signal(signal.SIGKILL)
            worker.wait()
        await until_answer(lambda: ask(job), bool, what="another state than running")
        with Program(file, home=home, PLAN="hd", MEGA_BROKER=broker) as worker:
            worker.wait_for("begun attempt 2")
            assert "done" == (await job.wait(timeout=20)).state

    assert "waiting" == states[-1]
