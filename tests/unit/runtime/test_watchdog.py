"""An event loop that does not turn is noticed, and who holds it is named."""

from __future__ import annotations

import logging
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from mega import App, JobContext
from mega.context import ScheduleContext
from mega.runtime.long_runs import LongRuns
from mega.runtime.watchdog import Watchdog
from mega.testing import job_context
from tests.waiting import until

LIMIT = 0.2
ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def watched() -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        group.start_soon(Watchdog(LongRuns({}, now=time.monotonic), limit=LIMIT).run)
        await anyio.sleep(LIMIT / 2)  # its thread has looked once or more
        yield
        group.cancel_scope.cancel()


def block_until(predicate: Callable[[], object]) -> None:
    """Hold the loop, as a handler does that never awaits."""
    deadline = time.monotonic() + 20
    while not predicate() and time.monotonic() < deadline:
        time.sleep(0.01)


def stuck(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in lines(caplog) if "has not turned for" in line]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in list(caplog.records)]


async def turned_again(caplog: pytest.LogCaptureFixture) -> str:
    found: list[str] = []

    def look() -> bool:
        found[:] = [line for line in lines(caplog) if "turns again" in line]
        return bool(found)

    await until(look, what="the loop turns again")
    return found[0]


async def test_a_loop_that_turns_is_not_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    async with watched():
        await anyio.sleep(3 * LIMIT)
        await to_thread.run_sync(time.sleep, 3 * LIMIT)
    assert [] == stuck(caplog)


async def test_a_loop_that_does_not_turn_is_told_of_at_doubling_times_and_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with watched():
        block_until(lambda: len(stuck(caplog)) == 3)
        last = await turned_again(caplog)

    told = [float(re.findall(r"for ([\d.]+) s", line)[0]) for line in stuck(caplog)]
    assert 3 == len(told)
    assert all(seconds >= LIMIT * 2**n for n, seconds in enumerate(told))
    match = re.fullmatch(r"the event loop turns again after ([\d.]+) s", last)
    assert match is not None
    assert float(match[1]) >= told[-1]


async def test_the_second_time_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    async with watched():
        for _ in range(2):
            caplog.clear()
            block_until(lambda: len(stuck(caplog)) == 1)
            await turned_again(caplog)
            assert 1 == len(stuck(caplog))


async def test_the_job_and_its_line_are_named(caplog: pytest.LogCaptureFixture) -> None:
    app = App("shop")

    def fetch() -> None:
        block_until(lambda: stuck(caplog))  # the guilty line

    @app.middleware
    async def outer(ctx: JobContext, call_next: Any) -> Any:
        return await call_next()

    @app.job("crawl")
    async def crawl(ctx: JobContext) -> None:
        fetch()

    async with app.test() as t, watched():
        job = await crawl.enqueue()
        await t.drain()

    (line,) = stuck(caplog)
    assert f"crawl {job.id} attempt 1 holds it, and all else waits\n" in line
    assert "block_until(lambda: stuck(caplog))  # the guilty line" in line
    files = re.findall(r'File ".*/(\w+)\.py", line \d+, in (\w+)', line)
    assert ("test_watchdog", "crawl") in files
    assert ("test_watchdog", "fetch") == files[files.index(("test_watchdog", "crawl")) + 1]
    assert {"test_watchdog"} == {file for file, _ in files}
    assert "write def instead of async def" in line


async def test_the_schedule_is_named(caplog: pytest.LogCaptureFixture) -> None:
    app = App("shop")

    @app.schedule(every=60)
    async def nightly(ctx: ScheduleContext) -> None:
        block_until(lambda: stuck(caplog))

    async with app.test() as t, watched():
        await t.advance(60)

    (line,) = stuck(caplog)
    assert "schedule nightly holds it" in line


async def test_what_is_no_job_is_shown_by_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    async with watched():
        block_until(lambda: stuck(caplog))

    (line,) = stuck(caplog)
    assert "what holds it is no job" in line
    assert "in block_until\n" in line


async def test_runs_that_go_on_for_long_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    long_runs = LongRuns({job_context(): 0.0}, now=lambda: 90.0)
    async with anyio.create_task_group() as group:
        group.start_soon(Watchdog(long_runs, limit=LIMIT).run)
        await until(lambda: lines(caplog), what="a line")
        group.cancel_scope.cancel()
    assert ["test test attempt 1 has been running for 90 s"] == lines(caplog)


async def test_a_fault_of_its_own_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(LongRuns):
        def look(self) -> None:
            raise ZeroDivisionError

    async with anyio.create_task_group() as group:
        group.start_soon(Watchdog(Broken({}, now=time.monotonic), limit=LIMIT).run)
        await until(lambda: len(caplog.records) > 1, what="two looks")
        group.cancel_scope.cancel()
    assert {"the watchdog of the event loop went wrong and goes on"} == set(lines(caplog))


STOPPED = """
import anyio, logging, time
from mega.runtime.long_runs import LongRuns
from mega.runtime.watchdog import Watchdog
logging.basicConfig(format="%(message)s")
async def main():
    async with anyio.create_task_group() as group:
        group.start_soon(Watchdog(LongRuns({}, now=time.monotonic), limit=0.5).run)
        await anyio.sleep(0.3)
        print("ready", flush=True)
        await anyio.to_thread.run_sync(input)
        await anyio.sleep(0.5)
        group.cancel_scope.cancel()
anyio.run(main)
"""


def test_a_process_that_was_stopped_blames_nobody() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert "ready\n" == process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        time.sleep(2)  # it is this long that is told of
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate("\n", timeout=20)
    assert re.fullmatch(r"this process stood still for [\d.]+ s: suspended, or stopped\n", errors)
    assert 0 == process.returncode


async def test_code_that_keeps_the_interpreter_to_itself_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A regular expression holds the GIL: the thread gets its turn when it is over."""
    async with watched():
        began = time.monotonic()
        while not stuck(caplog) and time.monotonic() - began < 20:
            re.match(r"(a+)+$", "a" * 23 + "b")
    assert "re.match(" in stuck(caplog)[0]
    assert logging.WARNING == caplog.records[0].levelno
