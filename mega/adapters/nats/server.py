"""The embedded NATS server: who runs it, where it listens, and who takes over.

It knows nothing of jobs and of clients; `watchdog` owns the process and the locks.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import anyio
import msgspec

from mega.adapters.nats.watchdog import (
    WatchedProcess,
    find_binary,
    forget,
    lock_holder,
    try_lock,
    unlock,
)
from mega.errors import BrokerError, BrokerUnavailable

__all__ = ["EmbeddedServer", "ServerAddress"]

HOST = "127.0.0.1"
# Below the range that Linux gives to outgoing connections (32768 and up): while the server is
# away, no connection, not even a client's own retry, can land on the port that it comes back to.
FIRST_PORT, PORT_COUNT = 20_000, 10_000
PORT_TRIES = 200

JOIN_WITHIN = 10.0
STORE_WITHIN = 10.0
READY_WITHIN = 60.0  # a big store is read before the server listens
ANSWER_WITHIN = 1.0
POLL_EVERY = 0.01
WATCH_EVERY = 0.25
LONGEST_BACKOFF = 10.0
STEADY_AFTER = 30.0

logger = logging.getLogger("mega.server")


@dataclass(frozen=True)
class ServerAddress:
    """Where the server listens, and the token that lets a client in."""

    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    token: str = field(repr=False)

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    @property
    def name(self) -> str:
        """The name that the server gives itself, so that no token goes to a foreign one."""
        return "mega-" + hashlib.sha256(self.token.encode()).hexdigest()[:16]


class PortTaken(BrokerUnavailable):
    """Another program was faster to bind the port."""


class EmbeddedServer:
    """A NATS server with JetStream in `home`, shared by every process that uses that folder.

    The holder of `nats/lock` owns the server for its whole life. `nats/store.lock` is held by
    the server process itself, which may outlive a killed owner by a moment: two servers on one
    store lose messages, and nats-server doesn't look.
    """

    def __init__(self, home: Path, *, sync_interval: str = "1s") -> None:
        self.address: ServerAddress | None = None
        self._files = ServerFiles(home)
        self._sync_interval = sync_interval
        self._lock: int | None = None
        self._process: WatchedProcess | None = None
        self._ready_at = 0.0
        self._closed = anyio.Event()

    @property
    def folder(self) -> str:
        """Where the data is, as a person in the working directory would name it."""
        return os.path.relpath(self._files.home)

    @property
    def owner(self) -> bool:
        """Whether this process holds the lock, and so runs the server."""
        return self._lock is not None

    async def start(self) -> ServerAddress:
        """Start the server, or join the one that runs.

        Raises: BrokerUnavailable with the reason.
        """
        self._closed = anyio.Event()
        try:
            with self._files.usable():
                self._files.prepare()
                return await self._own_or_join()
        except BaseException:
            await self.close()
            raise

    async def watch(self) -> None:
        """Keep a server running until `close`: restart one's own, take over from a dead owner."""
        failures = 0
        while not self._closed.is_set():
            with anyio.move_on_after(WATCH_EVERY + backoff(failures)):
                await self._closed.wait()
            if await self._had_to_act():
                failures += 1
            elif not self.owner or time.monotonic() - self._ready_at > STEADY_AFTER:
                failures = 0

    async def close(self) -> None:
        """Stop the server if this process owns it. The store and the address stay."""
        self._closed.set()
        await self._let_go()

    async def _own_or_join(self) -> ServerAddress:
        give_up_at = time.monotonic() + JOIN_WITHIN
        while time.monotonic() < give_up_at:
            if self._try_to_own():
                return await self._launch()
            recorded = self._files.read_address()
            if recorded and await answers(recorded):
                self.address = recorded
                return recorded
            await anyio.sleep(POLL_EVERY)
        raise self._silent_owner()

    def _try_to_own(self) -> bool:
        self._lock = try_lock(self._files.lock)
        return self.owner

    async def _had_to_act(self) -> bool:
        try:
            with self._files.usable():
                if not self._is_server_missing():
                    return False
                await self._launch()
        except BrokerError as error:
            if not self._closed.is_set():
                reason = " ".join(str(error).split())
                logger.error("the embedded server did not come back: %s", reason)
            # Another process may be able to do what this one can't.
            await self._let_go()
        return True

    def _is_server_missing(self) -> bool:
        if self._closed.is_set():
            return False
        if self._process is None:
            if not self._try_to_own():
                return False
            logger.warning("no process runs the embedded server any more, starting it here")
        elif self._process.exit_code is None:
            return False
        else:
            logger.warning("the embedded server ended (%s), starting it", self._process.exit_code)
        return True

    async def _launch(self) -> ServerAddress:
        try:
            return await self._launch_once()
        except PortTaken:  # between our look and the server's bind
            return await self._launch_once()

    async def _launch_once(self) -> ServerAddress:
        binary = find_binary()
        await self._end_process()
        store = await self._lock_store()
        try:  # without an await in it: once `close` has run, no server may start
            address = self._choose_address()
            process = self._spawn(binary, address, store)
        finally:
            forget(store)
        if not await is_ready(process, address):
            raise self._failed_start(process)
        return self._settle(address, process)

    async def _lock_store(self) -> int:
        give_up_at = time.monotonic() + STORE_WITHIN
        while not self._closed.is_set() and time.monotonic() < give_up_at:
            store = try_lock(self._files.store_lock)
            if store is not None:
                return store
            await anyio.sleep(POLL_EVERY)
        raise BrokerUnavailable(
            f'the previous NATS server still uses "{self._files.store}".',
            hint=f"End it: its pid is in {self._files.address}.",
        )

    def _choose_address(self) -> ServerAddress:
        known = self._files.read_address() or self.address
        if known is None:
            return ServerAddress(HOST, free_port(), secrets.token_urlsafe(32))
        if is_free(known.port):
            return known
        chosen = ServerAddress(HOST, free_port(), known.token)
        if self.address is None:
            logger.warning("another program has port %d, using %d", known.port, chosen.port)
        else:
            logger.error(
                "another program took port %d while the embedded server was away; it now listens "
                "on %d, and the processes that were connected must be restarted",
                known.port,
                chosen.port,
            )
        return chosen

    def _spawn(self, binary: Path, address: ServerAddress, store: int) -> WatchedProcess:
        self._files.write_config(address, self._sync_interval)
        command = [str(binary), "-c", str(self._files.config)]
        self._process = WatchedProcess(command, held=store, log=self._files.log)
        return self._process

    def _settle(self, address: ServerAddress, process: WatchedProcess) -> ServerAddress:
        self._files.write_address(address, process.pid)
        self.address = address
        self._ready_at = time.monotonic()
        logger.info("the embedded server listens on %s (pid %d)", address.url, process.pid)
        return address

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.stop()

    async def _let_go(self) -> None:
        await self._end_process()
        lock, self._lock = self._lock, None
        if lock is not None:
            unlock(lock)

    def _failed_start(self, process: WatchedProcess) -> BrokerUnavailable:
        how = "was not ready in time"
        if process.exit_code is not None:
            how = f"ended with exit code {process.exit_code}"
        words = "".join(f"\n    {line}" for line in process.last_words())
        kind = PortTaken if "address already in use" in words else BrokerUnavailable
        return kind(
            f"the embedded NATS server {how}:{words}",
            hint=f"Read {self._files.log}; MEGA_NATS_SERVER names another binary.",
        )

    def _silent_owner(self) -> BrokerUnavailable:
        holder = lock_holder(self._files.lock) or "unknown"
        return BrokerUnavailable(
            f'process {holder} holds "{self._files.lock}", but its NATS server does not answer.',
            hint=f"End that process, or look at {self._files.log}.",
        )


class ServerFiles:
    """The folder of one embedded server. Only the owner writes in it."""

    def __init__(self, home: Path) -> None:
        self.home = home.absolute()
        self.folder = self.home / "nats"
        self.lock = self.folder / "lock"
        self.store_lock = self.folder / "store.lock"
        self.store = self.folder / "store"
        self.address = self.folder / "address.json"
        self.config = self.folder / "server.conf"
        self.log = self.folder / "server.log"

    def prepare(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        ignore = self.home / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")

    def read_address(self) -> ServerAddress | None:
        """Return what the last owner wrote, or None when there is nothing that makes sense."""
        with suppress(FileNotFoundError, msgspec.DecodeError):
            return msgspec.json.decode(self.address.read_bytes(), type=ServerAddress)
        return None

    def write_address(self, address: ServerAddress, pid: int) -> None:
        record = {"host": address.host, "port": address.port, "token": address.token, "pid": pid}
        write_private(self.address, json.dumps(record))

    def write_config(self, address: ServerAddress, sync_interval: str) -> None:
        store, sync = quoted(str(self.store)), quoted(sync_interval)
        lines = [
            f"host: {quoted(address.host)}",
            f"port: {address.port}",
            f"server_name: {quoted(address.name)}",
            f"authorization {{ token: {quoted(address.token)} }}",
            f"jetstream {{ store_dir: {store}, sync_interval: {sync} }}",
        ]
        write_private(self.config, "\n".join(lines) + "\n")

    @contextmanager
    def usable(self) -> Iterator[None]:
        """Turn an error of the file system into one that names the folder."""
        try:
            yield
        except BrokerError:
            raise
        except OSError as error:
            raise BrokerUnavailable(
                f'the embedded NATS server can\'t use the folder "{self.home}": {error}.',
                hint="Make it a folder that this user can write to and that has room.",
            ) from error


async def is_ready(process: WatchedProcess, address: ServerAddress) -> bool:
    """Wait until the process answers or ends; say whether it answered."""
    give_up_at = time.monotonic() + READY_WITHIN
    while process.exit_code is None and time.monotonic() < give_up_at:
        if await answers(address):
            return True
        await anyio.sleep(POLL_EVERY)
    return False


async def answers(address: ServerAddress) -> bool:
    """Say whether the server that has this token listens there, without showing it the token."""
    greeting = b""
    with suppress(OSError, anyio.EndOfStream, anyio.BrokenResourceError):
        with anyio.move_on_after(ANSWER_WITHIN):
            async with await anyio.connect_tcp(address.host, address.port) as stream:
                while b"\n" not in greeting:
                    greeting += await stream.receive()
    return f'"server_name":"{address.name}"'.encode() in greeting


def free_port() -> int:
    for _ in range(PORT_TRIES):
        port = FIRST_PORT + secrets.randbelow(PORT_COUNT)
        if is_free(port):
            return port
    raise BrokerUnavailable(
        f"the embedded NATS server finds no free port on {HOST}.",
        hint="Check that the loopback interface is up, or name a broker.",
    )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As nats-server does, or the closed connections of the last server would count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def backoff(failures: int) -> float:
    return min(LONGEST_BACKOFF, WATCH_EVERY * (2.0**failures - 1))


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def write_private(path: Path, text: str) -> None:
    """Replace a file by one that only this user can read, whole or not at all."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)
