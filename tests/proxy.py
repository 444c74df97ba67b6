"""A TCP proxy before a nats-server that cuts, holds or loses what passes, from any test.

It runs in a thread of its own. It knows where a NATS message ends, and nothing else of NATS.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal, TypeAlias, TypeVar

__all__ = ["Direction", "Proxy", "Tap", "bound_socket"]

#: `up` is what clients send to the server, `down` what the server sends to them.
Direction: TypeAlias = Literal["up", "down"]
#: Is told of each message when the server has sent it, or is about to get it.
Tap: TypeAlias = Callable[[Direction, bytes], None]
T = TypeVar("T")

BOTH: tuple[Direction, Direction] = ("up", "down")
WITH_PAYLOAD = (b"PUB", b"HPUB", b"MSG", b"HMSG")
LINE_END = b"\r\n"
LONGEST_LINE = 2**20
WITHIN = 10.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Proxy:
    """Listens on `port`, a free one, and passes all on to `target` on this machine.

    Its methods may be called from any thread, with an event loop or without; what they say
    holds when they return. `held` counts the messages that a blackhole has kept so far; behind
    each may be others that nobody has read yet.
    """

    def __init__(self, target: int, *, tap: Tap | None = None) -> None:
        self.held = 0
        self.dropped: Counter[bytes] = Counter()
        self._tap = tap or (lambda direction, message: None)
        self._target = target
        self._reserved = bound_socket(0)
        self.port = int(self._reserved.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._open = closed_gates()
        self._drops: list[tuple[Direction, bytes, int]] = []

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._call(self._heal())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.refuse()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WITHIN)
        self._loop.close()
        self._reserved.close()

    @property
    def links(self) -> int:
        """How many connections are open."""
        return len(self._links)

    def cut(self) -> None:
        """Reset every open connection; new ones may come at once."""
        self._call(self._cut())

    def refuse(self) -> None:
        """Reset every open connection, and refuse new ones until `heal`."""
        self._call(self._refuse())

    def blackhole(self, direction: Direction | None = None) -> None:
        """Pass nothing on, in one direction or in both, until `heal`; connections stay open.

        What is sent meanwhile is held and passed on later, as TCP does after a partition;
        `cut` loses it.
        """
        self._call(self._hold(BOTH if direction is None else (direction,)))

    def forget(self) -> None:
        """Pass nothing on of what is open now, for ever; new connections are as before.

        So a firewall forgets a connection that idled: both ends take it for open.
        """
        self._call(self._forget())

    def drop(self, pattern: bytes, *, direction: Direction = "down", times: int = 1) -> None:
        """Lose the next `times` whole messages in which the regex `pattern` is found.

        The first PubAck is `drop(rb'"stream":')`. `dropped[pattern]` counts them.
        """
        self._call(self._arm(pattern, direction, times))

    def heal(self) -> None:
        """Let everything pass again, what was held before first. Drops stay armed."""
        self._call(self._heal())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WITHIN)

    async def _cut(self) -> None:
        links = list(self._links)
        for link in links:
            link.cancel()
        if links:
            await asyncio.wait(links)

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._cut()

    async def _hold(self, directions: tuple[Direction, ...]) -> None:
        for direction in directions:
            self._open[direction].clear()

    async def _forget(self) -> None:
        self._open, forgotten = closed_gates(), self._open
        for direction in BOTH:
            if forgotten[direction].is_set():
                self._open[direction].set()
            forgotten[direction].clear()

    async def _heal(self) -> None:
        for gate in self._open.values():
            gate.set()
        if self._server is None:
            listener = bound_socket(self.port)
            self._server = await asyncio.start_server(
                self._accepted, sock=listener, limit=LONGEST_LINE
            )

    async def _arm(self, pattern: bytes, direction: Direction, times: int) -> None:
        self._drops += [(direction, pattern, times)]

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        try:
            await self._link(reader, writer)
            writer.close()
        except asyncio.CancelledError:
            abort(writer)  # cut; the stream protocol would report a cancellation as an error
        finally:
            self._links.discard(link)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(
                "127.0.0.1", self._target, limit=LONGEST_LINE
            )
        except OSError:
            return
        pumps = [
            asyncio.create_task(self._pump(reader, far_writer, "up")),
            asyncio.create_task(self._pump(far_reader, writer, "down")),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            far_writer.close()
        except asyncio.CancelledError:
            abort(far_writer)
            raise
        finally:
            for pump in pumps:
                pump.cancel()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        gate = self._open[direction]
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                message = await read_message(reader)
                if direction == "down":
                    self._tap(direction, message)
                self.held += not gate.is_set()
                while not gate.is_set():
                    await gate.wait()
                if direction == "up":
                    self._tap(direction, message)
                if not self._is_lost(message, direction):
                    writer.write(message)
                    await writer.drain()

    def _is_lost(self, message: bytes, direction: Direction) -> bool:
        for index, (where, pattern, times) in enumerate(self._drops):
            if where == direction and re.search(pattern, message):
                self.dropped[pattern] += 1
                self._drops[index : index + 1] = [(where, pattern, times - 1)] * (times > 1)
                return True
        return False


async def read_message(reader: asyncio.StreamReader) -> bytes:
    """Return the next line of the NATS protocol, with the payload that belongs to it."""
    line = await reader.readuntil(LINE_END)
    words = line.split()
    if words and words[0].upper() in WITH_PAYLOAD:
        return line + await reader.readexactly(int(words[-1]) + len(LINE_END))
    return line


def closed_gates() -> dict[Direction, asyncio.Event]:
    return {direction: asyncio.Event() for direction in BOTH}


def bound_socket(port: int) -> socket.socket:
    """Return a socket that holds a loopback port.

    A port that is held while nobody listens on it is refused to clients and never taken by
    the system: else one that connects to it again and again would one day be given that very
    port to connect from, and reach itself.
    """
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def abort(writer: asyncio.StreamWriter) -> None:
    """Reset the connection; what waits to be sent or read is lost."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()
