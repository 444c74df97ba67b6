"""One process of the measurement `cpu`: `python -m benchmarks.calls CONTENDER CALLS LOOP`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from multiprocessing import get_context
from statistics import median, quantiles
from typing import Any, TypeAlias

from benchmarks.child import loop_factory
from benchmarks.contenders import ENQUEUERS, EXECUTOR
from mega import App

__all__ = ["main"]

Call: TypeAlias = Callable[..., Awaitable[Any]]
Open: TypeAlias = Callable[[], AbstractAsyncContextManager[Call]]

WORKERS = 2
WARM_SECONDS = 0.5
LAG_SECONDS = 3.0
LAG_STEP = 0.005
MICRO = 1e6

app = App("bench", broker="memory:")
app.pool("default", size=WORKERS)


def add(first: int, second: int) -> int:
    return first + second


def burn(seconds: float) -> None:
    """Keep one CPU busy."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


TASKS = {task.fn: task for task in (app.cpu_task()(add), app.cpu_task()(burn))}


@asynccontextmanager
async def pool_of_mega() -> AsyncIterator[Call]:
    """Yield what calls a function in a pool of mega."""

    async def call(function: Callable[..., Any], *args: Any) -> Any:
        return await TASKS[function].run(*args)

    async with app:
        yield call


@asynccontextmanager
async def pool_of_executor() -> AsyncIterator[Call]:
    """Yield what calls a function in a ProcessPoolExecutor that spawns."""
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as executor:

        async def call(function: Callable[..., Any], *args: Any) -> Any:
            return await loop.run_in_executor(executor, function, *args)

        yield call


def main(contender: str, calls: int, loop: str) -> None:
    """Print what was measured as the last line."""
    opened: Open = pool_of_executor if contender == EXECUTOR else pool_of_mega
    with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
        print(json.dumps(runner.run(measure(opened, calls))))


async def measure(opened: Open, calls: int) -> dict[str, float]:
    """Call one by one and from 64 tasks, then look at the loop while all workers are busy."""
    async with opened() as call:
        await busy(call, WARM_SECONDS)
        one_by_one = await pace(call, calls, 1)
        at_once = await pace(call, calls, ENQUEUERS)
        lags = await lags_while(busy(call, LAG_SECONDS))
    return {
        **{f"one by one{unit}": value for unit, value in one_by_one.items()},
        **{f"64 at once{unit}": value for unit, value in at_once.items()},
        "lag p50": median(lags),
        "lag p99": quantiles(lags, n=100)[98],
    }


async def busy(call: Call, seconds: float) -> None:
    """Burn in each worker at the same time, so that each has been started."""
    await asyncio.gather(*[call(burn, seconds) for _ in range(WORKERS)])


async def pace(call: Call, calls: int, callers: int) -> dict[str, float]:
    """Return the calls a second of that many callers, and the CPU µs of this process for each."""
    todo = iter(range(calls))

    async def keep_calling() -> None:
        for number in todo:
            await call(add, number, 1)

    begun, cpu = time.monotonic(), time.process_time()
    await asyncio.gather(*[keep_calling() for _ in range(callers)])
    seconds, used = time.monotonic() - begun, time.process_time() - cpu
    return {"/s": calls / seconds, " cpu": used / calls * MICRO}


async def lags_while(work: Awaitable[None]) -> list[float]:
    """Return by how many ms the loop was late with each of its timers while the work ran."""
    running, lags = asyncio.ensure_future(work), []
    while not running.done():
        due = time.monotonic() + LAG_STEP
        await asyncio.sleep(LAG_STEP)
        lags.append((time.monotonic() - due) * 1000)
    await running
    return lags


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
