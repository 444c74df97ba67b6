"""The connection: clear errors at the start, coming back for ever afterwards."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec

import pytest

from mega.adapters.nats.client import Client
from mega.adapters.nats.replies import Lost
from mega.errors import BrokerError, BrokerTooOld, BrokerUnavailable
from mega.urls import BrokerUrl
from tests.local_server import free_port
from tests.nats_server import NatsServer, nats_url
from tests.proxy import Proxy
from tests.waiting import until


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def silent(message: object) -> None:
    """A service that never answers."""


@asynccontextmanager
async def fake_server(version: str) -> AsyncIterator[int]:
    """Greet like a nats-server of that version."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"version": version, "max_payload": 1048576, "headers": True}
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    listener = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with listener:
        yield listener.sockets[0].getsockname()[1]


@asynccontextmanager
async def connected(url: BrokerUrl) -> AsyncIterator[Client]:
    client = Client(url, name="test")
    await client.open()
    try:
        yield client
    finally:
        await client.close()


async def test_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    url = nats_url(free_port(), connect_timeout=0.7)

    with pytest.raises(BrokerUnavailable) as caught:
        await Client(url, name="test").open()

    assert [
        f"{url.text} can't be used.",
        "  Cause: refused the connection.",
        "  Start `nats-server -js` there, or name another broker (--broker, MEGA_BROKER).",
    ] == str(caught.value).splitlines()
    lines = [record.getMessage() for record in caplog.records]
    assert f"{url.text} refused the connection; trying again in 0.5 s" == lines[0]
    assert not any(record.exc_info for record in caplog.records)


async def test_the_first_connect_waits_for_a_server_that_is_late(server: NatsServer) -> None:
    server.stop()
    client = Client(server.url(), name="test")
    opening = asyncio.create_task(client.open())
    await asyncio.sleep(0)
    server.start()

    await opening

    assert client.up.is_set()
    await client.close()


async def test_a_wrong_token_is_told_at_once() -> None:
    with NatsServer(config='authorization { token: "right" }') as server:
        with pytest.raises(BrokerError, match="refused this client"):
            await Client(server.url(token="wrong", connect_timeout=60.0), name="test").open()
        async with connected(server.url(token="right")):
            pass


async def test_user_and_password() -> None:
    with NatsServer(config="authorization { user: ada, password: secret }") as server:
        async with connected(server.url(user="ada", password="secret")):
            pass


async def test_an_old_server_is_refused() -> None:
    async with fake_server("2.9.10") as port:
        with pytest.raises(BrokerTooOld, match=r"runs nats-server 2\.9; 2\.12 is needed"):
            await Client(nats_url(port), name="test").open()


async def test_tls_is_not_given_up_when_the_server_does_not_offer_it(server: NatsServer) -> None:
    with pytest.raises(BrokerError, match="doesn't offer TLS"):
        await Client(server.url(is_tls=True), name="test").open()


@pytest.mark.skipif(find_spec("nkeys") is not None, reason="nkeys is installed")
async def test_creds_without_their_library_name_the_package() -> None:
    with pytest.raises(BrokerError, match="pip install nkeys"):
        await Client(nats_url(1, credentials="a.creds"), name="test").open()


async def test_jetstream_that_is_off_is_named() -> None:
    with NatsServer(config="jetstream: disabled") as server:
        async with connected(server.url()) as client:
            with pytest.raises(BrokerUnavailable, match="is it enabled"):
                await client.api("INFO")


async def test_what_waits_for_an_answer_fails_at_once_when_the_link_breaks(
    server: NatsServer, client: Client
) -> None:
    async with connected(server.url()) as other:
        await other.subscribe("service", silent)
        await other.round_trip(5)
        asking = asyncio.create_task(client.replies.ask("service", b"", timeout=3600))
        await client.round_trip(5)

        server.kill()

        async with asyncio.timeout(30):
            with pytest.raises(Lost, match="the connection was lost"):
                await asking


async def test_an_api_call_is_made_again_when_the_link_breaks(
    server: NatsServer, client: Client
) -> None:
    with Proxy(server.port) as proxy:
        async with connected(nats_url(proxy.port)) as other:
            proxy.blackhole("down")
            asking = asyncio.create_task(other.api("INFO", timeout=20))
            await until(lambda: proxy.held > 0, what="the answer on its way")
            proxy.heal()
            proxy.cut()

            assert "streams" in await asking


async def test_an_api_call_ends_when_the_client_is_closed(server: NatsServer) -> None:
    client = Client(server.url(), name="test")
    await client.open()
    os.kill(server.pid, signal.SIGSTOP)
    try:
        asking = asyncio.create_task(client.api("INFO", timeout=3600))
        await asyncio.sleep(0)
        await client.close()
        async with asyncio.timeout(10):
            with pytest.raises(BrokerUnavailable, match="is closing"):
                await asking
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def test_it_comes_back_with_its_subscriptions(
    server: NatsServer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[object] = []

    async def hear(message: object) -> None:
        heard.append(message)

    await client.subscribe("news", hear)
    for _ in range(2):
        heard.clear()
        server.kill()
        await until(lambda: not client.up.is_set(), what="the client to notice")
        server.start()
        await client.up.wait()
        await client.publish("news", b"", headers={})
        await until(lambda: heard, what="the news")

    texts = [record.getMessage() for record in caplog.records if record.name == "mega.broker"]
    assert 2 == sum("is away" in text for text in texts)
    assert 2 == sum("is back after" in text for text in texts)
    assert not any(record.exc_info for record in caplog.records)


async def test_it_begins_anew_when_the_server_closes_the_connection_for_good(
    client: Client,
) -> None:
    heard: list[object] = []

    async def hear(message: object) -> None:
        heard.append(message)

    await client.subscribe("news", hear)
    too_much = b"x" * client.nc.max_payload
    first = client.nc
    await client.publish("other", too_much, headers={"over": "the limit"})
    await until(lambda: client.nc is not first and client.up.is_set(), what="a new connection")

    await client.publish("news", b"", headers={})

    await until(lambda: heard, what="the news")


async def test_a_drain_that_is_given_up_leaves_the_connection_alive(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    interest = await client.subscribe("news", silent)
    drain = asyncio.create_task(interest.drain())
    await asyncio.sleep(0)
    drain.cancel()

    assert "api" in await client.api("INFO")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_denied_publish_is_named_in_the_error() -> None:
    user = '{ user: ada, password: s, permissions: { publish: { deny: "service" } } }'
    with NatsServer(config=f"authorization {{ users: [ {user} ] }}") as server:
        async with connected(server.url(user="ada", password="s")) as client:
            await client.publish("service", b"", headers={})
            await client.round_trip(5)

            expected = 'permissions violation for publish to "service"'
            assert expected in str(client.unavailable("why"))


async def test_connecting_that_is_cancelled_leaves_no_socket_behind(server: NatsServer) -> None:
    """Whatever step it is in: an open socket would be a ResourceWarning, hence a failure."""
    for turns in range(30):
        client = Client(server.url(), name="test")
        opening = asyncio.create_task(client.open())
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait({opening})
        await client.close()
    gc.collect()
