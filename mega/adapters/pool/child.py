"""The worker side: answers calls until its parent closes the connection.

Never imports `mega`: the start of a worker is what a caller waits for after each kill.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple

# Only this form of import takes a loaded module as it is; the others import `mega` first.
from mega.adapters.pool.failures import Failure, failure_of
from mega.adapters.pool.frames import HEAD, Frame, Kind, Part, Settings, encode, receive, size_of
from mega.adapters.pool.guards import arrange, limit
from mega.adapters.pool.logs import LogForwarder
from mega.adapters.pool.mainfile import (
    MainFile,
    StopImport,
    end_import_in_child,
    find_task,
    load_main,
)
from mega.cpu import current_report

__all__ = ["StopImport", "end_import_in_child", "main"]

SMALL = 1 << 16


class Channel:
    """The connection to the parent, for one reader and any number of writing threads."""

    def __init__(self, connection: socket.socket) -> None:
        self.is_closed = False
        self._connection = connection
        self._lock = threading.RLock()
        self._queue: deque[list[Part]] = deque()
        self._is_writing = False

    def receive(self) -> Frame:
        return receive(self._connection)

    def send(self, parts: list[Part]) -> None:
        if self.is_closed:
            return
        with self._lock:
            self._queue.append(parts)
            if self._is_writing:
                return  # a finalizer logs in the middle of a frame of its own thread
            self._is_writing = True
            try:
                while self._queue:
                    self._write(self._queue.popleft())
            finally:
                self._is_writing = False

    def close(self) -> None:
        self.is_closed = True
        self._connection.close()

    def _write(self, parts: list[Part]) -> None:
        if size_of(parts) <= SMALL:
            parts = [b"".join(parts)]
        for part in parts:
            self._connection.sendall(part)


class Call(NamedTuple):
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    context: dict[str, str | int]


class TaskServer:
    """Runs one call at a time and sends what came of it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._logs = LogForwarder(lambda plain: channel.send(encode(Kind.LOG, plain)))
        self._result_limit = 0
        self._calls = 0

    def prepare(self) -> None:
        """Load the app and find every task. Raises: EOFError, when that was in vain."""
        settings = Settings(*self._channel.receive().load())
        try:
            self._load(settings)
        except BaseException as error:
            self._send_failure(Kind.NOT_READY, failure_of(error))
            self._channel.receive()  # the parent is to hear of the reason before the death
        else:
            self._channel.send(encode(Kind.READY))

    def serve(self) -> None:
        """Answer calls. Raises: EOFError when the parent has closed the connection."""
        while True:
            call = self._next_call()
            if call is not None:
                self._run(call)
                del call
                _flush()

    def _report(self, call: int, fraction: float, note: str) -> None:
        self._channel.send(encode(Kind.PROGRESS, (call, fraction, note)))

    def _load(self, settings: Settings) -> None:
        sys.path[:], sys.argv[:] = settings.path, settings.argv
        self._result_limit = settings.result_limit
        limit(memory=settings.memory_limit, nice=settings.nice)
        if settings.main is not None:
            load_main(MainFile(*settings.main), settings.loops)
        _find_all(settings.tasks)
        self._logs.install(settings.log_levels)

    def _next_call(self) -> Call | None:
        frame = self._channel.receive()
        self._calls += 1
        # With its number, for a thread that a task leaves behind may report during another call.
        current_report.set(partial(self._report, self._calls))
        try:
            task, args, kwargs, context = frame.load()
            return Call(find_task(task), args, kwargs, context)
        except BaseException as error:
            self._send_failure(Kind.BAD_CALL, failure_of(error))
            return None

    def _run(self, call: Call) -> None:
        self._logs.context = call.context
        self._channel.send([HEAD.pack(Kind.STARTED, 0, 0)])
        try:
            result = copy_context().run(call.function, *call.args, **call.kwargs)
        except BaseException as error:
            trace = error.__traceback__ and error.__traceback__.tb_next
            self._send_failure(Kind.RAISED, failure_of(error, trace))
        else:
            self._send_result(result)
        finally:
            self._logs.context = {}

    def _send_result(self, result: Any) -> None:
        try:
            parts = encode(Kind.RESULT, result)
            self._check_size(size_of(parts))
        except BaseException as error:
            failure = failure_of(error)
            kind = f"{type(result).__module__}.{type(result).__qualname__}"
            self._send_failure(Kind.BAD_RESULT, failure._replace(kind=kind))
        else:
            self._answer(parts)

    def _send_failure(self, kind: bytes, failure: Failure) -> None:
        self._answer(encode(kind, tuple(failure)))

    def _answer(self, parts: list[Part]) -> None:
        if self._channel.is_closed:
            # A task has forked, and its copy of this process has come back from the task.
            _flush()
            os._exit(0)
        self._channel.send(parts)

    def _check_size(self, size: int) -> None:
        if size > self._result_limit:
            raise OverflowError(f"it takes {size} bytes, the limit is {self._result_limit}")


def main(connection: int, lifeline: int, trace: int) -> None:
    """Serve the parent at the other end of these file descriptors."""
    for descriptor in (connection, lifeline, trace):
        os.set_inheritable(descriptor, False)
    arrange(lifeline=lifeline, trace=trace)
    channel = Channel(socket.socket(fileno=connection))
    # Else a fork would hold the connection open after this process's death, and answer in it.
    os.register_at_fork(after_in_child=channel.close)
    server = TaskServer(channel)
    with suppress(EOFError, ConnectionError):
        server.prepare()
        server.serve()


def _find_all(tasks: tuple[str, ...]) -> None:
    missing = []
    for task in tasks:
        try:
            find_task(task)
        except BaseException as error:
            missing.append(f'"{task}" ({type(error).__name__}: {error})')
    if missing:
        raise LookupError(f"no task {', '.join(missing)}")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
