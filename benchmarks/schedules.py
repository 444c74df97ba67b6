"""What the scheduler takes: computing ticks, starting many at one instant, and waiting for them."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta

import anyio

from mega import App
from mega.cron import CronTimetable
from mega.runtime.clock import SystemClock
from mega.runtime.supervisor import Supervisor
from mega.runtime.ticks import decide

__all__ = ["measure_schedules"]

ZONES = ("UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/New_York", "Asia/Seoul")
EXPRESSIONS, TICKS = 200, 50
CHANGING_ZONES = ("Europe/Berlin", "Australia/Lord_Howe")
RARE, AT_ONE_INSTANT = 9_000, 1_000
#: Seconds from the start of the process to that instant, and how many of them are measured.
AHEAD, IDLE = 10.0, 2.0
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
MICRO = 1e6


def measure_schedules() -> dict[str, float]:
    """Return all values; the times of what is computed are those of the CPU."""
    values = {"next": next_tick(), "year": max(minutely_year(zone) for zone in CHANGING_ZONES)}
    return values | anyio.run(Burst().measure)


def next_tick() -> float:
    """Return the µs that the next tick of some expression in some zone takes, on average."""
    source = random.Random(7)
    timetables = [random_timetable(source) for _ in range(EXPRESSIONS)]
    begun = time.process_time()
    for timetable in timetables:
        tick: datetime | None = NOON
        for _ in range(TICKS):
            tick = timetable.next(tick) if tick else None
    return (time.process_time() - begun) / (EXPRESSIONS * TICKS) * MICRO


def random_timetable(source: random.Random) -> CronTimetable:
    minute = source.choice(["*", "*/5", "0", "7,37"])
    hour = source.choice(["*", "*/2", "3", "9-17"])
    days = source.choice(["* * *", "1 * *", "* * 1-5", "* * MON#2", "L * *"])
    return CronTimetable(f"{minute} {hour} {days}", source.choice(ZONES))


def minutely_year(zone: str) -> float:
    """Return the seconds in which each tick of a year of minutes is decided."""
    timetable = CronTimetable("* * * * *", zone)
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    last, due, now = start, timetable.next(start), start
    begun = time.process_time()
    while due is not None and due < end:
        now = due
        decision = decide(timetable, last, now, due=due)
        last, due = decision.last, decision.following
    return time.process_time() - begun


class ShiftedClock(SystemClock):
    """This machine's time, moved so that it shows `instant` in `ahead` seconds."""

    def __init__(self, instant: datetime, *, ahead: float) -> None:
        self._shift = instant - timedelta(seconds=ahead) - super().now()

    def now(self) -> datetime:
        return super().now() + self._shift


class Burst:
    """A process with 10,000 schedules, of which 1,000 are due at one instant."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._begun: list[datetime] = []
        self._all_begun = anyio.Event()
        self._app = App("burst", broker="memory:")
        for number in range(RARE):
            self._app.schedule(every=86_400 + number, name=f"rare-{number}")(self._note)
        for number in range(AT_ONE_INSTANT):
            name = f"noon-{number}"
            self._app.schedule("0 12 * * *", timezone="UTC", name=name)(self._note)

    async def _note(self) -> None:
        self._begun.append(self._clock.now())
        if len(self._begun) == AT_ONE_INSTANT:
            self._all_begun.set()

    async def measure(self) -> dict[str, float]:
        """Return how long the last of them was late, and the CPUs that waiting took before."""
        self._clock = ShiftedClock(NOON, ahead=AHEAD)
        supervisor = Supervisor(
            lambda: self._app._opened_to_serve(clock=self._clock),
            role="scheduler",
            drain_timeout=1,
            on_ready=lambda session: None,
            handles_signals=False,
        )
        values: dict[str, float] = {}
        async with anyio.create_task_group() as group:
            group.start_soon(supervisor.run)
            values["idle"] = await self._idle()
            with anyio.fail_after(60):
                await self._all_begun.wait()
            values["burst"] = (max(self._begun) - NOON).total_seconds()
            group.cancel_scope.cancel()
        return values

    async def _idle(self) -> float:
        """Return the CPUs used in the last seconds before the instant."""
        left = (NOON - self._clock.now()).total_seconds()
        await anyio.sleep(left - IDLE - 0.1)
        begun = time.process_time()
        await anyio.sleep(IDLE)
        return (time.process_time() - begun) / IDLE
