"""Ten schedulers with clocks that disagree, killed and started again: each tick runs once.

A run is excused by the death of its own process, in it or right after its claim, and by no other.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Coroutine
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeAlias, TypeVar

import nats
from nats.aio.msg import Msg

from tests.apps.program import clean_environment
from tests.nats_server import NatsServer
from tests.waiting import until_sync

T = TypeVar("T")
Lines: TypeAlias = defaultdict[int, list[str]]

SECONDS = float(os.environ.get("CHAOS_SECONDS", "60"))
SEED = os.environ.get("CHAOS_SEED") or secrets.token_hex(3)
APP = Path(__file__).with_name("ticking.py")
SCHEDULERS, MOST_SKEW = 10, 0.9
MEAN_GAP, LONGEST_ABSENCE = 0.7, 2.0
#: From the claim of a tick to the first line of its run, on a busy machine.
NOT_BEGUN_YET = 0.5


class Death(NamedTuple):
    """A process that was killed. `worker` is its name in the history."""

    pid: int
    worker: str
    at: float


class Asked(NamedTuple):
    """A claim that a process asked for, and perhaps got."""

    pid: int
    tick: int
    at: float


class Claims:
    """Listens to all claims that are asked for, by a connection of its own."""

    def __init__(self, url: str) -> None:
        self.asked: list[Asked] = []
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Claims:
        self._thread.start()
        self._nc = self._call(nats.connect(self._url))
        self._call(self._nc.subscribe("$KV.MEGA_CLAIMS.>", cb=self._hear))
        self._call(self._nc.flush())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._call(self._nc.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _hear(self, message: Msg) -> None:
        record = json.loads(message.data or b"{}")
        if record.get("tick") and record.get("claimed_by"):
            tick = datetime.fromisoformat(record["tick"])
            pid = record["claimed_by"].partition("/")[0].rpartition(":")[2]
            self.asked.append(Asked(int(pid), int(tick.timestamp()), time.time()))

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


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

    def end(self, number: signal.Signals = signal.SIGKILL) -> Death | None:
        """End its process, and return which one that was."""
        if self._process is None:
            return None
        at = time.time()
        self._process.send_signal(number)
        self._process.wait(30)
        return Death(self._process.pid, f"{self.name}.{self.lives}", at)


def test_each_tick_runs_once(tmp_path: Path) -> None:
    """But for those whose claimer was killed; how many is in the message of a failure."""
    draw = Random(SEED)
    with NatsServer() as server, ExitStack() as stack:
        url = f"nats://127.0.0.1:{server.port}"
        claims = stack.enter_context(Claims(url))
        skews = [draw.uniform(-MOST_SKEW, MOST_SKEW) for _ in range(SCHEDULERS)]
        places = [Scheduler(n, skew, tmp_path, url) for n, skew in enumerate(skews)]
        for place in places:
            stack.callback(place.end)
            place.start()
        until_sync(lambda: len(lines(tmp_path, "ready")[0]) >= SCHEDULERS, within=60, what="all")
        begin = time.time()
        deaths = harass(places, draw)
        end = time.time()
        for place in places:
            place.end(signal.SIGTERM)

    starts, ends = lines(tmp_path, "start"), lines(tmp_path, "end")
    ticks = range(int(begin) + 2, int(end) - 2)
    cut_off = [tick for tick in ticks if tick not in ends]
    told = f"seed {SEED}: {len(deaths)} kills, {len(cut_off)} of {len(ticks)} ticks were cut off"
    assert [] == [tick for tick, workers in starts.items() if len(workers) > 1], told
    assert [] == [tick for tick in cut_off if not excuses(tick, starts, deaths, claims)], told
    assert len(cut_off) < len(ticks) / 4, told


def harass(places: list[Scheduler], draw: Random) -> list[Death]:
    """Kill one after the other, and let each come back a moment later."""
    deaths: list[Death] = []
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
            if place.is_running and (death := place.end()):
                deaths.append(death)
                place.back_at = now + draw.uniform(0, LONGEST_ABSENCE)
    return deaths


def excuses(tick: int, starts: Lines, deaths: list[Death], claims: Claims) -> list[Death]:
    """Return the deaths of who had begun the tick, or had just asked for its claim."""
    if tick in starts:
        return [death for death in deaths if death.worker in starts[tick]]
    asked = [each for each in claims.asked if each.tick == tick]
    return [
        death
        for death in deaths
        for each in asked
        if each.pid == death.pid and death.at - NOT_BEGUN_YET < each.at < death.at + NOT_BEGUN_YET
    ]


def lines(home: Path, what: str) -> Lines:
    """Return the workers that wrote such a line, by the tick of the line."""
    path, found = home / "history", Lines(list)
    for line in path.read_text().splitlines() if path.exists() else ():
        kind, tick, worker = line.split()
        if kind == what:
            found[int(tick)].append(worker)
    return found
