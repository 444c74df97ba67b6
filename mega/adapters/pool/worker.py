"""One worker process as the parent sees it: start it, ask it, end it, bury it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

import anyio
from anyio import to_thread
from anyio.lowlevel import checkpoint

from mega.adapters.pool.connection import Connection
from mega.adapters.pool.frames import Frame, Kind, Part
from mega.adapters.pool.logs import log_again
from mega.cpu import Report

__all__ = ["DISCONNECTED", "LEAVE_SECONDS", "Worker", "WorkerLost"]

BOOT = Path(__file__).with_name("boot.py")
STACK_BYTES = 20_000
STACK_SECONDS = 0.2
LEAVE_SECONDS = 2.0
LOST_SECONDS = 1.0
# The processes share the CPUs already; BLAS would start a thread per CPU in each of them.
SINGLE_THREADED = {"OMP_NUM_THREADS": "1"}
DISCONNECTED = "it had closed its connection to the pool"


class WorkerLost(Exception):
    """The process is dead, and has not answered."""


class Worker:
    """A process of its own session, so that no Ctrl-C reaches it and its whole group can be killed.

    Not `anyio.open_process`: that starts a thread per process on asyncio (3.11), and on trio
    starts the process in a thread. `ended_for` says why the pool ended it, or None;
    `start_error`, why it never became ready.
    """

    def __init__(self) -> None:
        self.ended_for: str | None = None
        self.returncode: int | None = None
        self.dead = anyio.Event()
        self.is_busy = False
        self.has_started_call = False
        self.start_error = ""
        self.task = ""
        self.on_progress: Report | None = None
        self.calls = 0
        self.stack = ""
        with ExitStack() as undo:
            ours, theirs = map(undo.enter_context, socket.socketpair())
            life, self._lifeline = map(undo.enter_context, _pipe())
            self._trace = undo.enter_context(_trace_file())
            descriptors = (theirs.fileno(), life.fileno(), self._trace.fileno())
            self._process = _launch(descriptors)
            undo.pop_all()
        theirs.close()
        life.close()
        self._connection = Connection(ours)

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
            await self._connection.send(parts)
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
        try:
            with anyio.CancelScope(shield=True):
                await _exited(self._process)
        except BaseException:
            # No shield holds against the end of `asyncio.run`, which cancels every task.
            self.ended_for = self.ended_for or "cancelled"
            raise
        finally:
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
            # A daemon that it has left behind may hold the other end open.
            self._connection.end()
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

    async def _answer(self) -> Frame:
        while True:
            frame = await self._connection.receive()
            if frame.kind == Kind.STARTED:
                self.has_started_call = True
            elif frame.kind == Kind.LOG:
                log_again(frame.load())
                await checkpoint()  # a task that logs without end would keep the loop here
            elif frame.kind == Kind.PROGRESS:
                call, fraction, note = frame.load()
                if self.on_progress is not None and call == self.calls:
                    self.on_progress(fraction, note)
                await checkpoint()
            else:
                return frame


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    read_end, write_end = os.pipe()
    return open(read_end, "rb", buffering=0), open(write_end, "wb", buffering=0)


def _trace_file() -> IO[bytes]:
    """Return a file without a name, for faulthandler to write to."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("mega-trace"), "rb+", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _launch(descriptors: tuple[int, ...]) -> subprocess.Popen[bytes]:
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # not in typeshed
    return subprocess.Popen(
        [sys.executable, *flags, str(BOOT), *map(str, descriptors)],
        stdin=subprocess.DEVNULL,
        env=SINGLE_THREADED | os.environ,
        pass_fds=descriptors,
        start_new_session=True,
    )


async def _exited(process: subprocess.Popen[bytes]) -> None:
    """Return when the process has ended; its zombie is left for who knows its exit status."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        await to_thread.run_sync(_wait_in_thread, process, limiter=anyio.CapacityLimiter(1))
        return
    try:
        await anyio.wait_readable(pidfd)
    finally:
        os.close(pidfd)


def _wait_in_thread(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()  # macOS before Python 3.13
