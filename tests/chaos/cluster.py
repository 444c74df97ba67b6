"""The processes of a chaos run: one nats-server, three workers, and a proxy before each client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from tests.apps.program import clean_environment
from tests.chaos.eavesdrop import Eavesdropper
from tests.chaos.history import ACK_WAIT, History, Life
from tests.nats_server import NatsServer
from tests.proxy import Proxy, bound_socket

__all__ = ["STOP_WITHIN", "Cluster", "Slot"]

APP = Path(__file__).with_name("worker.py")
WORKERS = 3
DRAIN_TIMEOUT = 2.0
STOP_WITHIN = 20.0


class Slot:
    """The place of one worker: its process, which comes and goes, and its proxy, which stays."""

    def __init__(self, name: str, proxy: Proxy, home: Path, history: History) -> None:
        self.name = name
        self.proxy = proxy
        self._home = home
        self._history = history
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: threading.Thread | None = None
        self.life: Life | None = None
        self.is_awaited = False

    @property
    def is_running(self) -> bool:
        return self.life is not None and self.life.code is None

    @property
    def log(self) -> Path:
        return self._home / f"{self.name}.log"

    def start(self) -> None:
        """Start a new process."""
        self._count += 1
        self.is_awaited = False
        life = Life(f"{self.name}.{self._count}", self.name, time.monotonic())
        environment = clean_environment(self._home) | {
            "CHAOS_HISTORY": str(self._home / "history"),
            "CHAOS_WORKER": life.worker,
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(APP), *self._arguments()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.life = self._history.lives[life.worker] = life
        self._reaper = threading.Thread(target=reap, args=(self._process, life), daemon=True)
        self._reaper.start()

    def _arguments(self) -> list[str]:
        broker = f"nats://127.0.0.1:{self.proxy.port}?ack_wait={ACK_WAIT:g}"
        drain = f"--drain-timeout={DRAIN_TIMEOUT:g}"
        return ["--role=worker", f"--broker={broker}", drain]

    def end(self, *, orderly: bool = False) -> None:
        """Kill the process, or tell it to stop; it ends when it ends."""
        if self.is_running:
            assert self.life
            self.life.how = "stop" if orderly else "kill"
            self.signal(signal.SIGTERM if orderly else signal.SIGKILL)

    def give_up(self, life: Life | None) -> None:
        """Kill a process that was told to stop and still runs."""
        if self.life is life and self.is_running:
            self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it still runs."""
        assert self._process
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def wait(self) -> None:
        """Return once the process has ended; after a while it is killed."""
        if self._reaper is not None:
            self._reaper.join(STOP_WITHIN)
            self.give_up(self.life)
            self._reaper.join(STOP_WITHIN)


class Cluster:
    """Leaving the block kills all of it."""

    def __init__(self, home: Path, history: History) -> None:
        self.home = home
        self.server = NatsServer()
        self._stack = ExitStack()
        self._history = history
        self._passing = Eavesdropper(history.passings)

    def __enter__(self) -> Cluster:
        # While the server is dead nobody else may be given its port.
        self._stack.callback(bound_socket(self.server.port).close)
        self._stack.enter_context(self.server)
        self.producer = self._proxy("producer")
        names = [f"worker-{number}" for number in range(1, WORKERS + 1)]
        self.slots = [Slot(name, self._proxy(name), self.home, self._history) for name in names]
        for slot in self.slots:
            self._stack.callback(kill, slot)
            slot.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def stop(self) -> None:
        """End all workers in order, by force after a while."""
        for slot in self.slots:
            slot.end(orderly=True)
        for slot in self.slots:
            slot.wait()

    def signal_server(self, number: signal.Signals) -> None:
        os.kill(self.server.pid, number)

    def _proxy(self, name: str) -> Proxy:
        tap = partial(self._passing.note, name)
        return self._stack.enter_context(Proxy(self.server.port, tap=tap))


def kill(slot: Slot) -> None:
    slot.end()
    slot.wait()


def reap(process: subprocess.Popen[bytes], life: Life) -> None:
    """Note when and how a process ended."""
    code = process.wait()
    life.end = time.monotonic()
    life.code = code
