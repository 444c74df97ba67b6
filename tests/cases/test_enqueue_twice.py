"""Enqueues that are sent again: as their confirmation is lost, or by their id."""

from __future__ import annotations

from typing import Any

import pytest

from mega import App, JobContext
from tests.cases.onlooker import Onlooker
from tests.cases.served import serving
from tests.nats_server import NatsServer
from tests.proxy import Proxy


@pytest.mark.parametrize("options", [{}, {"id": "once"}, {"delay": 60}, {"unique": "once"}])
async def test_a_confirmation_that_is_lost(
    subject: str, server: NatsServer, onlooker: Onlooker, options: dict[str, Any]
) -> None:
    """enq-10: the enqueue is sent again under the same id, and stored once."""
    if "id" in options:
        options = {"id": subject}
    lost = b'"stream":"MEGA_JOBS_' + subject.replace(".", "_").encode() + b'"'
    with Proxy(server.port) as proxy:
        app = App("cases", broker=f"nats://127.0.0.1:{proxy.port}")

        @app.job(subject)
        async def take(number: int) -> None: ...

        async with app:
            await take.enqueue(0)
            proxy.drop(lost)
            job = await take.enqueue(1, **options)
        assert 1 == proxy.dropped[lost]

    stored = await onlooker.jobs(subject)
    assert [job.id] == [(message.headers or {})["Mega-Id"] for message in stored[1:]]
    assert options.get("id", job.id) == job.id


async def test_many_whose_confirmation_is_lost(
    subject: str, server: NatsServer, onlooker: Onlooker
) -> None:
    """enq-10: so is a batch."""
    with Proxy(server.port) as proxy:
        app = App("cases", broker=f"nats://127.0.0.1:{proxy.port}")

        @app.job(subject)
        async def take(number: int) -> None: ...

        async with app:
            proxy.drop(rb'"batch":')
            jobs = await take.enqueue_many(range(600))
        assert 1 == proxy.dropped[rb'"batch":']

    stored = await onlooker.jobs(subject)
    assert {job.id for job in jobs} == {(message.headers or {})["Mega-Id"] for message in stored}
    assert 600 == len(stored)


async def test_an_id_that_is_enqueued_twice(broker: str, subject: str) -> None:
    """enq-10: the second enqueue of an id says that it is a duplicate, and the job runs once."""
    app, ran = App("cases", broker=broker), []

    @app.job(subject)
    async def take(number: int, ctx: JobContext) -> int:
        ran.append(ctx.id)
        return number

    async with serving(app):
        jobs = [await take.enqueue(number, id=f"{subject}-7") for number in (1, 2)]
        assert [1, 1] == [await job.result(timeout=10) for job in jobs]
        again = await take.enqueue(3, id=f"{subject}-7")
        assert 1 == await again.result(timeout=10)

    assert [False, True, True] == [job.duplicate for job in [*jobs, again]]
    assert [f"{subject}-7"] == ran


async def test_a_delayed_id_that_is_enqueued_three_times(broker: str, subject: str) -> None:
    """enq-11: an id means the same for delayed jobs."""
    app, ran = App("cases", broker=broker), []

    @app.job(subject)
    async def take(number: int) -> int:
        ran.append(number)
        return number

    async with serving(app):
        jobs = [await take.enqueue(n, id=f"{subject}-k", delay=3) for n in (1, 2, 3)]
        assert [1] * 3 == [await job.result(timeout=15) for job in jobs]
        marker = await take.enqueue(4)
        await marker.result(timeout=10)

    assert [False, True, True] == [job.duplicate for job in jobs]
    assert [1, 4] == ran
