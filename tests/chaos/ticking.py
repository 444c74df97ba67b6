"""The app of the schedulers' chaos run: one schedule per second, whose runs leave their marks.

CHAOS_HISTORY names the file, CHAOS_WORKER the process, CHAOS_SKEW by how many seconds its
clock is wrong. The broker's URL is the argument.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime, timedelta

import anyio

from mega import App, ScheduleContext
from mega.runtime.clock import SystemClock
from mega.runtime.supervisor import Supervisor

__all__ = ["app"]

LASTS = 0.02

app = App("ticking", broker="memory:")


class SkewedClock(SystemClock):
    """This machine's time, and how wrong it is in this process."""

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=float(os.environ["CHAOS_SKEW"]))


def note(what: str, tick: int) -> None:
    """Write one line, which is out of this process when this returns."""
    history = os.open(os.environ["CHAOS_HISTORY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(history, f"{what} {tick} {os.environ['CHAOS_WORKER']}\n".encode())
    os.close(history)


@app.schedule(every=1)
async def secondly(ctx: ScheduleContext) -> None:
    assert ctx.due_at is not None
    tick = int(ctx.due_at.timestamp())
    note("start", tick)
    await anyio.sleep(LASTS)
    note("end", tick)


async def main() -> None:
    app.use_broker(sys.argv[1])
    supervisor = Supervisor(
        lambda: app._opened_to_serve(clock=SkewedClock()),
        role="scheduler",
        drain_timeout=1,
        on_ready=lambda session: note("ready", 0),
    )
    await supervisor.run()


if __name__ == "__main__":
    anyio.run(main)
