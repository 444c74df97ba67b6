"""`enqueue_many` stores a job for each payload, or none when one of them is bad."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from mega import App
from mega.errors import (
    BadHandler,
    BadOption,
    PayloadInvalid,
    PayloadNotSerializable,
    PayloadTooLarge,
    UnknownSubject,
)


@dataclass
class Email:
    to: str
    tag: float = 0.0


async def test_each_payload_is_a_job() -> None:
    app = App("shop")

    @app.job("email.send", concurrency=1)
    async def send(email: Email) -> str:
        return email.to

    async with app.test() as t:
        jobs = await send.enqueue_many([Email("ada"), Email("bob"), Email("eve")])
        await t.drain()
        assert ["ada", "bob", "eve"] == [await job.result() for job in jobs]

    assert 3 == len({job.id for job in jobs})
    assert [False] * 3 == [job.duplicate for job in jobs]


async def test_the_payloads_may_come_one_by_one_and_be_many() -> None:
    app, seen = App("shop"), []

    @app.job("number.add", track=False, concurrency=10)
    async def add(number: int) -> None:
        seen.append(number)

    def numbers() -> Iterator[int]:
        yield from range(1100)

    async with app.test() as t:
        jobs = await app.enqueue_many(add, numbers())
        await t.drain()

    assert 1100 == len(jobs)
    assert list(range(1100)) == sorted(seen)


async def test_no_payloads_are_no_jobs() -> None:
    app = App("shop")

    @app.job("email.send")
    async def send(email: Email) -> None: ...

    async with app.test():
        assert [] == await send.enqueue_many([])


async def test_a_job_without_a_payload_takes_none_each_time() -> None:
    app, runs = App("shop"), []

    @app.job("ping")
    async def ping() -> None:
        runs.append(1)

    async with app.test() as t:
        await ping.enqueue_many([None] * 3)
        await t.drain()

    assert [1] * 3 == runs


async def test_the_options_hold_for_all() -> None:
    app, seen = App("shop"), []

    @app.job("email.send", retries=3)
    async def send(email: Email) -> None:
        seen.append(email.to)
        raise ConnectionError

    async with app.test() as t:
        await send.enqueue_many([Email("ada"), Email("bob")], delay=60, retries=0)
        await t.advance(59)
        assert [] == seen
        await t.advance(1)
        assert 2 == len(t.dead_letters("email.send"))

    assert ["ada", "bob"] == sorted(seen)


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (Email("x", float("nan")), PayloadNotSerializable, r"payloads\[3\].tag is nan"),
        (Email(7), PayloadInvalid, r"payloads\[3\].to"),  # type: ignore[arg-type]
        ("x", PayloadInvalid, r"payloads\[3\]"),
        (Email("x" * 2**20), PayloadTooLarge, r"payloads\[3\] on"),
    ],
)
async def test_one_bad_payload_refuses_all(bad: Any, error: type[Exception], text: str) -> None:
    app = App("shop")

    @app.job("email.send")
    async def send(email: Email) -> None: ...

    async with app.test() as t:
        with pytest.raises(error, match=text):
            await send.enqueue_many([Email("a"), Email("b"), Email("c"), bad, Email("e")])
        await t.drain()
        assert [] == t.jobs


@pytest.mark.parametrize("name", ["id", "unique", "unique_for"])
async def test_an_option_of_a_single_job_is_refused(name: str) -> None:
    app = App("shop")

    @app.job("email.send")
    async def send(email: Email) -> None: ...

    async with app.test() as t:
        with pytest.raises(BadOption, match=f"enqueue_many has no option '{name}'"):
            await send.enqueue_many([Email("a")], **{name: "x"})  # type: ignore[arg-type]
        assert [] == t.jobs


async def test_a_job_that_nobody_declares_is_refused_and_leaves_nothing() -> None:
    app = App("shop")

    @app.job("email.send")
    async def send(email: Email) -> None: ...

    async with app.test() as t:
        with pytest.raises(UnknownSubject, match=r"Of 2 jobs 0 are known to be stored\."):
            await app.enqueue_many("email.sent", [1, 2])
        with pytest.raises(BadHandler):
            await app.enqueue_many(print, [1, 2])  # type: ignore[call-overload]
        assert [] == t.jobs
