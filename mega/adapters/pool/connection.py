"""The parent's end of the connection to a worker process, on either event loop."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice

import anyio
from anyio.lowlevel import checkpoint

from mega.adapters.pool.frames import HEAD, Frame, Part, unpack_sizes

__all__ = ["Connection"]

CHUNK = 1 << 20
SMALL = 1 << 16
MAX_PARTS = 64  # of one sendmsg; far below any IOV_MAX


class Connection:
    """Frames over a socket. Takes one sender and one receiver at a time."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._buffer = bytearray()

    async def send(self, parts: Iterable[Part]) -> None:
        views = deque(memoryview(part) for part in parts)
        while views:
            try:
                sent = self._socket.sendmsg(islice(views, MAX_PARTS))
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
                continue
            while views and sent >= len(views[0]):
                sent -= len(views.popleft())
            if sent:
                views[0] = views[0][sent:]

    async def receive(self) -> Frame:
        """Return the next frame. Raises: EOFError, OSError."""
        kind, count, length = HEAD.unpack(await self._read(HEAD.size))
        sizes = unpack_sizes(await self._read(8 * count))
        data = await self._read(length)
        return Frame(kind, data, [await self._read(size) for size in sizes])

    def end(self) -> None:
        """Let a waiting `receive` read what has come, and then the end."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    async def _read(self, size: int) -> bytearray:
        if size > SMALL:
            return await self._read_large(size)
        while len(self._buffer) < size:
            try:
                received = self._socket.recv(SMALL)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
                continue
            if not received:
                raise EOFError
            self._buffer += received
        return self._take(size)

    async def _read_large(self, size: int) -> bytearray:
        content = bytearray(size)
        taken = self._take(min(size, len(self._buffer)))
        filled = len(taken)
        content[:filled] = taken
        while filled < size:
            with memoryview(content)[filled : filled + CHUNK] as view:
                filled += await self._receive_into(view)
            await checkpoint()  # a fast sender would keep the loop here
        return content

    async def _receive_into(self, view: memoryview) -> int:
        while True:
            try:
                received = self._socket.recv_into(view)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
                continue
            if not received:
                raise EOFError
            return received

    def _take(self, size: int) -> bytearray:
        taken = self._buffer[:size]
        del self._buffer[:size]
        return taken
