"""What tests of an app need: the whole app in memory, and time that passes on command."""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from mega.adapters.memory import MemoryBroker
from mega.context import JobContext, RunContext, ScheduleContext, current_run
from mega.events import Event
from mega.ports import Broker, Clock
from mega.runtime.session import Session
from mega.runtime.supervisor import Supervisor
from mega.wire.record import JobRecord

__all__ = ["TestApp", "VirtualClock", "job_context"]

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
# On asyncio, wait_all_tasks_blocked sleeps 0.1 s when it finds a task that can run. So first
# let the usual chain (timer, broker, handler, acknowledgement) run out without asking.
ROUNDS = 10


class VirtualClock:
    """A `Clock` that stands still until `advance` moves it.

    >>> VirtualClock(datetime(2026, 3, 29, tzinfo=UTC)).now().isoformat()
    '2026-03-29T00:00:00+00:00'
    """

    def __init__(self, start: datetime = EPOCH) -> None:
        if start.tzinfo is None:
            raise ValueError(f"start={start!r} has no time zone.")
        self._start = start.astimezone(UTC)
        self._elapsed = 0.0
        self._order = count()
        self._sleepers: list[tuple[float, int, anyio.Event, RunContext | None]] = []

    def now(self) -> datetime:
        """Return the virtual instant in UTC."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Return the virtual seconds since the clock was made."""
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        """Return when the clock was advanced by that much."""
        if seconds <= 0:
            await checkpoint()
            return
        sleeper = (self._elapsed + seconds, next(self._order), anyio.Event(), current_run.get())
        insort(self._sleepers, sleeper)
        try:
            await sleeper[2].wait()
        except BaseException:
            with suppress(ValueError):  # it is cancelled and due at once
                self._sleepers.remove(sleeper)
            raise

    async def advance(self, seconds: float) -> None:
        """Let that much time pass, stopping at each instant at which a sleeper is due.

        All tasks run until they wait again before time goes on, also after the last
        instant. A task that waits for a thread or a socket counts as waiting.
        """
        if seconds < 0:
            raise ValueError(f"seconds={seconds!r}: time does not go back, only `step` does.")
        await _until_idle()
        end = self._elapsed + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            self._elapsed = self._sleepers[0][0]
            self._wake_due()
            await _until_idle()
        self._elapsed = end

    def sleepers_of(self, run: RunContext) -> int:
        """Return how many tasks of a run wait for virtual time."""
        return sum(sleeper[3] is run for sleeper in self._sleepers)

    def step(self, seconds: float) -> None:
        """Move the wall clock alone, forward or back, as an operator or NTP does."""
        self._start += timedelta(seconds=seconds)

    def _wake_due(self) -> None:
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            self._sleepers.pop(0)[2].set()


async def _until_idle() -> None:
    for _ in range(ROUNDS):
        await checkpoint()
    await anyio.wait_all_tasks_blocked()


class TestApp:
    """An app that is served in memory, as `async with app.test() as t` gives it."""

    __test__ = False

    def __init__(self, session: Session, broker: MemoryBroker, clock: VirtualClock) -> None:
        self.clock = clock
        self.events: list[Event] = []
        self._registry = session.registry
        self._in_hand = session.around.in_hand
        self._broker = broker
        session.around.hub.subscribe(Event, self._remember)

    async def advance(self, seconds: float) -> None:
        """Let virtual time pass; see `VirtualClock.advance`.

        A handler that waits for something real, such as a CPU task or a thread, ends in real
        time: `drain` waits for it.
        """
        await self.clock.advance(seconds)

    async def drain(self) -> None:
        """Return when no job waits or runs, and no schedule runs.

        Delayed and retried jobs stay, and so do schedules that wait for the virtual clock.
        """
        await self.clock.advance(0)
        while self._is_busy():
            # A handler in a thread, or a CPU call, ends in real time.
            await anyio.sleep(0.001)
            await self.clock.advance(0)

    @property
    def jobs(self) -> list[JobRecord]:
        """The records of all jobs, in the order of their enqueue."""
        return self._broker.state.records()

    def dead_letters(self, subject: str) -> list[dict[str, Any]]:
        """The dead letters of a subject, oldest first."""
        return [json.loads(letter) for letter in self._broker.dead_letters(subject)]

    def _is_busy(self) -> bool:
        jobs, broker = self._registry.jobs, self._broker
        return any(broker.waiting(subject) or broker.in_hand(subject) for subject in jobs) or any(
            isinstance(run, ScheduleContext) and not self._is_asleep(run) for run in self._in_hand
        )

    def _is_asleep(self, run: ScheduleContext[Any]) -> bool:
        # What renews the lock of a run sleeps as long as that lasts.
        renewals = 0 if self._registry.schedules[run.name].lock is None else 1
        return self.clock.sleepers_of(run) > renewals

    async def _remember(self, event: Event) -> None:
        self.events.append(event)


@asynccontextmanager
async def open_test(
    open_app: Callable[[Broker, Clock], AbstractAsyncContextManager[Session]],
) -> AsyncIterator[TestApp]:
    """Serve an app in role `all` on the memory broker and a virtual clock."""
    clock = VirtualClock()
    broker = MemoryBroker(clock)
    started, error = anyio.Event(), None
    apps: list[TestApp] = []

    def on_ready(session: Session) -> None:
        apps.append(TestApp(session, broker, clock))
        started.set()

    supervisor = Supervisor(
        lambda: open_app(broker, clock),
        role="all",
        drain_timeout=0,
        on_ready=on_ready,
        handles_signals=False,
        probes_pools=False,
        watches_loop=False,
    )
    async with anyio.create_task_group() as group:
        group.start_soon(supervisor.run)
        await started.wait()
        try:
            yield apps[0]
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as raised:
            # Raised inside the group it would reach the test wrapped in an exception group.
            error = raised
        supervisor.stop()
    if error is not None:
        raise error


def job_context(
    *,
    app: Any = None,
    id: str = "test",  # noqa: A002 - the name of the field
    subject: str = "test",
    attempt: int = 1,
    max_attempts: int = 4,
    headers: dict[str, str] | None = None,
) -> JobContext[Any]:
    """Return a context for a test that calls a handler directly."""
    return JobContext(
        id=id,
        subject=subject,
        attempt=attempt,
        max_attempts=max_attempts,
        headers=headers or {},
        enqueued_at=lambda: datetime.now(UTC),
        app=app,
    )
