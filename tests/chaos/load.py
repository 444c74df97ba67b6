"""The producer of a chaos run: a stream of orders, drawn from a seed, each until it is stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random

import anyio

from mega import BrokerUnavailable
from mega.handles import EnqueueOptions
from tests.chaos.history import Placed
from tests.chaos.worker import Order, app

__all__ = ["KINDS", "Load"]

PER_SECOND = 10.0
LONGEST_DELAY = 20.0
#: Well below the two minutes for which the server knows an id again.
GIVE_UP_AFTER = 90.0
CONNECT_WITHIN = 10.0
ABANDONED = 0.2
KEYS = 5


@dataclass(frozen=True)
class Kind:
    """How often a subject is drawn, and what its orders are."""

    weight: float
    order: Callable[[Random], Order]
    delay: Callable[[Random], float] = lambda _: 0.0


def lasting(shortest: float, longest: float, failures: int = 0) -> Callable[[Random], Order]:
    return lambda draw: Order(draw.uniform(shortest, longest), draw.randint(0, failures))


def always_failing(draw: Random) -> Order:
    return Order(draw.uniform(0, 0.05), failures=99)


def only_one(draw: Random) -> Order:
    return Order(draw.uniform(0, 1), draw.randint(0, 2), key=f"key-{draw.randrange(KEYS)}")


KINDS = {
    "chaos.short": Kind(25, lasting(0, 0.02)),
    "chaos.untracked": Kind(15, lasting(0, 0.02)),
    "chaos.long": Kind(6, lasting(2, 8)),
    "chaos.shared": Kind(5, lasting(0.05, 0.5)),
    "chaos.failing": Kind(5, always_failing),
    "chaos.flaky": Kind(10, lasting(0, 0.1, failures=3)),
    "chaos.once": Kind(6, lasting(0, 0.5)),
    "chaos.thread": Kind(8, lasting(0.05, 1)),
    "chaos.blocking": Kind(0.5, lasting(2.5, 4)),
    "chaos.poison": Kind(0.5, lasting(0, 0.1)),
    "chaos.parent": Kind(7, lasting(0, 0.1)),
    "chaos.unique": Kind(12, only_one),
}
DELAYED = ("chaos.short", "chaos.untracked", "chaos.flaky", "chaos.once")
DELAYED_SHARE = 0.3


class Load:
    """Places orders from a thread of its own, for some seconds; `join` waits for their answers."""

    def __init__(
        self,
        seed: str,
        url: str,
        placed: dict[str, Placed],
        *,
        seconds: float,
        without: Collection[str] = (),
    ) -> None:
        self._kinds = {subject: kind for subject, kind in KINDS.items() if subject not in without}
        self._draw = Random(f"load {seed}")
        self._name = seed
        self._url = url
        self._placed = placed
        self._seconds = seconds
        self._until = 0.0
        self._is_ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Return once it is connected, and places orders."""
        self._thread.start()
        self._is_ready.wait(CONNECT_WITHIN)

    def join(self, within: float) -> None:
        """Return once each order is stored or given up. Raises what went wrong otherwise."""
        self._thread.join(within)
        if self._error is not None:
            raise self._error
        if self._thread.is_alive():
            raise TimeoutError(f"the producer did not end within {within:g} s")

    def _run(self) -> None:
        try:
            anyio.run(self._place_orders)
        except BaseException as error:
            self._error = error
        finally:
            self._is_ready.set()

    async def _place_orders(self) -> None:
        app.use_broker(self._url)
        async with app, anyio.create_task_group() as group:
            self._until = time.monotonic() + self._seconds
            self._is_ready.set()
            while time.monotonic() < self._until:
                placed = self._next()
                if not placed.order.key:
                    self._placed[placed.job_id] = placed
                group.start_soon(self._place, placed, self._draw.random() < ABANDONED)
                await anyio.sleep(self._draw.expovariate(PER_SECOND))

    def _next(self) -> Placed:
        draw = self._draw
        weights = [kind.weight for kind in self._kinds.values()]
        subject = draw.choices(list(self._kinds), weights)[0]
        job_id = f"{self._name}-{len(self._placed)}-{subject.partition('.')[2]}"
        delay = 0.0
        if subject in DELAYED and draw.random() < DELAYED_SHARE:
            left = max(1.0, self._until - time.monotonic())
            delay = min(draw.uniform(1, LONGEST_DELAY), left)
        return Placed(job_id, subject, KINDS[subject].order(draw), delay)

    async def _place(self, placed: Placed, is_abandoned: bool) -> None:
        """Enqueue under one id until it is confirmed; an abandoned one is tried once."""
        while not placed.tries or time.monotonic() - placed.tries[0] < GIVE_UP_AFTER:
            placed.tries.append(time.monotonic())
            try:
                placed.job_id = await enqueue(placed)
            except BrokerUnavailable:
                if is_abandoned:
                    return
                await anyio.sleep(0.2)
            else:
                placed.stored_at = time.monotonic()
                self._placed.setdefault(placed.job_id, placed)
                return


async def enqueue(placed: Placed) -> str:
    """Return the id of the job that is there now: a unique one may be another's."""
    options: EnqueueOptions = {"delay": placed.delay or None}
    if placed.order.key:
        options["unique"] = placed.order.key
    else:
        options["id"] = placed.job_id
    job = await app.enqueue(placed.subject, placed.order, **options)
    return job.id
