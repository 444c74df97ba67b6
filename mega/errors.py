"""Every error that mega raises, as one tree under `MegaError`.

An error says what happened, why, and what to do, in at most six lines.
This module knows nothing of the rest of the package.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from traceback import format_exception
from types import TracebackType
from typing import ClassVar

__all__ = [
    "AppLoadedTwice",
    "BadCron",
    "BadHandler",
    "BadOption",
    "BadSubject",
    "BadTimezone",
    "BlockingCall",
    "BrokerError",
    "BrokerFull",
    "BrokerTooOld",
    "BrokerUnavailable",
    "CpuArgumentError",
    "CpuCrashed",
    "CpuError",
    "CpuPoolBroken",
    "CpuQueueFull",
    "CpuRemoteError",
    "CpuResultError",
    "CpuStartError",
    "CpuStopped",
    "CpuTimeout",
    "DeclarationError",
    "DuplicateName",
    "JobError",
    "JobFailedError",
    "LockBackendError",
    "LockError",
    "LockLostError",
    "MegaError",
    "NotConnected",
    "PayloadError",
    "PayloadInvalid",
    "PayloadNotSerializable",
    "PayloadTooLarge",
    "ResultExpired",
    "StreamMismatch",
    "UnknownEvent",
    "UnknownLock",
    "UnknownRole",
    "UnknownSubject",
    "capped_traceback",
    "did_you_mean",
    "one_line",
    "only_mega_error",
    "report",
    "sole_error",
    "text_of",
]

MAX_REPORT_LINES = 6
MAX_LINE = 500
TEXT_LIMIT = 8 * 1024
# JSON would write a control character as six; these also do nothing to a terminal.
PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"}


class MegaError(Exception):
    """The root of the tree.

    `code` names the kind for programs, `hint` says what to do, and `where` holds
    the places in the user's code that it is about (`file:line name`).
    """

    code: ClassVar[str] = "mega.error"

    def __init__(self, message: str, *, hint: str = "", where: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.where = where

    def __str__(self) -> str:
        parts = [str(self.args[0]), self.where, self.hint]
        return "\n  ".join(part for part in parts if part)


class DeclarationError(MegaError):
    """A mistake in a declaration, found on the decorator line or before any I/O."""

    code = "declaration"


class DuplicateName(DeclarationError):
    """Two declarations use one name."""

    code = "declaration.duplicate_name"


class BadSubject(DeclarationError, ValueError):
    """A job subject that NATS or mega can't use."""

    code = "declaration.bad_subject"


class BadCron(DeclarationError, ValueError):
    """A cron expression that isn't in the dialect, or that never fires."""

    code = "declaration.bad_cron"


class BadTimezone(DeclarationError, ValueError):
    """A time zone that isn't in the IANA database."""

    code = "declaration.bad_timezone"


class BadOption(DeclarationError, ValueError):
    """An option with a value outside its range, or an option that doesn't exist."""

    code = "declaration.bad_option"


class BadHandler(DeclarationError, TypeError):
    """A function that can't serve as a handler."""

    code = "declaration.bad_handler"


class UnknownEvent(DeclarationError, ValueError):
    """An event name that doesn't exist."""

    code = "declaration.unknown_event"


class UnknownLock(DeclarationError, ValueError):
    """A lock store that the app doesn't declare."""

    code = "declaration.unknown_lock"


class UnknownRole(DeclarationError, ValueError):
    """A role that doesn't exist."""

    code = "declaration.unknown_role"


class AppLoadedTwice(DeclarationError):
    """One file was executed under two module names, so two Apps hold half the handlers each."""

    code = "declaration.app_loaded_twice"


class NotConnected(MegaError, RuntimeError):
    """Enqueue, or a call, outside `run()` and `async with app`."""

    code = "app.not_connected"


class BlockingCall(MegaError, RuntimeError):
    """A call that would block the event loop that runs in this thread, or one of another loop."""

    code = "app.blocking_call"


class PayloadError(MegaError, TypeError):
    """A payload that can't be sent or read."""

    code = "payload"


class PayloadNotSerializable(PayloadError):
    """A payload that would not come out at the worker as it went in."""

    code = "payload.not_serializable"


class PayloadInvalid(PayloadError):
    """A payload that isn't of the type that the handler declares."""

    code = "payload.invalid"


class PayloadTooLarge(PayloadError):
    """Headers and payload together are over the server's limit."""

    code = "payload.too_large"


class BrokerError(MegaError, ConnectionError):
    """The broker refused or did not answer."""

    code = "broker"


class BrokerUnavailable(BrokerError):
    """The broker can't be reached, or did not confirm in time."""

    code = "broker.unavailable"


class BrokerFull(BrokerUnavailable):
    """The broker has no room left for the job; those that it has are kept."""

    code = "broker.full"


class UnknownSubject(BrokerError):
    """Nothing keeps jobs of that subject: no worker of its app has started on this broker."""

    code = "broker.unknown_subject"


class BrokerTooOld(BrokerError):
    """The server lacks what the queue is built on."""

    code = "broker.too_old"


class StreamMismatch(BrokerError):
    """A stream or consumer exists with settings under which jobs could be lost."""

    code = "broker.stream_mismatch"


class JobError(MegaError):
    """A job did not give a result."""

    code = "job"


class JobFailedError(JobError):
    """The job ended in an error; its text is in the message."""

    code = "job.failed"


class ResultExpired(JobError):
    """Nothing is known of the job: its record ran out, or it never had one."""

    code = "job.result_expired"


class LockError(MegaError):
    """A schedule's claim or lease went wrong."""

    code = "lock"


class LockBackendError(LockError):
    """The lock store can't answer.

    `ambiguous` is true when the store may have taken the claim and only the answer was lost.
    """

    code = "lock.backend"
    ambiguous = False


class LockLostError(LockError):
    """Another owner holds the lease that this run had."""

    code = "lock.lost"


class CpuError(MegaError):
    """A CPU task did not give a result."""

    code = "cpu"


class CpuTimeout(CpuError, TimeoutError):
    """The task ran longer than its `timeout`; its process was killed. `stack` is where it stood."""

    code = "cpu.timeout"
    stack = ""


class CpuCrashed(CpuError):
    """The worker process died. `started` is false when the task had not begun."""

    code = "cpu.crashed"
    returncode: int | None = None
    started = True
    stack = ""


class CpuStopped(CpuError):
    """The pool is stopping, or stopped before the call was done."""

    code = "cpu.stopped"


class CpuPoolBroken(CpuError):
    """Too many workers crashed; the pool refuses calls for `retry_after` seconds."""

    code = "cpu.pool_broken"
    retry_after: float = 0.0


class CpuQueueFull(CpuError):
    """`max_queue` calls are waiting already."""

    code = "cpu.queue_full"


class CpuStartError(CpuError):
    """A worker process could not load the app or find a task."""

    code = "cpu.start"


class CpuArgumentError(CpuError, TypeError):
    """An argument can't be sent to a worker process."""

    code = "cpu.argument"


class CpuResultError(CpuError, TypeError):
    """What the task returned can't be sent back."""

    code = "cpu.result"


class CpuRemoteError(CpuError):
    """The task raised something that can't travel as itself.

    SystemExit, KeyboardInterrupt and StopIteration always arrive in this form.
    """

    code = "cpu.remote"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `Did you mean "x"?`, or the whole list when nothing is near, or an empty text."""
    names = sorted(known)
    # By its letters alone "retry" would mean "retry_on".
    plurals = [name for name in names if name in (f"{word}s", f"{word[:-1]}ies")]
    near = plurals or get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f'Did you mean "{near[0]}"?'
    return f"Known: {', '.join(names)}." if names else ""


def sole_error(error: BaseException) -> BaseException:
    """Return the error inside exception groups of one, as task groups wrap it."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def only_mega_error(error: BaseException) -> MegaError | None:
    """Return the one `MegaError` in `error`, looking inside exception groups, or None."""
    error = sole_error(error)
    return error if isinstance(error, MegaError) else None


def report(error: MegaError) -> str:
    """Return the text that a terminal shows: at most six lines, no traceback."""
    lines = f"mega: {type(error).__name__}: {error}".splitlines()
    return "\n".join(lines[:MAX_REPORT_LINES])


def text_of(error: BaseException) -> str:
    """Return the error's text, its middle cut out above 8 KiB; an error of any kind has one."""
    try:
        return _capped(str(error))
    except Exception:
        return "its text can't be had, because its __str__ raises."


def capped_traceback(error: BaseException, trace: TracebackType | None = None) -> str:
    """Return `trace`, or the error's own, as text, its middle cut out above 8 KiB."""
    try:
        return _capped("".join(format_exception(type(error), error, trace or error.__traceback__)))
    except Exception as fault:
        return f"its traceback can't be had: {one_line(fault)}"


def _capped(text: str) -> str:
    """Return `text` as UTF-8 can carry it, its middle cut out above 8 Ki characters."""
    if len(text) <= TEXT_LIMIT and len(sendable := _sendable(text)) <= TEXT_LIMIT:
        return sendable
    half = TEXT_LIMIT // 2
    head, tail = _sendable(text[:half])[:half], _sendable(text[-half:])[-half:]
    return f"{head}\n[the middle of {len(text)} characters left out]\n{tail}"


def _sendable(text: str) -> str:
    # The name of a file may hold a lone surrogate.
    return text.translate(PICTURES).encode("utf-8", "backslashreplace").decode("utf-8")


def one_line(error: BaseException) -> str:
    """Return `Type: text` of an error, as one line of at most 500 characters."""
    text = " ".join(f"{type(error).__name__}: {text_of(error)}".split())
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 1]}…"
