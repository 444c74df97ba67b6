"""What goes wrong in a chaos run, and when: drawn from a seed, done, undone and noted."""

from __future__ import annotations

import heapq
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random
from types import TracebackType

from tests.chaos.cluster import STOP_WITHIN, Cluster, Slot
from tests.chaos.history import ACK_WAIT, Fault, History, Trouble
from tests.proxy import Direction, Proxy

__all__ = ["Faults", "Sentinel"]

MEAN_GAP = 0.8
STEP = 0.02
LONGEST_ABSENCE = 1.5
STALL = 0.4
#: By so much a clock is set or drifts; less is noise of the two readings.
SET = 0.02
SHORT, LONG = (0.1, 0.4), (ACK_WAIT, 2 * ACK_WAIT)
#: These leave a slot without a process, until another one is started.
ENDS = ("kill", "stop")

Act = Callable[[], None]


class Faults:
    """One target has one fault at a time; different targets have theirs together."""

    def __init__(self, seed: str, cluster: Cluster, faults: list[Fault]) -> None:
        self._draw = Random(f"faults {seed}")
        self._cluster = cluster
        self._faults = faults
        self._open: dict[str, Fault] = {}
        self._due: list[tuple[float, int, Act]] = []
        self._order = count()
        self._choices: list[tuple[float, Act]] = [
            (10, self._kill_worker),
            (4, self._stop_worker),
            (3, partial(self._freeze_worker, *SHORT)),
            (3, partial(self._freeze_worker, *LONG)),
            (5, self._kill_server),
            (2, partial(self._freeze_server, *SHORT)),
            (1, partial(self._freeze_server, *LONG)),
            (12, self._cut),
            (3, self._flap),
            (6, self._blackhole),
            (4, self._refuse),
        ]

    def run(self, seconds: float) -> None:
        """Do harm for that long, and return when all of it is undone."""
        next_at = time.monotonic()
        until = next_at + seconds
        while time.monotonic() < until or self._open:
            self._mend()
            if next_at <= time.monotonic() < until:
                weights = [weight for weight, _ in self._choices]
                self._draw.choices(self._choices, weights)[0][1]()
                next_at = time.monotonic() + self._draw.expovariate(1 / MEAN_GAP)

    def rest(self, seconds: float) -> None:
        """Do no harm for that long, and return when all workers run."""
        until = time.monotonic() + seconds
        while time.monotonic() < until or any(slot.is_awaited for slot in self._cluster.slots):
            self._mend()

    def _mend(self) -> None:
        time.sleep(STEP)
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
        self._bring_back_workers()

    # -- when

    def _begin(self, what: Trouble, target: str, act: Act) -> bool:
        if target in self._open:
            return False
        fault = Fault(what, target, time.monotonic())
        self._open[target] = fault
        self._faults.append(fault)
        act()
        return True

    def _end_in(self, seconds: float, target: str, act: Act) -> None:
        def undo() -> None:
            act()
            self._end(target)

        self._at(time.monotonic() + seconds, undo)

    def _end(self, target: str) -> None:
        self._open.pop(target).end = time.monotonic()

    def _at(self, when: float, act: Act) -> None:
        heapq.heappush(self._due, (when, next(self._order), act))

    # -- processes

    def _slot(self) -> Slot:
        return self._draw.choice(self._cluster.slots)

    def _kill_worker(self) -> None:
        slot = self._slot()
        self._begin("kill", slot.name, slot.end)

    def _stop_worker(self) -> None:
        slot = self._slot()
        if self._begin("stop", slot.name, partial(slot.end, orderly=True)):
            self._at(time.monotonic() + STOP_WITHIN, partial(slot.give_up, slot.life))

    def _bring_back_workers(self) -> None:
        """Start again, a moment later, whatever process has ended, for whatever reason."""
        for slot in self._cluster.slots:
            if not slot.is_running and not slot.is_awaited:
                slot.is_awaited = True
                self._begin("kill", slot.name, lambda: None)
                absence = self._draw.uniform(0, LONGEST_ABSENCE)
                self._at(time.monotonic() + absence, partial(self._start, slot))

    def _start(self, slot: Slot) -> None:
        slot.start()
        fault = self._open.get(slot.name)
        if fault is not None and fault.what in ENDS:
            self._end(slot.name)

    def _freeze_worker(self, shortest: float, longest: float) -> None:
        slot, seconds = self._slot(), self._draw.uniform(shortest, longest)
        if self._begin("freeze", slot.name, lambda: slot.signal(signal.SIGSTOP)):
            self._end_in(seconds, slot.name, lambda: slot.signal(signal.SIGCONT))

    def _kill_server(self) -> None:
        if self._begin("kill", "server", self._cluster.server.kill):
            absence = self._draw.choice([0.0, self._draw.uniform(0, 3)])
            self._end_in(absence, "server", self._cluster.server.start)

    def _freeze_server(self, shortest: float, longest: float) -> None:
        cluster, seconds = self._cluster, self._draw.uniform(shortest, longest)
        if self._begin("freeze", "server", lambda: cluster.signal_server(signal.SIGSTOP)):
            self._end_in(seconds, "server", lambda: cluster.signal_server(signal.SIGCONT))

    # -- connections

    def _link(self) -> tuple[str, Proxy]:
        links = {slot.name: slot.proxy for slot in self._cluster.slots}
        links["producer"] = self._cluster.producer
        return self._draw.choice(list(links.items()))

    def _cut(self) -> None:
        name, proxy = self._link()
        if self._begin("cut", name, proxy.cut):
            self._end_in(0, name, lambda: None)

    def _flap(self) -> None:
        name, proxy = self._link()
        if self._begin("flap", name, proxy.cut):
            when = 0.0
            for _ in range(self._draw.randint(2, 6)):
                when += self._draw.uniform(0.02, 0.4)
                self._at(time.monotonic() + when, proxy.cut)
            self._end_in(when + STEP, name, lambda: None)

    def _blackhole(self) -> None:
        name, proxy = self._link()
        direction: Direction | None = self._draw.choice([None, "up", "down"])
        what: Trouble = self._draw.choice(["blackhole", "hold"])
        if self._begin(what, name, lambda: proxy.blackhole(direction)):
            undo: Act = proxy.heal if what == "hold" else partial(lose, proxy)
            self._end_in(self._draw.uniform(0.2, 2 * ACK_WAIT), name, undo)

    def _refuse(self) -> None:
        name, proxy = self._link()
        if self._begin("refuse", name, proxy.refuse):
            self._end_in(self._draw.uniform(0.1, 1.5 * ACK_WAIT), name, proxy.heal)


def lose(proxy: Proxy) -> None:
    """End a blackhole in which everything got lost."""
    proxy.cut()
    proxy.heal()


class Sentinel:
    """Notes when the machine itself stood still, which may end a lease, or when its clock was set.

    Of a machine that was suspended both can be true.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Sentinel:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        last, offset = time.monotonic(), clock_offset()
        while not self._is_over.wait(STEP):
            now, found = time.monotonic(), clock_offset()
            if now - last > STALL:
                self._history.faults.append(Fault("stall", "all", last, now))
            if abs(found - offset) > SET:
                self._history.clock_steps.append((now, found - offset))
                offset = found
            last = now


def clock_offset() -> float:
    """Return by how much the wall clock is ahead of the monotonic one."""
    return time.time() - time.monotonic()
