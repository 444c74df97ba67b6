"""Streams and consumers that somebody changed or deleted, and a store that two apps share."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from mega import App
from tests.apps.program import Program, write_app
from tests.cases.conftest import broker_of
from tests.cases.onlooker import Onlooker, stream_of
from tests.cases.served import serving
from tests.nats_server import NatsServer
from tests.waiting import until

NANOSECONDS = 1_000_000_000


def worker_app(broker: str, subject: str, *, concurrency: int = 1) -> tuple[App[None], list[str]]:
    """Return an app with one job, and what that has run."""
    app, seen = App[None]("cases", broker=broker), list[str]()

    @app.job(subject, concurrency=concurrency)
    async def work(name: str) -> None:
        seen.append(name)

    return app, seen


async def consumer_config(onlooker: Onlooker, subject: str) -> dict[str, Any]:
    info = await onlooker.client.jsm().consumer_info(stream_of(subject), "workers")
    return info.config.as_dict()


async def test_a_consumer_that_is_deleted_under_a_worker(
    broker: str, subject: str, onlooker: Onlooker, caplog: pytest.LogCaptureFixture
) -> None:
    """stream-01: jobs run again within 10 s, and the log says what was missing."""
    app, seen = worker_app(broker, subject)
    async with serving(app):
        await app.enqueue(subject, "before")
        await until(lambda: seen == ["before"], what="the job before")
        await onlooker.client.jsm().delete_consumer(stream_of(subject), "workers")
        await app.enqueue(subject, "after")
        await until(lambda: seen == ["before", "after"], within=10, what="the job after")

    assert any("its consumer is missing; creating it again" in text for text in caplog.messages)


async def test_a_stream_that_is_deleted_under_a_worker(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """stream-01: the worker makes it again; an enqueue right then waits for that."""
    app, seen = worker_app(broker, subject)
    async with serving(app):
        await app.enqueue(subject, "before")
        await until(lambda: seen == ["before"], what="the job before")
        await onlooker.client.jsm().delete_stream(stream_of(subject))
        await app.enqueue(subject, "after")
        await until(lambda: seen == ["before", "after"], within=10, what="the job after")


async def test_a_consumer_outlives_any_absence_of_workers(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """stream-01: no server removes it by itself: it is durable and has no inactive_threshold."""
    app, _ = worker_app(broker, subject)
    async with serving(app):
        config = await consumer_config(onlooker, subject)

    assert "workers" == config["durable_name"]
    assert not config.get("inactive_threshold")


async def test_a_release_with_other_limits(
    server: NatsServer, subject: str, onlooker: Onlooker
) -> None:
    """ackwait-04: a worker that finds no other one sets what its release declares."""
    old, _ = worker_app(broker_of(server, ack_wait=30), subject, concurrency=2)
    async with serving(old):
        pass
    new, seen = worker_app(broker_of(server, ack_wait=5), subject, concurrency=4)
    async with serving(new):
        config = await consumer_config(onlooker, subject)
        await new.enqueue(subject, "one")
        await until(lambda: seen, what="the job")

    assert (5 * NANOSECONDS, 4) == (config["ack_wait"], config["max_ack_pending"])


async def test_a_release_that_takes_over_while_the_old_one_runs(
    server: NatsServer, subject: str, onlooker: Onlooker, caplog: pytest.LogCaptureFixture
) -> None:
    """ackwait-04: a shorter ack_wait would end the leases of the old workers: it is named.

    Any other limit is set at once, a longer ack_wait too.
    """
    old, _ = worker_app(broker_of(server, ack_wait=30), subject, concurrency=2)
    shorter, _ = worker_app(broker_of(server, ack_wait=5), subject, concurrency=4)
    longer, _ = worker_app(broker_of(server, ack_wait=60), subject, concurrency=4)
    async with serving(old):
        async with serving(shorter):
            during = await consumer_config(onlooker, subject)
        async with serving(longer):
            after = await consumer_config(onlooker, subject)

    assert (30 * NANOSECONDS, 4) == (during["ack_wait"], during["max_ack_pending"])
    assert 60 * NANOSECONDS == after["ack_wait"]
    assert any("ack_wait is 30 s, wanted 5 s; left as it is" in text for text in caplog.messages)
    assert any("ack_wait is now 60 s, it was 30 s" in text for text in caplog.messages)


APP = """
    from mega import App
    app = App("shared", broker="embedded:?ack_wait=1")
    @app.job("shared.work", concurrency=2)
    async def work(number: int) -> None:
        print("ran", number, flush=True)
    app.run()
"""


def test_two_copies_of_an_app_on_one_store(tmp_path: Path, home: Path) -> None:
    """stream-06: both work against one server; when the owner is killed, the other one goes on."""
    file = write_app(tmp_path, APP)
    with Program(file, home=home) as owner, Program(file, home=home) as other:
        owner.wait_for("ready in")
        other.wait_for("ready in")
        first, second = (running.wait_for(r"nats://\S+").group() for running in (owner, other))
        assert first == second
        enqueue(file, home, 1)
        owner.signal(signal.SIGKILL)
        owner.wait()
        enqueue(file, home, 2)
        other.wait_for("ran 2")
        other.signal(signal.SIGTERM)
        assert 0 == other.wait()
        assert 1 == owner.count("ran 1") + other.count("ran 1")


def test_a_store_whose_owner_was_killed(tmp_path: Path, home: Path) -> None:
    """stream-06: a lock that a killed owner has left behind blocks nobody, and no job is lost."""
    file = write_app(tmp_path, APP)
    with Program(file, "--role", "scheduler", home=home) as owner:
        owner.wait_for("ready in")
        enqueue(file, home, 1)
        owner.signal(signal.SIGKILL)
        owner.wait()
    with Program(file, home=home) as heir:
        heir.wait_for("ran 1")
        heir.signal(signal.SIGTERM)
        assert 0 == heir.wait()


def enqueue(file: Path, home: Path, number: int) -> None:
    with Program(file, "enqueue", "shared.work", str(number), home=home) as producer:
        assert 0 == producer.wait(), producer.errors
