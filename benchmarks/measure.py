"""The measurements. Each trial has a fresh server, a fresh worker and a fresh producer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any, TypeAlias

from benchmarks.order import BATCH, How, Order
from benchmarks.processes import Worker, run_calls, run_producer
from benchmarks.record import Record
from benchmarks.schedules import measure_schedules
from tests.nats_server import NatsServer

__all__ = ["MEASUREMENTS", "Settings", "Values"]

Values: TypeAlias = dict[str, float]

PATIENCE = 60.0
STEP = 0.01
LOOKS_PER_JOB = 2_000_000
ONE_BY_ONE_SHARE = 5
PACED_JOBS = 250
# A recovery is measured and not a drain, so the jobs that are left over must be few and short.
KILL_PAUSE, KILL_SHARE = 0.02, 5
EARLY = 100_000
MICRO = 1e6


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one run measures with. `ack_wait` (seconds) holds for every contender."""

    jobs: int = 10_000
    memory_jobs: int = 1_000_000
    ack_wait: float = 5.0
    loop: str = "asyncio"
    calls: int = 3_000


class Trial:
    """A server with a record of `jobs` jobs, and the processes of one contender."""

    def __init__(self, server: NatsServer, order: Order) -> None:
        self.order = order
        self.record: Record = order.open_record()
        self._log = server.home / "worker.log"

    def produce(self, how: How, *, pause: float = 0.0) -> dict[str, Any]:
        """Enqueue all the jobs in a process of its own; return what it measured."""
        return run_producer(replace(self.order, how=how, pause=pause))

    def worker(self) -> Worker:
        """Start a worker."""
        return Worker(self.order, self._log)

    def wait(self, worker: Worker, jobs: int, *, patience: float = PATIENCE) -> None:
        """Return when so many jobs are done, or none was for `patience` seconds."""
        step = max(STEP, self.order.jobs / LOOKS_PER_JOB)
        seen, last = -1, time.monotonic()
        while (done := self.record.done()) < jobs and time.monotonic() - last < patience:
            worker.check()
            if done > seen:
                seen, last = done, time.monotonic()
            time.sleep(step)


@contextmanager
def trial(contender: str, settings: Settings, jobs: int) -> Iterator[Trial]:
    """Start a server of its own for one trial."""
    with NatsServer() as server:
        order = Order(
            contender=contender,
            server=server.url().servers[0],
            record=str(server.home / "record"),
            jobs=jobs,
            ack_wait=settings.ack_wait,
            loop=settings.loop,
        )
        yield Trial(server, order)


def drain(contender: str, settings: Settings) -> Values:
    """Queue all the jobs, then let one worker run them."""
    with trial(contender, settings, settings.jobs) as run:
        run.produce("in bulk")
        with run.worker() as worker:
            run.wait(worker, settings.jobs)
            cpu, memory = worker.cpu() - run.record.cpu_before, worker.memory()
        done = run.record.done()
        return {
            "jobs/s": done / run.record.span(),
            "cpu": cpu / done * MICRO,
            "MB": memory,
            "lost": settings.jobs - done,
        }


def enqueue(contender: str, settings: Settings) -> Values:
    """Enqueue one by one, from 64 tasks, and in bulk where the contender has a way for that."""
    values: Values = {}
    ways: tuple[tuple[How, int], ...] = (
        ("one by one", settings.jobs // ONE_BY_ONE_SHARE),
        ("64 at once", settings.jobs),
        ("in bulk", settings.jobs),
    )
    for how, jobs in ways:
        with trial(contender, settings, jobs + 1) as run:
            answer = run.produce(how)
        if how != "in bulk" or answer["has_bulk"]:
            values[f"{how}/s"] = jobs / answer["seconds"]
            values[f"{how} cpu"] = answer["cpu"] / jobs * MICRO
    return values


def latency(contender: str, settings: Settings) -> Values:
    """Enqueue 50 jobs a second for an idle worker; from the call to the job's start."""
    jobs = min(PACED_JOBS, settings.jobs)
    with trial(contender, settings, jobs + 1) as run, run.worker() as worker:
        sent = run.produce("paced")["notes"]
        run.wait(worker, jobs + 1)
        started = run.record.start_times()[1:]
    waits = [(start - then) * 1000 for start, then in zip(started, sent, strict=True) if start]
    return {"p50": median(waits), "p99": quantiles(waits, n=100)[98], "lost": jobs - len(waits)}


def kill(contender: str, settings: Settings) -> Values:
    """Kill the worker with SIGKILL when half the jobs are done, and start another at once."""
    jobs = settings.jobs // KILL_SHARE
    with trial(contender, settings, jobs) as run:
        run.produce("in bulk", pause=KILL_PAUSE)
        with run.worker() as worker:
            run.wait(worker, jobs // 2)
        cut = run.record.started() - run.record.done()
        restarted = time.monotonic()
        with run.worker() as worker:
            run.wait(worker, jobs, patience=settings.ack_wait + PATIENCE)
        recovered = max(run.record.end_times()) - restarted
        return {
            "lost": jobs - run.record.done(),
            "recovered": recovered,
            "over ack_wait": recovered - settings.ack_wait,
            "repeated": run.record.repeated(),
            "cut": cut,
        }


def memory(contender: str, settings: Settings) -> Values:
    """Let one worker run a million jobs while one producer enqueues them."""
    jobs = settings.memory_jobs
    early = min(EARLY, jobs // 2)
    with trial(contender, settings, jobs) as run, ThreadPoolExecutor(1) as beside:
        answer = beside.submit(run.produce, "in bulk")
        with run.worker() as worker:
            run.wait(worker, early)
            worker_early = worker.memory()
            run.wait(worker, jobs)
            worker_late = worker.memory()
        held = answer.result()["notes"]
    producer_early = held[max(0, early // BATCH - 1)]
    return {
        "worker": worker_late,
        "worker growth": worker_late - worker_early,
        "producer": held[-1],
        "producer growth": held[-1] - producer_early,
        "lost": jobs - run.record.done(),
    }


def schedules(contender: str, settings: Settings) -> Values:
    """Compute ticks, start 1,000 of 10,000 schedules at one instant, and wait for it."""
    return measure_schedules()


def cpu(contender: str, settings: Settings) -> Values:
    """Call a CPU task that does nothing in a pool of two processes; then keep both busy."""
    return run_calls(contender, settings.calls, settings.loop)


MEASUREMENTS: dict[str, Callable[[str, Settings], Values]] = {
    measure.__name__: measure for measure in (drain, enqueue, latency, kill, memory, schedules, cpu)
}
