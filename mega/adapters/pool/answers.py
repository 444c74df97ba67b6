"""From the frames and deaths of workers to results and errors with a text."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from typing import Any

from mega.adapters.pool.failures import Failure, RemoteTraceback, rebuild
from mega.adapters.pool.frames import Frame, Kind, Part, encode
from mega.adapters.pool.loading import load
from mega.adapters.pool.worker import Worker
from mega.errors import (
    CpuArgumentError,
    CpuCrashed,
    CpuPoolBroken,
    CpuRemoteError,
    CpuResultError,
    CpuStartError,
    CpuStopped,
    CpuTimeout,
)

__all__ = [
    "broken",
    "crashed",
    "death_of",
    "died_at_start",
    "encode_call",
    "no_posix",
    "no_process",
    "not_ready",
    "result_of",
    "slow_start",
    "stopped",
    "timed_out",
]

PLAIN_DATA = "Send plain data: numbers, text, lists, dicts, arrays, importable classes."


def encode_call(
    task: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    context: Mapping[str, str | int] | None,
) -> list[Part]:
    """Return the frame of a call. Raises: CpuArgumentError."""
    try:
        return encode(Kind.CALL, (task, args, kwargs, dict(context or {})))
    except Exception as error:
        text = f"an argument of {_quoted(task)} can't be sent to a worker process: {error}."
        raise CpuArgumentError(text, hint=PLAIN_DATA) from error


def result_of(task: str, frame: Frame) -> Any:
    """Return the result, or raise what the task raised, or a CpuError."""
    if frame.kind != Kind.RESULT:
        failure = Failure(*frame.load())
        raise _error(task, frame.kind, failure) from RemoteTraceback(failure.traceback)
    try:
        return load(frame)
    except Exception as error:
        text = f"the result of {_quoted(task)} can't be rebuilt here: {error!r}."
        raise CpuResultError(text, hint=PLAIN_DATA) from error


def _error(task: str, kind: bytes, failure: Failure) -> Exception:
    if kind == Kind.BAD_CALL:
        text = f"a call of {_quoted(task)} can't be rebuilt in the worker process: {_said(failure)}"
        return CpuArgumentError(text, hint=PLAIN_DATA)
    if kind == Kind.BAD_RESULT:
        text = f"the result of {_quoted(task)} can't be sent back: {_said(failure)}"
        return CpuResultError(text, hint=PLAIN_DATA)
    error = rebuild(failure.pickled)
    return error or CpuRemoteError(
        f"{_quoted(task)} raised {_said(failure)}",
        hint="It can't travel as itself. The traceback of the process is in its __cause__.",
    )


def timed_out(task: str, timeout: float | None, worker: Worker) -> CpuTimeout:
    error = CpuTimeout(
        f"{_quoted(task)} ran longer than {timeout} s, so its process {worker.pid} was killed.",
        hint="Where it stood is in the error's stack.",
    )
    error.stack = worker.stack
    return error


def crashed(task: str, worker: Worker) -> CpuCrashed:
    error = CpuCrashed(
        f"{_quoted(task)} lost its process {worker.pid}: {death_of(worker)}.",
        hint="It may have had effects." if worker.has_started_call else "It had not begun.",
    )
    error.returncode = worker.returncode
    error.started = worker.has_started_call
    error.stack = worker.stack
    return error


def stopped(pool: str, reason: str) -> CpuStopped:
    return CpuStopped(f'the pool "{pool}" {reason}.', hint="Call again in the next process.")


def broken(pool: str, recent: int, last: str, retry_after: float) -> CpuPoolBroken:
    error = CpuPoolBroken(
        f'the pool "{pool}" refuses calls: {recent} of its processes crashed (max_restarts), '
        f"the last one because {last}.",
        hint=f"{_again(retry_after)} Find out what kills its tasks.",
    )
    error.retry_after = retry_after
    return error


def no_process(pool: str, error: OSError) -> CpuStartError:
    return CpuStartError(
        f'the pool "{pool}" can\'t start a process: {error}.',
        hint="Look at the limits on processes, open files and memory.",
    )


def no_posix(pool: str) -> CpuStartError:
    return CpuStartError(
        f'the pool "{pool}" can\'t start a process: it needs process groups, which this system '
        "doesn't have.",
        hint="Run the app on Linux or macOS; on Windows, inside WSL.",
    )


def not_ready(pool: str, frame: Frame) -> CpuStartError:
    failure = Failure(*frame.load())
    error = CpuStartError(
        f'a worker process of the pool "{pool}" can\'t load its tasks: {_said(failure)}',
        hint="A task must be found by module and name once the file is imported, "
        "above app.run() in the main file.",
    )
    error.__cause__ = RemoteTraceback(failure.traceback)
    return error


def slow_start(pool: str, limit: float, worker: Worker) -> CpuStartError:
    error = CpuStartError(
        f'a worker process of the pool "{pool}" was still importing after {limit} s.',
        hint="Does a module wait for something, or start a loop of its own, while it is imported?",
    )
    error.__cause__ = RemoteTraceback(worker.stack)
    return error


def died_at_start(pool: str, worker: Worker) -> CpuStartError:
    error = CpuStartError(
        f'a worker process of the pool "{pool}" died while starting: {death_of(worker)}.',
        hint="What it printed before is on stderr.",
    )
    error.__cause__ = RemoteTraceback(worker.stack)
    return error


def death_of(worker: Worker) -> str:
    """Say how the process ended, to go behind a colon."""
    if worker.ended_for is not None:
        return worker.ended_for
    code = worker.returncode or 0
    if code >= 0:
        return f"it exited with status {code}"
    if code == -signal.SIGKILL:
        return "it was killed by SIGKILL, perhaps by the kernel for want of memory"
    return f"it was killed by {_signal_name(-code)}"


def _again(retry_after: float) -> str:
    if retry_after == math.inf:
        return "It takes calls again after a restart of the program."
    return f"It takes calls again in {retry_after:.1f} s."


def _said(failure: Failure) -> str:
    return f"{failure.kind}: {failure.text}" if failure.text else failure.kind


def _quoted(task: str) -> str:
    return f'"{task.removeprefix("__main__:")}"'


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
