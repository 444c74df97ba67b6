"""A server whose storage is full."""

from __future__ import annotations

from collections.abc import Iterator

import nats
import pytest

from mega import App
from mega.errors import BrokerFull
from tests.cases.conftest import broker_of
from tests.cases.onlooker import Onlooker
from tests.cases.served import serving
from tests.nats_server import NatsServer
from tests.waiting import until


@pytest.fixture
def small() -> Iterator[NatsServer]:
    """A server with room for about fifty jobs of 20 kB."""
    with NatsServer(limits="max_file_store: 1MB") as server:
        yield server


@pytest.mark.parametrize("track", [True, False])
async def test_a_server_without_room(small: NatsServer, subject: str, track: bool) -> None:
    """stream-03: an enqueue raises BrokerFull, what was accepted runs, and then there is room."""
    app, ran = App("cases", broker=broker_of(small)), []

    @app.job(subject, track=track, result_ttl=1)
    async def take(payload: tuple[int, str]) -> None:
        ran.append(payload[0])

    async def fill(start: int) -> int:
        """Enqueue until there is no room, and return how many were accepted."""
        for number in range(start, 1000):
            try:
                await take.enqueue((number, "x" * 20_000))
            except BrokerFull:
                return number
        raise AssertionError("a thousand jobs of 20 kB fit into 1 MB")

    async with app:
        accepted = await fill(0)
        for options in ({}, {"id": "a"}, {"delay": 60}, {"unique": "a"}):
            with pytest.raises(BrokerFull, match=rf'no room for "({subject}|\$KV)'):
                await take.enqueue((-1, "x" * 20_000), **options)  # type: ignore[arg-type]
        with pytest.raises(BrokerFull, match=r"Of 50 jobs \d+ are known to be stored"):
            await take.enqueue_many([(-1, "x" * 20_000)] * 50)
    assert 10 < accepted < 100

    async with serving(app):
        await until(lambda: len(ran) == accepted, within=30, what="all that was accepted")
        more = await take.enqueue((accepted, "x" * 20_000), id="a")
        await until(lambda: len(ran) == accepted + 1, what="the job for which there is room now")
    assert not more.duplicate
    assert list(range(accepted + 1)) == sorted(ran)


async def test_a_refused_job_leaves_no_record(small: NatsServer, subject: str) -> None:
    """stream-03: nothing says later that a job waits which was never accepted."""
    app = App("cases", broker=broker_of(small))

    @app.job(subject)
    async def take(payload: str) -> None: ...

    async with app, await nats.connect(small.url().text) as client:
        onlooker = Onlooker(client)
        for name in ("first", "second"):  # the server lets the second one go over its limit
            await take.enqueue("x" * 800_000, id=name)
        with pytest.raises(BrokerFull):
            await take.enqueue("x" * 800_000, id="third")
        states = [await onlooker.record(name) for name in ("first", "second", "third")]
    assert ["waiting", "waiting", None] == [state and state["state"] for state in states]
