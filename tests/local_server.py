"""A server for tests: a process of its own, with its own folder, on a free loopback port."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import ClassVar, Self

__all__ = ["LocalServer", "free_port"]

WITHIN = 10.0


def free_port() -> int:
    """Return a loopback port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LocalServer(ABC):
    """What all servers have. `restart` comes back on the same port and with the same folder."""

    name: ClassVar[str]
    #: What is sent to a server that waits for others to speak first.
    greeting: ClassVar[bytes] = b""

    def __init__(self, *, port: int | None = None) -> None:
        self.home = Path(mkdtemp(prefix=f"mega-{self.name}-"))
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def pid(self) -> int:
        assert self._process, "the server does not run"
        return self._process.pid

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command line, with all that it needs in place."""

    def start(self) -> None:
        """Start the process; return once it answers."""
        command = self.command()
        with (self.home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )
        self._wait_until_answering()

    def stop(self) -> None:
        """End the process in order, if it runs."""
        if self._process:
            self._process.terminate()
            self._process.wait(WITHIN)
            self._process = None

    def kill(self) -> None:
        """End the process with SIGKILL, also when it is paused."""
        if self._process:
            self._process.kill()
            self._process.wait(WITHIN)
            self._process = None

    def restart(self) -> None:
        """Start again after `kill` or `stop`; a server that still runs is killed first."""
        self.kill()
        self.start()

    def _wait_until_answering(self) -> None:
        deadline = time.monotonic() + WITHIN
        while time.monotonic() < deadline:
            assert self._process
            assert self._process.poll() is None, (self.home / "server.log").read_text()
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                probe.sendall(self.greeting)
                # A port may open before all is recovered; the first answer comes after that.
                if probe.recv(4):
                    return
            time.sleep(0.01)
        raise TimeoutError(f"{self.name} did not answer on {self.port} within {WITHIN:g} s")
