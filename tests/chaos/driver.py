"""A chaos run: load, faults, a time to settle, and the check of every job's history.

`python -m tests.chaos.driver --minutes 60 --seed 7` goes on for an hour, in rounds of a few
minutes, each of which is checked.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

import anyio

from tests.chaos.audit import audit
from tests.chaos.check import check
from tests.chaos.cluster import Cluster
from tests.chaos.faults import Faults, Sentinel
from tests.chaos.history import ACK_WAIT, History
from tests.chaos.load import GIVE_UP_AFTER, KINDS, Load
from tests.chaos.report import counts, describe, digest, journal

__all__ = ["Chaos", "main"]

ROUND = 120.0
SETTLE_WITHIN = 45.0
LOOK_EVERY = 0.5
SHORTEST_ROUND = 5.0


@dataclass
class Chaos:
    """One run on one cluster, whose files are in `home`."""

    seed: str
    home: Path
    without: Collection[str] = ()
    history: History = field(default_factory=History)
    reports: list[str] = field(default_factory=list)
    jobs: int = 0

    def run(self, seconds: float) -> None:
        """Go on for so long; `reports` are then those of all broken histories."""
        end, count = time.monotonic() + seconds, 0
        with Cluster(self.home, self.history) as cluster, Sentinel(self.history):
            while (left := end - time.monotonic()) > SHORTEST_ROUND:
                count += 1
                self._round(cluster, f"{self.seed}.{count}", min(left, ROUND))
                tell(f"round {count}: {counts(self.history)}; {len(self.reports)} findings")
            cluster.stop()
            self._check("the end")
        tell(f"{self.jobs} jobs in {count} rounds, {len(self.reports)} findings")

    def _round(self, cluster: Cluster, seed: str, seconds: float) -> None:
        self.history.begin_round()
        url = f"nats://127.0.0.1:{cluster.producer.port}?ack_wait={ACK_WAIT:g}"
        placed = self.history.placed
        load = Load(seed, url, placed, seconds=seconds, without=self.without)
        faults = Faults(seed, cluster, self.history.faults)
        load.start()
        faults.run(seconds)
        load.join(GIVE_UP_AFTER)
        self._settle(cluster, faults)
        anyio.run(self._read, cluster.server.port)
        self.jobs += len(placed)
        self._check(seed)

    def _settle(self, cluster: Cluster, faults: Faults) -> None:
        """Let the workers finish, undisturbed, what is stored."""
        give_up_at = time.monotonic() + SETTLE_WITHIN
        self.history.left = ["not asked"]
        while self.history.left and time.monotonic() < give_up_at:
            faults.rest(LOOK_EVERY)
            self.history.left = anyio.run(self._left, cluster.server.port)

    async def _left(self, port: int) -> list[str]:
        """Return a line for each stream that holds jobs, and for each run that goes on."""
        self.history.read_runs(self.home / "history")
        async with audit(port) as server:
            return await server.left() or self.history.going_on()

    def _check(self, name: str) -> None:
        for finding in check(self.history):
            report = describe(self.history, finding)
            if report not in self.reports:
                self.reports.append(report)
                tell(report.partition("\n")[0])
        (self.home / f"journal {name}").write_text(journal(self.history))

    async def _read(self, port: int) -> None:
        self.history.read_runs(self.home / "history")
        async with audit(port) as server:
            self.history.add_letters(await server.letters())
            for placed in self.history.placed.values():
                if placed.is_tracked:
                    self.history.states[placed.job_id] = await server.state(placed.job_id)


def tell(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)  # noqa: T201 - a command's output


def main() -> int:
    parser = argparse.ArgumentParser(description="Break everything, and see that no job is lost.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", default=secrets.token_hex(3))
    parser.add_argument("--without", action="append", default=[], choices=KINDS)
    options = parser.parse_args()
    home = Path(mkdtemp(prefix="mega-chaos-"))
    logging.basicConfig(filename=home / "driver.log", format="%(asctime)s %(name)s %(message)s")
    tell(f"seed {options.seed}, files in {home}")
    chaos = Chaos(options.seed, home, options.without)
    chaos.run(60 * options.minutes)
    tell(digest(chaos.reports) or "no history is broken")
    return 1 if chaos.reports else 0


if __name__ == "__main__":
    sys.exit(main())
