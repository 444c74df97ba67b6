"""The demo: what becomes of jobs, schedules and CPU tasks, one of each kind.

    python examples/demo.py                             serves everything until Ctrl-C
    python examples/demo.py enqueue demo.ok '"hello"'   from a second terminal

Jobs to enqueue: demo.ok TEXT, demo.flaky (fails once), demo.fail (ends in the dead
letters), demo.count (a tick by hand), demo.hash ROUNDS (a heartbeat beside CPU work).
"""

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path

import anyio

from mega import App, Event, JobContext, Lock, ScheduleContext

app = App("demo")
history = Path(os.environ.get("MEGA_HOME", Path(__file__).parent / ".mega")) / "ticks.txt"


def say(text: str) -> None:
    print(text, flush=True)


@app.job("demo.ok")
async def ok(note: str) -> str:
    say(f"ok      {note}")
    return note.upper()


@app.job("demo.flaky", retries=2, backoff=0.5)
async def flaky(ctx: JobContext) -> int:
    say(f"flaky   attempt {ctx.attempt} of {ctx.max_attempts}")
    if ctx.attempt == 1:
        raise ConnectionError("the first attempt always fails")
    return ctx.attempt


@app.job("demo.fail", retries=1, backoff=0.5)
async def fail(ctx: JobContext) -> None:
    say(f"fail    attempt {ctx.attempt} of {ctx.max_attempts}")
    raise ValueError("this never works")


@app.on("job.dlq")
def buried(event: Event) -> None:
    say(f"dead    {event}")


@app.schedule("*/5 * * * * *", timezone="UTC", lock=Lock(ttl=20))
async def counter(ctx: ScheduleContext) -> None:
    """Count ticks, those of the clock and those by hand, whichever process runs them."""
    kind = "automatic" if ctx.due_at else "manual"
    with history.open("a") as lines:
        lines.write(f"{datetime.now(UTC):%H:%M:%S} {kind}\n")
    ticks = history.read_text().splitlines()
    following = counter.next_runs()[0]
    say(f"count   {len(ticks)}, now {kind}, last {ticks[-3:]}, next {following:%H:%M:%S}")


@app.job("demo.count")
async def count_by_hand() -> None:
    await counter.run_now()


@app.cpu_task(timeout=60)
def hash_rounds(rounds: int) -> str:
    digest = b"mega"
    for _ in range(rounds):
        digest = hashlib.sha256(digest).digest()
    return digest.hex()


async def heartbeat() -> None:
    while True:
        say("beat    the event loop is free")
        await anyio.sleep(1)


@app.job("demo.hash")
async def hash_beside_heartbeat(rounds: int) -> str:
    async with anyio.create_task_group() as group:
        group.start_soon(heartbeat)
        digest = await hash_rounds.run(rounds)
        group.cancel_scope.cancel()
    say(f"hash    {digest[:16]}… after {rounds} rounds")
    return digest


if __name__ == "__main__":
    app.run()
