"""The proxy of the tests does what it says: else a test behind it proves nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from mega.adapters.nats.broker import NatsBroker
from mega.options import JobOptions
from mega.ports import Queue
from mega.wire.message import Message, new_id
from tests.nats_server import NatsServer, nats_url
from tests.proxy import Proxy
from tests.waiting import until_sync

WITHIN = 10.0
AT_ONCE = 0.1


class Echo:
    """A server that sends back each line that it is sent."""

    def __init__(self) -> None:
        self.heard = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            while data := client.recv(65536):
                self.heard += data
                client.sendall(data)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port) as proxy:
        yield proxy


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), WITHIN)


def say(client: socket.socket, text: bytes) -> bytes:
    client.sendall(text)
    return client.recv(1024)


def test_what_is_sent_passes_in_both_directions(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert b"PING\r\n" == say(client, b"PING\r\n")


def test_cut_resets_what_is_open_and_lets_new_ones_in(proxy: Proxy) -> None:
    with connect(proxy) as client, connect(proxy) as other:
        say(client, b"PING\r\n")
        say(other, b"PING\r\n")
        proxy.cut()
        for cut in (client, other):
            with pytest.raises(ConnectionResetError):
                cut.recv(1)
    assert 0 == proxy.links
    with connect(proxy) as client:
        assert b"PING\r\n" == say(client, b"PING\r\n")


def test_a_refusing_proxy_refuses_until_it_is_healed(proxy: Proxy) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.heal()
    with connect(proxy) as client:
        assert b"PING\r\n" == say(client, b"PING\r\n")


def test_a_blackhole_holds_what_is_sent_until_it_is_healed(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as client:
        proxy.blackhole()
        client.sendall(b"PING\r\n")
        client.settimeout(AT_ONCE)
        with pytest.raises(TimeoutError):
            client.recv(1)
        assert b"" == echo.heard
        proxy.heal()
        client.settimeout(WITHIN)
        assert b"PING\r\n" == client.recv(1024)


def test_a_blackhole_of_one_direction_lets_the_other_pass(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as client:
        proxy.blackhole("down")
        client.sendall(b"PING\r\n")
        until_sync(lambda: b"PING\r\n" == echo.heard, what="the line at the server")
        client.settimeout(AT_ONCE)
        with pytest.raises(TimeoutError):
            client.recv(1)


def test_cut_loses_what_a_blackhole_holds(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as client:
        say(client, b"1\r\n")
        proxy.blackhole()
        client.sendall(b"2\r\n")
        proxy.cut()
    proxy.heal()
    with connect(proxy) as client:
        assert b"3\r\n" == say(client, b"3\r\n")
    assert b"1\r\n3\r\n" == echo.heard


def test_a_connection_that_is_forgotten_stays_open_and_dead(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as client, connect(proxy) as other:
        say(client, b"1\r\n")
        say(other, b"2\r\n")
        proxy.forget()
        client.sendall(b"3\r\n")
        client.settimeout(AT_ONCE)
        with pytest.raises(TimeoutError):
            client.recv(1)
        with connect(proxy) as new:
            assert b"4\r\n" == say(new, b"4\r\n")
        proxy.heal()
        with pytest.raises(TimeoutError):
            client.recv(1)
    assert b"1\r\n2\r\n4\r\n" == echo.heard


def test_the_first_messages_that_match_are_lost_as_a_whole(proxy: Proxy, echo: Echo) -> None:
    proxy.drop(b"lost", direction="up", times=2)
    with connect(proxy) as client:
        for part in (b"PUB a 6\r\nlo", b"st\r\n\r\n", b"PUB b lost 0\r\n\r\n"):
            client.sendall(part)
        assert b"PUB c 4\r\nlost\r\n" == say(client, b"PUB c 4\r\nlost\r\n")
    assert 2 == proxy.dropped[b"lost"]


def test_a_proxy_before_nothing_closes_its_connections() -> None:
    with NatsServer() as server, Proxy(server.port) as proxy:
        server.kill()
        with connect(proxy) as client:
            assert b"" == client.recv(1)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_lost_pub_ack_is_asked_for_again(anyio_backend: str) -> None:
    with NatsServer() as server, Proxy(server.port) as proxy:
        async with NatsBroker(nats_url(proxy.port), name="test") as broker:
            await broker.provide(Queue("some.job", JobOptions()))
            proxy.drop(rb'"stream":"MEGA_JOBS_some_job"')
            receipt = await broker.publish(Message(id=new_id(), subject="some.job", body=b"1"))
    assert receipt.duplicate
    assert 1 == sum(proxy.dropped.values())
