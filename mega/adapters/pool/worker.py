"""One worker process as the parent sees it: start it, ask it, end it, bury it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import IO

import anyio
from anyio import to_thread
from anyio.lowlevel import checkpoint

from mega.adapters.pool.frames import HEAD, Frame, Kind, Part, unpack_sizes
from mega.adapters.pool.logs import log_again

__all__ = ["DISCONNECTED", "LEAVE_SECONDS", "Worker", "WorkerLost"]

BOOT = Path(__file__).with_name("boot.py")
CHUNK = 1 << 20
SMALL = 1 << 16
MAX_PARTS = 64  # of one sendmsg; far below any IOV_MAX
STACK_BYTES = 20_000
STACK_SECONDS = 0.2
LEAVE_SECONDS = 2.0
LOST_SECONDS = 1.0
DISCONNECTED = "it had closed its connection to the pool"


class WorkerLost(Exception):
    """The process is dead, and has not answered."""


class Worker:
    """A process of its own session, so that no Ctrl-C reaches it and its whole group can be killed.

    Not `anyio.open_process`: that starts a thread per process on asyncio (3.11), and on trio
    starts the process in a thread. `ended_for` says why the pool ended it, or None.
    """

    def __init__(self) -> None:
        self.ended_for: str | None = None
        self.returncode: int | None = None
        self.dead = anyio.Event()
        self.is_busy = False
        self.has_started_call = False
        self.task = ""
        self.calls = 0
        self.stack = ""
        self._buffer = bytearray()
        with ExitStack() as undo:
            self._connection, theirs = map(undo.enter_context, socket.socketpair())
            life, self._lifeline = map(undo.enter_context, _pipe())
            self._trace = undo.enter_context(_trace_file())
            descriptors = (theirs.fileno(), life.fileno(), self._trace.fileno())
            self._process = _launch(descriptors)
            undo.pop_all()
        theirs.close()
        life.close()
        self._connection.setblocking(False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def rss(self) -> int:
        """Return the resident bytes, or 0 where that isn't known."""
        with suppress(OSError), open(f"/proc/{self.pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 0

    async def request(self, parts: Iterable[Part]) -> Frame:
        """Send one frame and return the answer. Raises: WorkerLost."""
        self.is_busy = True
        self.has_started_call = False
        try:
            await self._send(parts)
            return await self._answer()
        except (EOFError, OSError):
            await self._lost()
            raise WorkerLost from None
        finally:
            self.is_busy = False
            if self.dead.is_set():
                self._connection.close()

    def kill(self, reason: str) -> None:
        """Kill the process and all that it has started, unless it is dead."""
        if not self.dead.is_set():
            self.ended_for = self.ended_for or reason
            self._kill_group()

    def leave(self, reason: str) -> None:
        """Let the idle process end by itself, so that its atexit handlers run."""
        self.ended_for = self.ended_for or reason
        self._connection.close()

    async def retire(self, reason: str) -> None:
        with anyio.CancelScope(shield=True):
            self.leave(reason)
            with anyio.move_on_after(LEAVE_SECONDS):
                await self.dead.wait()
            await self.end(reason)

    async def end(self, reason: str) -> None:
        """Kill the process and return when it is dead; cancellation doesn't hurry that."""
        self.kill(reason)
        with anyio.CancelScope(shield=True):
            await self.dead.wait()

    async def end_with_stack(self, reason: str) -> None:
        """As `end`, with the stack that it was stuck in left in `stack`.

        faulthandler writes it inside the signal handler, so this works for C code that holds
        the GIL.
        """
        with anyio.CancelScope(shield=True):
            before = self._trace_size()
            self._signal(signal.SIGUSR1)
            with anyio.move_on_after(STACK_SECONDS):
                await self._trace_settled(before)
            await self.end(reason)

    async def reap(self, on_death: Callable[[Worker], None]) -> None:
        """Wait for the death of the process and clean up. The only place that waits for it."""
        with anyio.CancelScope(shield=True):
            await _exited(self.pid)
        # Its zombie still keeps the group's number from being used again.
        self._kill_group()
        self.returncode = self._process.wait()
        self._bury()
        on_death(self)

    def _bury(self) -> None:
        self.stack = self._read_trace()
        self._lifeline.close()
        self._trace.close()
        self.dead.set()
        if self.is_busy:
            # What it had sent can still be read, then comes the end, even when a daemon that
            # it left behind holds the other side open.
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        else:
            self._connection.close()

    def _signal(self, number: signal.Signals) -> None:
        if not self.dead.is_set():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _lost(self) -> None:
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(LOST_SECONDS):
                await self.dead.wait()
            await self.end(DISCONNECTED)

    def _trace_size(self) -> int:
        return 0 if self._trace.closed else os.fstat(self._trace.fileno()).st_size

    async def _trace_settled(self, before: int) -> None:
        size = before
        while size == before or size != self._trace_size():
            size = self._trace_size()
            await anyio.sleep(0.005)

    def _read_trace(self) -> str:
        return os.pread(self._trace.fileno(), STACK_BYTES, 0).decode(errors="replace")

    async def _send(self, parts: Iterable[Part]) -> None:
        views = deque(memoryview(part) for part in parts)
        while views:
            try:
                sent = self._connection.sendmsg(islice(views, MAX_PARTS))
            except BlockingIOError:
                await anyio.wait_writable(self._connection)
                continue
            while views and sent >= len(views[0]):
                sent -= len(views.popleft())
            if sent:
                views[0] = views[0][sent:]

    async def _answer(self) -> Frame:
        while True:
            frame = await self._receive()
            if frame.kind == Kind.STARTED:
                self.has_started_call = True
            elif frame.kind == Kind.LOG:
                log_again(frame.load())
            else:
                return frame

    async def _receive(self) -> Frame:
        kind, count, length = HEAD.unpack(await self._read(HEAD.size))
        sizes = unpack_sizes(await self._read(8 * count))
        data = await self._read(length)
        return Frame(kind, data, [await self._read(size) for size in sizes])

    async def _read(self, size: int) -> bytearray:
        if size > SMALL:
            return await self._read_large(size)
        while len(self._buffer) < size:
            try:
                received = self._connection.recv(SMALL)
            except BlockingIOError:
                await anyio.wait_readable(self._connection)
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
                try:
                    received = self._connection.recv_into(view)
                except BlockingIOError:
                    await anyio.wait_readable(self._connection)
                    continue
            if not received:
                raise EOFError
            filled += received
            await checkpoint()  # a fast sender would keep the loop here
        return content

    def _take(self, size: int) -> bytearray:
        taken = self._buffer[:size]
        del self._buffer[:size]
        return taken


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    read_end, write_end = os.pipe()
    return open(read_end, "rb", buffering=0), open(write_end, "wb", buffering=0)


def _trace_file() -> IO[bytes]:
    """Return a file without a name, for faulthandler to write to."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("mega-trace"), "rb+", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _launch(descriptors: tuple[int, ...]) -> subprocess.Popen[bytes]:
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return subprocess.Popen(
        [sys.executable, *flags, str(BOOT), *map(str, descriptors)],
        stdin=subprocess.DEVNULL,
        pass_fds=descriptors,
        start_new_session=True,
    )


async def _exited(pid: int) -> None:
    """Return when the process has ended; its zombie is left for who knows its exit status."""
    try:
        pidfd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        await to_thread.run_sync(_wait_in_thread, pid, limiter=anyio.CapacityLimiter(1))
        return
    try:
        await anyio.wait_readable(pidfd)
    finally:
        os.close(pidfd)


def _wait_in_thread(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
