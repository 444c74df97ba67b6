"""All that may be written against the public API. It is type-checked and never run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypedDict, assert_type

from mega import (
    App,
    Backoff,
    DeadLetter,
    Event,
    Group,
    Job,
    JobContext,
    JobHandle,
    JobRecord,
    Lock,
    ScheduleContext,
    cpu,
)
from mega.events import JobDone, JobEvent, JobFailed, ScheduleSkipped
from mega.handles import BulkOptions, EnqueueOptions
from mega.testing import TestApp, job_context

# -- the state of an app


@dataclass
class State:
    greeting: str


@asynccontextmanager
async def lifespan() -> AsyncGenerator[State]:
    yield State("hello")


app = App("shop", lifespan=lifespan)
assert_type(app, App[State])
assert_type(app.state, State)

plain_app = App("plain", broker="memory:", provision=False)
locked_app = App(
    "locked", locks={"main": "redis://a", "vault": ["redis://a", "redis://b", "redis://c"]}
)
assert_type(plain_app, App[None])
assert_type(plain_app.state, None)


# -- handlers, in every shape


@dataclass
class Email:
    to: str


@dataclass
class Newsletter(Email):
    issue: int = 1


class Row(TypedDict):
    key: str


@app.job("send")
async def send(email: Email) -> int:
    return len(email.to)


@app.job("send.noted")
async def send_noted(email: Email, ctx: JobContext[State]) -> str:
    assert_type(ctx.state, State)
    assert_type(ctx.app, App[State])
    assert_type(ctx.attempt, int)
    assert_type(ctx.is_last_attempt, bool)
    assert_type(ctx.enqueued_at, datetime)
    ctx.log.info("%s %s", ctx.state.greeting, email.to)
    return ctx.id


@app.job("ping")
async def ping() -> None: ...


@app.job("look")
async def look(ctx: JobContext[State]) -> float:
    return float(ctx.attempt)


@app.job("send.sync")
def send_sync(email: Email) -> int:
    return len(email.to)


@app.job("send.noted.sync")
def send_noted_sync(email: Email, ctx: JobContext) -> str:
    return f"{email.to} {ctx.state} {ctx.headers}"


@app.job("ping.sync")
def ping_sync() -> bytes:
    return b"pong"


@app.job("look.sync")
def look_sync(ctx: JobContext) -> list[int]:
    return [ctx.attempt, ctx.attempts_made, ctx.max_attempts]


@app.job(
    "options",
    retries=5,
    backoff=Backoff(initial=0.5, max=timedelta(minutes=1)),
    concurrency=10,
    per_worker=2,
    timeout=timedelta(seconds=30),
    dead_letter=DeadLetter(max_age=timedelta(days=1), max_bytes=1_000_000),
    result_ttl=60,
    track=False,
    roles=("worker", "web"),
)
async def with_options(email: Email) -> None: ...


@app.job("constant", backoff=1.5)
async def constant(email: Email) -> None: ...


# -- payloads of many kinds


@app.job("anything")
async def anything(payload: Any) -> None: ...


@app.job("anything.noted")
async def anything_noted(payload: Any, ctx: JobContext) -> None: ...


@app.job("anything.sync")
def anything_sync(payload: object) -> None: ...


@app.job("row")
async def row(payload: Row) -> None: ...


@app.job("color")
async def color(payload: Literal["red", "green"]) -> None: ...


@app.job("emails")
async def emails(payload: list[Email]) -> None: ...


@app.job("numbers")
async def numbers(payload: dict[str, float]) -> None: ...


@app.job("maybe")
async def maybe(payload: Email | None) -> None: ...


class Sender:
    async def __call__(self, email: Email) -> int:
        return len(email.to)


sender = app.job("sender")(Sender())


async def payloads() -> None:
    await anything.enqueue(3)
    await anything_noted.enqueue({"a": [1, None]})
    await anything_sync.enqueue(3)
    assert_type(await row.enqueue({"key": "a"}), Job[None])
    assert_type(await color.enqueue("red"), Job[None])
    assert_type(await emails.enqueue([Newsletter("ada")]), Job[None])
    assert_type(await numbers.enqueue({"a": 1}), Job[None])
    assert_type(await maybe.enqueue(), Job[None])
    assert_type(await maybe.enqueue(Email("ada")), Job[None])
    assert_type(await sender.enqueue(Newsletter("ada")), Job[int])


async def payloads_through_the_app() -> None:
    await app.enqueue(anything, 3)
    await app.enqueue(anything_sync, 3)
    assert_type(await app.enqueue(row, {"key": "a"}), Job[None])
    assert_type(await app.enqueue(color, "red"), Job[None])
    assert_type(await app.enqueue(emails, [Newsletter("ada")]), Job[None])
    assert_type(await app.enqueue(numbers, {"a": 1}), Job[None])
    assert_type(await app.enqueue(maybe), Job[None])
    assert_type(await app.enqueue(maybe, Email("ada")), Job[None])
    assert_type(await app.enqueue(sender, Newsletter("ada")), Job[int])


# -- enqueue


async def enqueue() -> None:
    assert_type(await send.enqueue(Email("ada")), Job[int])
    assert_type(await send_noted.enqueue(Email("ada")), Job[str])
    assert_type(await ping.enqueue(), Job[None])
    assert_type(await ping.enqueue(None), Job[None])
    assert_type(await look.enqueue(), Job[float])
    assert_type(await send_sync.enqueue(Email("ada")), Job[int])
    assert_type(await send_noted_sync.enqueue(Newsletter("ada")), Job[str])
    assert_type(await ping_sync.enqueue(), Job[bytes])
    assert_type(await look_sync.enqueue(), Job[list[int]])


async def enqueue_through_the_app() -> None:
    assert_type(await app.enqueue(send, Email("ada")), Job[int])
    assert_type(await app.enqueue(send_noted, Email("ada")), Job[str])
    assert_type(await app.enqueue(ping), Job[None])
    assert_type(await app.enqueue(look), Job[float])
    assert_type(await app.enqueue(send_sync, Email("ada")), Job[int])
    assert_type(await app.enqueue(send_noted_sync, Newsletter("ada")), Job[str])
    assert_type(await app.enqueue(ping_sync), Job[bytes])
    assert_type(await app.enqueue("other.app.job", {"any": "thing"}), Job[Any])
    assert_type(await app.enqueue("other.app.job"), Job[Any])


async def enqueue_many() -> None:
    emails = [Email("ada"), Newsletter("bob")]
    assert_type(await send.enqueue_many(emails), list[Job[int]])
    assert_type(await send.enqueue_many(email for email in emails), list[Job[int]])
    assert_type(await app.enqueue_many(send, emails), list[Job[int]])
    assert_type(await app.enqueue_many(send, iter([Newsletter("ada")])), list[Job[int]])
    assert_type(await app.enqueue_many(row, [{"key": "a"}]), list[Job[None]])
    assert_type(await app.enqueue_many(color, ("red", "green")), list[Job[None]])
    assert_type(await app.enqueue_many(ping, [None] * 3), list[Job[None]])
    assert_type(await ping.enqueue_many([None] * 3), list[Job[None]])
    assert_type(await app.enqueue_many("other.app.job", [1, "a"]), list[Job[Any]])
    options: BulkOptions = {"delay": 5, "attempts": 2, "headers": {"tenant": "a"}}
    await send.enqueue_many(emails, **options)
    await app.enqueue_many(send, emails, at=datetime(2030, 1, 1, tzinfo=UTC), backoff=2)


def enqueue_sync() -> None:
    assert_type(send.enqueue_sync(Email("ada")), Job[int])
    assert_type(ping.enqueue_sync(), Job[None])
    assert_type(ping_sync.enqueue_sync(delay=5), Job[bytes])
    assert_type(app.enqueue_sync(send, Newsletter("ada")), Job[int])
    assert_type(app.enqueue_sync(ping, id="ping-1"), Job[None])
    assert_type(app.enqueue_sync(row, {"key": "a"}), Job[None])
    assert_type(app.enqueue_sync("other.app.job", {"any": "thing"}), Job[Any])
    assert_type(send.enqueue_sync(Email("ada"), unique="ada").duplicate, bool)


async def enqueue_unique() -> None:
    await send.enqueue(Email("ada"), unique="ada", delay=60)
    await app.enqueue(send, Email("ada"), unique="ada", unique_for=timedelta(hours=1))
    await app.enqueue("other.app.job", unique="ada", unique_for=60)


async def enqueue_with_options() -> None:
    options: EnqueueOptions = {"delay": 5, "headers": {"tenant": "a"}}
    await send.enqueue(Email("ada"), **options)
    await app.enqueue(send, Email("ada"), **options)
    await ping.enqueue(**options)
    await app.enqueue(ping, **options)
    await send.enqueue(Email("ada"), delay=timedelta(minutes=1), retries=0, id="welcome-ada")
    await send.enqueue(Email("ada"), at=datetime(2030, 1, 1, tzinfo=UTC), attempts=2)
    await app.enqueue(send, Email("ada"), backoff=Backoff(factor=3), headers={"tenant": "a"})
    await app.enqueue("send", {"to": "ada"}, backoff=2, delay=None)


async def results() -> None:
    job = await send.enqueue(payload=Email("ada"))
    assert_type(job.id, str)
    assert_type(job.duplicate, bool)
    assert_type(await job.state(), JobRecord)
    assert_type(await job.wait(timeout=timedelta(seconds=5)), JobRecord)
    assert_type(await job.result(timeout=5), int)
    assert_type(await (await look_sync.enqueue()).result(), list[int])


async def in_place() -> None:
    assert_type(await send(Email("ada")), int)
    assert_type(send_sync(Email("ada")), int)
    assert_type(ping_sync(), bytes)
    assert_type(send_noted_sync(Email("ada"), job_context(app=app, attempt=2)), str)
    assert_type(await look(job_context()), float)


def takes_a_job(job: JobHandle[Email, ..., Any, int]) -> str:
    return job.subject


takes_a_job(send)
takes_a_job(send_sync)


# -- schedules


@app.schedule("0 3 * * *", timezone="Asia/Seoul", lock=Lock(ttl=60), name="nightly")
async def clean() -> int:
    return 1


@app.schedule(every=timedelta(seconds=30), lock=True)
async def look_around(ctx: ScheduleContext[State]) -> None:
    assert_type(ctx.state, State)
    assert_type(ctx.due_at, datetime | None)
    assert_type(ctx.fence, int)
    await clean.run_now()


@app.schedule(every=30, lock="default")
def clean_sync() -> str:
    return "cleaned"


@app.schedule("@daily")
def look_around_sync(ctx: ScheduleContext) -> float:
    return ctx.lateness


@app.schedule("*/5 * * * *")
@app.job("report")
async def report() -> int:
    return 1


ticking_ping = app.schedule("* * * * *", name="ping")(ping)
ticking_look = app.schedule(every=1)(look)


async def schedules() -> None:
    assert_type(await clean(), int)
    assert_type(clean_sync(), str)
    assert_type(await report(), int)
    assert_type(await ticking_look(job_context()), float)
    assert_type(clean.name, str)
    assert_type(clean.next_runs(), list[datetime])
    assert_type(report.next_runs(count=3), list[datetime])
    assert_type(await ticking_ping.run_now(), bool)
    assert_type(await clean.is_paused(), bool)


# -- CPU tasks

app.pool("reports", size=2, memory_limit=2**30)


@app.cpu_task(pool="reports", timeout=timedelta(minutes=1))
def render(title: str, *, pages: int = 1) -> bytes:
    return title.encode() * pages


@app.cpu_task()
def count(numbers: list[int]) -> int:
    return sum(numbers)


async def cpu_tasks() -> None:
    assert_type(await render.run("report", pages=3), bytes)
    assert_type(await count.run([1, 2]), int)
    assert_type(render("report"), bytes)
    assert_type(render.name, str)
    assert_type(await render.options(timeout=None, on_progress=hear).run("report"), bytes)
    assert_type(await count.options(on_progress=print).run([1]), int)
    assert_type([page async for page in render.map(["a", "b"])], list[bytes])
    assert_type([total async for total in count.map(lists(), limit=3)], list[int])
    async with aclosing(count.map([[1], [2]])) as totals:
        assert_type(await anext(totals), int)


async def hear(fraction: float, note: str) -> None:
    cpu.progress(fraction, note)


async def lists() -> AsyncIterator[list[int]]:
    yield [1, 2]


# -- events


@app.on(JobFailed)
async def failed(event: JobFailed) -> None:
    assert_type(event.error, BaseException)


@app.on(JobDone)
def any_job_event(event: JobEvent) -> str:
    return event.job_id


@app.on("schedule.skip")
def skipped(event: ScheduleSkipped) -> None:
    assert_type(event.reason, str)


@app.on(Event)
async def everything(event: Event) -> None: ...


@app.on_startup
async def warm_up() -> None: ...


@app.on_shutdown
def cool_down() -> None: ...


# -- groups

group = Group()


@group.job("group.add")
async def add(numbers: list[int]) -> int:
    return sum(numbers)


@group.schedule("@hourly")
async def hourly(ctx: ScheduleContext) -> None: ...


@group.cpu_task()
def crunch(size: int) -> float:
    return float(size)


@group.on(JobDone)
async def done(event: JobDone) -> None:
    assert_type(event.seconds, float)


group.pool("small", size=1)
app.include(group)


async def groups() -> None:
    assert_type(await add.enqueue([1, 2]), Job[int])
    assert_type(await app.enqueue(add, [1, 2]), Job[int])
    assert_type(await crunch.run(3), float)
    await hourly.run_now()


# -- serving and testing


async def produce() -> None:
    async with app as entered:
        assert_type(entered, App[State])


async def serve() -> None:
    await app.serve(role="worker", drain_timeout=5, on_ready=lambda: None)


async def test() -> None:
    async with app.test() as served:
        assert_type(served, TestApp)
        await served.advance(60)
        await served.drain()
        assert_type(served.jobs, list[JobRecord])
        assert_type(served.events, list[Event])


if __name__ == "__main__":
    app.run()
    app.run(role="all", broker="memory:", backend="trio", drain_timeout=1, argv=["--check"])
