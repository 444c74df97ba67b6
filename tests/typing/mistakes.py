"""Mistakes that a type checker must find, one in each marked line and none elsewhere."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypedDict

from mega import App, Group, Job, JobContext, ScheduleContext
from mega.events import JobDone, JobFailed


@dataclass
class State:
    greeting: str


@asynccontextmanager
async def lifespan() -> AsyncGenerator[State]:
    yield State("hello")


app = App("shop", lifespan=lifespan)
group = Group()


@dataclass
class Email:
    to: str


class Row(TypedDict):
    key: str


@app.job("send")
async def send(email: Email) -> int:
    return len(email.to)


@app.job("send.sync")
def send_sync(email: Email, ctx: JobContext[State]) -> int:
    return len(ctx.state.greting)  # expect-error


@app.job("ping")
async def ping() -> None: ...


@app.job("look")
async def look(ctx: JobContext) -> None: ...


@app.job("row")
async def row(payload: Row) -> None: ...


@group.job("group.add")
async def add(numbers: list[int]) -> int:
    return sum(numbers)


@app.schedule("0 3 * * *")
async def nightly() -> None: ...


@app.cpu_task()
def render(title: str, *, pages: int = 1) -> bytes:
    return title.encode() * pages


async def plain(email: Email) -> int:
    return len(email.to)


# -- the wrong payload


async def wrong_payload() -> None:
    await send.enqueue("ada")  # expect-error
    await app.enqueue(send, "ada")  # expect-error
    await send_sync.enqueue({"to": "ada"})  # expect-error
    await app.enqueue(send_sync, {"to": "ada"})  # expect-error
    await row.enqueue({"kee": "a"})  # expect-error
    await app.enqueue(row, {"kee": "a"})  # expect-error
    await add.enqueue(["1"])  # expect-error
    await app.enqueue(add, ["1"])  # expect-error
    await app.enqueue(send, plain)  # expect-error


async def wrong_payload_among_many() -> None:
    await send.enqueue_many(["ada"])  # expect-error
    await app.enqueue_many(send, ["ada"])  # expect-error
    await send.enqueue_many(Email("ada"))  # expect-error
    await app.enqueue_many(send, Email("ada"))  # expect-error
    await app.enqueue_many(row, [{"kee": "a"}])  # expect-error
    await add.enqueue_many([1, 2])  # expect-error
    await app.enqueue_many(add, [1, 2])  # expect-error
    await ping.enqueue_many([3])  # expect-error
    await app.enqueue_many(plain, [Email("ada")])  # expect-error


def wrong_payload_from_sync_code() -> None:
    send.enqueue_sync("ada")  # expect-error
    app.enqueue_sync(send, "ada")  # expect-error
    app.enqueue_sync(row, {"kee": "a"})  # expect-error
    send.enqueue_sync()  # expect-error
    ping.enqueue_sync(3)  # expect-error


async def no_payload() -> None:
    await send.enqueue()  # expect-error
    await app.enqueue(send)  # expect-error
    await send.enqueue(None)  # expect-error
    await app.enqueue(send, None)  # expect-error
    await send_sync.enqueue(delay=5)  # expect-error


async def payload_that_nobody_takes() -> None:
    await ping.enqueue(3)  # expect-error
    await app.enqueue(ping, 3)  # expect-error
    await look.enqueue(Email("ada"))  # expect-error
    await app.enqueue(look, Email("ada"))  # expect-error


# -- a forgotten await


async def forgotten_await() -> None:
    send.enqueue(Email("ada"))  # expect-error
    app.enqueue(send, Email("ada"))  # expect-error
    app.enqueue("send", {"to": "ada"})  # expect-error
    ping.enqueue()  # expect-error
    send.enqueue_many([Email("ada")])  # expect-error
    app.enqueue_many(send, [Email("ada")])  # expect-error
    nightly.run_now()  # expect-error
    nightly.is_paused()  # expect-error
    render.run("report")  # expect-error
    app.serve(role="worker")  # expect-error
    job: Job[int] = send.enqueue(Email("ada"))  # expect-error
    (await send.enqueue(Email("ada"))).result()  # expect-error
    assert job


def forgotten_async() -> None:
    ping.enqueue()  # expect-error


# -- what is no job


async def not_a_job() -> None:
    await app.enqueue(plain, Email("ada"))  # expect-error
    await app.enqueue(nightly)  # expect-error
    await app.enqueue(render, "report")  # expect-error
    await nightly.enqueue()  # expect-error
    await render.enqueue("report")  # expect-error
    await plain.enqueue(Email("ada"))  # expect-error
    await send.run_now()  # expect-error
    await send.run(Email("ada"))  # expect-error


# -- options


async def wrong_options() -> None:
    await send.enqueue(Email("ada"), dellay=5)  # expect-error
    await app.enqueue(send, Email("ada"), dellay=5)  # expect-error
    await ping.enqueue(retry=1)  # expect-error
    await app.enqueue("send", {"to": "ada"}, dellay=5)  # expect-error
    await send.enqueue(Email("ada"), delay="5s")  # expect-error
    await app.enqueue(send, Email("ada"), delay="5s")  # expect-error
    await send.enqueue(Email("ada"), at="tomorrow")  # expect-error
    await send.enqueue(Email("ada"), retries=1.5)  # expect-error
    await send.enqueue(Email("ada"), headers={"tenant": 1})  # expect-error
    await send.enqueue(Email("ada"), id=7)  # expect-error
    await send.enqueue(Email("ada"), unique=7)  # expect-error
    await send.enqueue(Email("ada"), unique="ada", unique_for="1m")  # expect-error
    await send.enqueue_many([Email("ada")], id="ada")  # expect-error
    await app.enqueue_many(send, [Email("ada")], unique="ada")  # expect-error
    await app.enqueue_many(send, [Email("ada")], dellay=5)  # expect-error
    send.enqueue_sync(Email("ada"), dellay=5)  # expect-error
    app.enqueue_sync(send, Email("ada"), dellay=5)  # expect-error


app.job("job.unknown", retrys=3)  # expect-error
app.job("job.type", timeout="30s")  # expect-error
app.job("job.role", roles=("workr",))  # expect-error
app.schedule("@daily", timezne="UTC")  # expect-error
app.schedule(every="30s")  # expect-error
app.cpu_task(timeout="1m")  # expect-error


# -- results


async def wrong_result() -> None:
    text: str = await (await send.enqueue(Email("ada"))).result()  # expect-error
    nothing: int = await (await app.enqueue(ping)).result()  # expect-error
    page: str = await render.run("report")  # expect-error
    kept: Job[str] = await send.enqueue(Email("ada"))  # expect-error
    del text, nothing, page, kept


# -- handlers of the wrong shape


async def three(email: Email, ctx: JobContext, more: int) -> None: ...
async def two_payloads(email: Email, other: Email) -> None: ...
async def of_a_schedule(email: Email, ctx: ScheduleContext) -> None: ...
async def of_a_job(ctx: JobContext) -> None: ...
async def late(ctx: ScheduleContext, more: int) -> None: ...


app.job("handler.three")(three)  # expect-error
app.job("handler.two")(two_payloads)  # expect-error
app.job("handler.context")(of_a_schedule)  # expect-error
group.job("handler.three")(three)  # expect-error
app.schedule("@daily")(of_a_job)  # expect-error
app.schedule("@daily")(late)  # expect-error
app.schedule("@daily")(plain)  # expect-error
app.schedule("@daily")(send)  # expect-error
app.schedule("@daily")(render)  # expect-error


# -- CPU tasks


async def wrong_arguments() -> None:
    await render.run()  # expect-error
    await render.run(3)  # expect-error
    await render.run("report", 3)  # expect-error
    await render.run("report", page=3)  # expect-error
    render(3)  # expect-error
    render.map([3])  # expect-error
    render.map(["a"], limt=3)  # expect-error
    render.options(timeout="1m")  # expect-error
    render.options(on_progress=plain)  # expect-error
    await render.map(["a"])  # expect-error
    await send("ada")  # expect-error


# -- events


def of_another_event(event: JobDone) -> None: ...
def of_two_events(event: JobFailed, other: JobFailed) -> None: ...
def of_one_argument(event: JobFailed) -> None: ...


app.on(JobFailed)(of_another_event)  # expect-error
app.on(JobFailed)(of_two_events)  # expect-error
app.on(Email)  # expect-error
app.on_startup(of_one_argument)  # expect-error
app.on_shutdown(of_one_argument)  # expect-error


# -- the app


app.run(role="workr")  # expect-error
app.run(backend="twisted")  # expect-error
app.run(drain_timeout="25s")  # expect-error
app.include(send)  # expect-error
Group("mail")  # expect-error
App("typed", lifespan=State)  # expect-error
App("typed", brokr="memory:")  # expect-error
App("typed", locks="redis://a")  # expect-error
App("typed", locks={"main": 6379})  # expect-error
wrong_state: App[str] = App("typed", lifespan=lifespan)  # expect-error
greeting: str = app.state.greting  # expect-error


async def wrong_role() -> None:
    await app.serve(role="workr")  # expect-error
