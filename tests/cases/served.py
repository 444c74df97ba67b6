"""An app that serves in the test's own event loop, on a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio

from mega import App
from mega.events import Event
from mega.options import Role
from mega.ports import Clock
from mega.runtime.session import Session
from mega.runtime.supervisor import Supervisor
from tests.waiting import until

__all__ = ["Served", "serving"]

E = TypeVar("E", bound=Event)

READY_WITHIN = 15.0


class Served:
    """One serving process, but for the process: what it is, and the events that it had."""

    def __init__(self, session: Session, stop: Callable[[], None]) -> None:
        self.session = session
        self.stop = stop
        self.events: list[Event] = []
        session.around.hub.subscribe(Event, self._remember)

    def those(self, kind: type[E]) -> list[E]:
        """Return the events of one kind, in the order in which they came."""
        return [event for event in self.events if isinstance(event, kind)]

    async def wait_for(self, kind: type[E], count: int = 1, *, within: float = 10.0) -> list[E]:
        """Return the events of one kind once there are that many."""
        what = f"{count} × {kind.__name__}"
        await until(lambda: len(self.those(kind)) >= count, within=within, what=what)
        return self.those(kind)

    async def _remember(self, event: Event) -> None:
        self.events.append(event)


@asynccontextmanager
async def serving(
    app: App[Any],
    *,
    role: Role = "worker",
    drain_timeout: float = 5.0,
    max_jobs: int | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Served]:
    """Serve the app until the block is left; it drains then, as at SIGTERM.

    Inside the block the app is connected, so it also enqueues.
    """
    ready, error = anyio.Event(), None
    found: list[Served] = []

    def on_ready(session: Session) -> None:
        found.append(Served(session, supervisor.stop))
        ready.set()

    supervisor = Supervisor(
        lambda: app._opened_to_serve(clock=clock),
        role=role,
        drain_timeout=drain_timeout,
        max_jobs=max_jobs,
        on_ready=on_ready,
        handles_signals=False,
    )
    async with anyio.create_task_group() as group:
        group.start_soon(supervisor.run)
        with anyio.fail_after(READY_WITHIN):
            await ready.wait()
        try:
            yield found[0]
        except Exception as raised:
            # Raised inside the group it would reach the test wrapped in an exception group.
            error = raised
        supervisor.stop()
    if error is not None:
        raise error
