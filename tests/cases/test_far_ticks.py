"""Schedules whose ticks are far away, or were missed while nobody was there."""

from __future__ import annotations

from calendar import isleap
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from mega import App
from mega.events import ScheduleMisfired, ScheduleRun
from mega.runtime.clock import SystemClock
from tests.cases.served import serving


class Sleepy(SystemClock):
    """The real clock, which notes how long it was asked to sleep."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        await super().sleep(seconds)


@pytest.mark.parametrize("cron", ["0 0 29 2 *", "0 0 0 29 2 *"])
async def test_a_tick_in_years(broker: str, subject: str, cron: str) -> None:
    """far-02: a schedule for 29 February sleeps, in long pieces, until the next leap year."""
    app, clock, runs = App("cases", broker=broker), Sleepy(), []
    name = subject.replace(".", "-")

    @app.schedule(cron, timezone="UTC", name=name)
    async def leap() -> None:
        runs.append(1)

    async with serving(app, role="scheduler", clock=clock) as served:
        await anyio.sleep(1)  # nothing is to happen, which nothing can be waited for
        (due_at,) = leap.next_runs(1)

    now = datetime.now(UTC)
    year = next(year for year in range(now.year, now.year + 9) if is_ahead(year, now))
    assert datetime(year, 2, 29, tzinfo=UTC) == due_at
    assert [] == runs
    assert [] == served.those(ScheduleRun)
    assert all(asked >= 1 for asked in clock.asked)
    assert 3 >= len(clock.asked)


def is_ahead(year: int, now: datetime) -> bool:
    return isleap(year) and datetime(year, 2, 29, tzinfo=UTC) > now


async def test_ticks_that_nobody_was_there_for(broker: str, subject: str) -> None:
    """delay-05: of the ticks that were missed in an outage the latest runs, once."""
    name = subject.replace(".", "-")

    def make() -> App:
        app = App("cases", broker=broker)

        @app.schedule(every=1, name=name)
        async def tick() -> None: ...

        return app

    async with serving(make(), role="scheduler") as served:
        await served.wait_for(ScheduleRun)
    await anyio.sleep(4)  # the outage: four ticks or more are missed
    back_at = datetime.now(UTC)
    async with serving(make(), role="scheduler") as served:
        runs = await served.wait_for(ScheduleRun, 3)
        (missed,) = served.those(ScheduleMisfired)

    due = [run.due_at for run in runs if run.due_at is not None]
    assert sorted(set(due)) == due
    assert 1 >= len([tick for tick in due if tick <= back_at])
    assert missed.due_at is not None
    assert timedelta(seconds=2) <= missed.due_at - missed.missed_since
