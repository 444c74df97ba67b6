"""The processes of a trial, and what the kernel says of them. Linux only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.order import Order

__all__ = ["Elsewhere", "Worker", "own_memory", "run_calls", "run_producer"]

TICKS = os.sysconf("SC_CLK_TCK")
PRODUCER_WITHIN = 3600.0
LAST_WORDS = 1500


class Worker:
    """A worker process. Leaving the block kills it, as its server goes too."""

    def __init__(self, order: Order, log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(command(order), stdout=output, stderr=output)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def check(self) -> None:
        """Raise RuntimeError with its last words if it has ended by itself."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the worker has ended: {self._log.read_text()[-LAST_WORDS:]}")

    def cpu(self) -> float:
        """Return the CPU seconds that it has used."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / TICKS

    def memory(self) -> float:
        """Return the MB that it holds; see `memory_of`."""
        return memory_of(str(self._process.pid))


def run_producer(order: Order) -> dict[str, Any]:
    """Run a producer to its end and return what it measured. Raises: RuntimeError."""
    return answer_of("producer", command(order))


def run_calls(contender: str, calls: int, loop: str) -> dict[str, Any]:
    """Run a process that calls CPU tasks and return what it measured. Raises: RuntimeError."""
    return answer_of(
        "caller", [sys.executable, "-m", "benchmarks.calls", contender, str(calls), loop]
    )


def answer_of(who: str, words: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=PRODUCER_WITHIN, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the {who} failed: {done.stderr[-LAST_WORDS:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def command(order: Order) -> list[str]:
    return [sys.executable, "-m", "benchmarks.child", order.to_text()]


def own_memory() -> float:
    """Return the MB that this process holds; see `memory_of`."""
    return memory_of("self")


def memory_of(pid: str) -> float:
    """Return the resident MB of a process without mapped files, of which the record is one."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this kernel doesn't say RssAnon")


class Elsewhere:
    """How many CPUs the rest of the machine has used since this was made.

    Processes of ours count as ours once they have been waited for.
    """

    def __init__(self) -> None:
        self._at = self._now()

    def cpus(self) -> float:
        """Return the mean number of busy CPUs."""
        wall, busy, own = (now - then for now, then in zip(self._now(), self._at, strict=True))
        return max(0.0, busy - own) / wall

    def _now(self) -> tuple[float, float, float]:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        busy = sum(map(int, fields[:3] + fields[5:8])) / TICKS
        return time.monotonic(), busy, sum(os.times()[:4])
