"""Ten schedulers with clocks that disagree, killed and started again: each tick runs once."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random

from tests.apps.program import clean_environment
from tests.nats_server import NatsServer
from tests.waiting import until_sync

SECONDS = float(os.environ.get("CHAOS_SECONDS", "60"))
SEED = os.environ.get("CHAOS_SEED") or secrets.token_hex(3)
APP = Path(__file__).with_name("ticking.py")
SCHEDULERS, MOST_SKEW = 10, 0.9
MEAN_GAP, LONGEST_ABSENCE = 0.7, 2.0
#: A process that was killed so long before or after a tick may have claimed it.
NEAR = MOST_SKEW + 1.5


class Scheduler:
    """The place of one process; its clock is as wrong in each of its lives."""

    def __init__(self, number: int, skew: float, home: Path, url: str) -> None:
        self.name = f"scheduler-{number}"
        self.lives = 0
        self._skew, self._home, self._url = skew, home, url
        self._process: subprocess.Popen[bytes] | None = None
        self.back_at = 0.0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self.lives += 1
        environment = clean_environment(self._home) | {
            "CHAOS_HISTORY": str(self._home / "history"),
            "CHAOS_WORKER": f"{self.name}.{self.lives}",
            "CHAOS_SKEW": str(self._skew),
        }
        with (self._home / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(APP), self._url], env=environment, stdout=log, stderr=log
            )

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)


def test_each_tick_runs_once(tmp_path: Path) -> None:
    """But for those whose claimer was killed; how many is in the message of a failure."""
    draw, kills = Random(SEED), list[float]()
    with NatsServer() as server, ExitStack() as stack:
        skews = [draw.uniform(-MOST_SKEW, MOST_SKEW) for _ in range(SCHEDULERS)]
        url = f"nats://127.0.0.1:{server.port}"
        places = [Scheduler(n, skew, tmp_path, url) for n, skew in enumerate(skews)]
        for place in places:
            stack.callback(place.end)
            place.start()
        until_sync(lambda: len(lines(tmp_path, "ready")) >= SCHEDULERS, within=60, what="all")
        begin = time.time()
        harass(places, kills, draw)
        end = time.time()
        for place in places:
            place.end(signal.SIGTERM)

    starts, ends = (Counter(lines(tmp_path, what)) for what in ("start", "end"))
    ticks = range(int(begin) + 2, int(end) - 2)
    cut_off = [tick for tick in ticks if not ends[tick]]
    told = f"seed {SEED}: {len(kills)} kills, {len(cut_off)} of {len(ticks)} ticks were cut off"
    assert [] == [tick for tick, count in starts.items() if count > 1], told
    unexplained = [tick for tick in cut_off if not any(abs(kill - tick) < NEAR for kill in kills)]
    assert [] == unexplained, told
    assert len(cut_off) < len(ticks) / 4, told


def harass(places: list[Scheduler], kills: list[float], draw: Random) -> None:
    """Kill one after the other, and let each come back a moment later."""
    until = time.monotonic() + SECONDS
    next_at = time.monotonic()
    while (now := time.monotonic()) < until:
        time.sleep(0.02)
        for place in places:
            if not place.is_running and now >= place.back_at:
                place.start()
        if now >= next_at:
            next_at = now + draw.expovariate(1 / MEAN_GAP)
            place = draw.choice(places)
            if place.is_running:
                kills.append(time.time())
                place.end()
                place.back_at = now + draw.uniform(0, LONGEST_ABSENCE)


def lines(home: Path, what: str) -> list[int]:
    """Return the ticks of the lines of that kind."""
    path = home / "history"
    text = path.read_text() if path.exists() else ""
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{what} ")]
