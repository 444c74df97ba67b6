"""The app of the chaos run: jobs of every kind, each of whose runs leaves its marks in a file.

It runs as a worker, and is imported as the producer. Two variables name the file and the
process: CHAOS_HISTORY and CHAOS_WORKER.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import anyio

from mega import App, Backoff, JobContext

__all__ = ["Order", "Planned", "app"]

app = App("chaos", broker="memory:")

SOON = Backoff(initial=0.3, max=2)
HALF_DAY = 12 * 3600


@dataclass
class Order:
    """What a job is to do: how many seconds it takes, and how many of its attempts fail.

    `key` is the one under which it was enqueued as the only one of its kind.
    """

    seconds: float = 0.0
    failures: int = 0
    key: str = ""


class Planned(Exception):
    """An error that was ordered."""


@cache
def history() -> int:
    """Return the descriptor of the file, to which each write appends as a whole."""
    return os.open(os.environ["CHAOS_HISTORY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(what: str, job_id: str, attempt: int, key: str = "") -> None:
    """Write one line; it is out of this process when this returns."""
    fields = (time.monotonic(), os.environ["CHAOS_WORKER"], what, job_id, attempt, key)
    os.write(history(), (" ".join(map(str, fields)) + "\n").encode())


@contextmanager
def noted(order: Order, ctx: JobContext) -> Iterator[None]:
    """Note the start and the end of a run, and fail it as ordered."""
    note("start", ctx.id, ctx.attempt, order.key)
    try:
        yield
        if ctx.attempt <= order.failures:
            raise Planned(f"attempt {ctx.attempt} of {order.failures} that fail")
    except Exception:
        note("error", ctx.id, ctx.attempt)
        raise
    except BaseException:
        note("cancelled", ctx.id, ctx.attempt)
        raise
    note("done", ctx.id, ctx.attempt)


async def perform(order: Order, ctx: JobContext) -> None:
    """Run as ordered, on the event loop. Many jobs differ in their options alone."""
    with noted(order, ctx):
        await anyio.sleep(order.seconds)


app.job("chaos.short", retries=8, backoff=SOON, concurrency=12, result_ttl=HALF_DAY)(perform)
app.job("chaos.untracked", retries=8, backoff=SOON, concurrency=12, track=False)(perform)
app.job("chaos.long", retries=8, concurrency=12, result_ttl=HALF_DAY)(perform)
app.job("chaos.shared", retries=8, concurrency=5, per_worker=2, result_ttl=HALF_DAY)(perform)
app.job("chaos.failing", retries=2, backoff=SOON, concurrency=8, result_ttl=HALF_DAY)(perform)
app.job("chaos.flaky", retries=6, backoff=SOON, concurrency=8, result_ttl=HALF_DAY)(perform)
app.job("chaos.once", retries=0, concurrency=8, result_ttl=HALF_DAY)(perform)
app.job("chaos.unique", retries=6, backoff=SOON, concurrency=8, result_ttl=HALF_DAY)(perform)
child = app.job("chaos.child", retries=8, backoff=SOON, concurrency=8, track=False)(perform)


@app.job("chaos.thread", retries=8, concurrency=6, result_ttl=HALF_DAY)
def thread(order: Order, ctx: JobContext) -> None:
    with noted(order, ctx):
        time.sleep(order.seconds)


@app.job("chaos.blocking", retries=8, concurrency=2, result_ttl=HALF_DAY)
async def blocking(order: Order, ctx: JobContext) -> None:
    with noted(order, ctx):
        time.sleep(order.seconds)  # noqa: ASYNC251 - a handler that blocks the loop is the point


@app.job("chaos.poison", retries=1, concurrency=2, result_ttl=HALF_DAY)
async def poison(order: Order, ctx: JobContext) -> None:
    with noted(order, ctx):
        await anyio.sleep(order.seconds)
        os.kill(os.getpid(), signal.SIGKILL)
        await anyio.sleep_forever()


@app.job("chaos.parent", retries=8, backoff=SOON, concurrency=8, result_ttl=HALF_DAY)
async def parent(order: Order, ctx: JobContext) -> None:
    with noted(order, ctx):
        job = await app.enqueue(child, order, id=f"{ctx.id}.child")
        note("stored", job.id, ctx.attempt)
        await anyio.sleep(order.seconds)


if __name__ == "__main__":
    app.run()
