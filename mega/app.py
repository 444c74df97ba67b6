"""The App: it declares, holds and composes, and is the only module that sees both sides."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, cast, overload

from typing_extensions import TypeVar

from mega.adapters import make_broker, make_pool, open_locks, run_aside
from mega.dead_letters import DeadLetters
from mega.declare.broker_url import EMBEDDED, parse_broker_url
from mega.declare.lifespan import to_lifespan
from mega.declare.lock_url import LockStores, parse_locks
from mega.declare.naming import AppFile, alias_main, located
from mega.enqueue import Enqueuer
from mega.errors import NotConnected, sole_error
from mega.group import Group
from mega.handles import JobHandle, Owner, Schedules
from mega.ops.terminal import show_errors_plainly
from mega.options import DEFAULT_LOCK, Role, check_role
from mega.ports import Broker, ClaimStore, Clock
from mega.runtime.background import Background
from mega.runtime.clock import SystemClock
from mega.runtime.cpu import CpuPools
from mega.runtime.producer import Target
from mega.runtime.session import Session, open_session
from mega.runtime.supervisor import Supervisor
from mega.urls import BrokerUrl

if TYPE_CHECKING:
    from mega.testing import TestApp

__all__ = ["App"]

S = TypeVar("S", default=None)

Backend = Literal["asyncio", "trio"]

DRAIN_TIMEOUT = 25.0


class App(Group, Enqueuer, Generic[S]):
    """Scheduled jobs, queued jobs and CPU tasks, declared in one file and served by `run()`.

    `broker` is a URL: `nats://…`, `embedded:` (the default: a server of its own in `.mega/`
    beside the file) or `memory:`. `lifespan` is an async context manager that is entered in
    each serving process; what it yields is `app.state` and `ctx.state`. `locks` names lock
    stores for `lock=` of schedules, each by the URL of a Redis or those of several.
    `provision=False` creates no stream, for a worker without that permission.

    `async with app:` connects a producer, for scripts and web apps.
    """

    @overload
    def __init__(
        self: App[None],
        name: str,
        *,
        broker: str | None = None,
        lifespan: None = None,
        locks: LockStores | None = None,
        provision: bool = True,
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        *,
        broker: str | None = None,
        lifespan: Callable[[], AbstractAsyncContextManager[S]],
        locks: LockStores | None = None,
        provision: bool = True,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        broker: str | None = None,
        lifespan: Any = None,
        locks: LockStores | None = None,
        provision: bool = True,
    ) -> None:
        super().__init__()
        frame = sys._getframe(1)
        show_errors_plainly(frame)
        alias_main(frame)
        self.name: str = name
        self.state: S = cast("S", None)
        with located(frame):
            self._declared = parse_broker_url(EMBEDDED if broker is None else broker)
            self._locks = parse_locks(locks)
            self._lifespan = to_lifespan(lifespan)
        self.registry.lock_stores = (DEFAULT_LOCK, *self._locks)
        self._chosen: BrokerUrl | None = None
        self._is_provisioning = provision
        self._file = AppFile(name, frame)
        self._session: Session | None = None
        self._background = Background(self._opened_aside, run_aside)
        self._targets: dict[str, Target] = {}
        self._entered: AbstractAsyncContextManager[Session] | None = None

    def dead_letters(self, job: JobHandle[Any, ..., Any, Any] | str) -> DeadLetters:
        """Return the dead letters of a job, or of a subject given as text. Raises: NotConnected."""
        subject = job if isinstance(job, str) else job.subject
        return DeadLetters(self._live("dead_letters").around.broker, subject)

    # -- serve

    def run(
        self,
        *,
        role: Role | None = None,
        broker: str | None = None,
        backend: Backend = "asyncio",
        drain_timeout: float = DRAIN_TIMEOUT,
        max_jobs: int | None = None,
        argv: Iterable[str] | None = None,
    ) -> None:
        """Run the command line of this app: serve a role until Ctrl-C, or one command.

        Flags win over MEGA_ROLE, MEGA_BROKER and MEGA_MAX_JOBS, and these over the
        arguments. Returns after an orderly end; an error ends the process with the codes of
        docs/reference. `max_jobs` is that of `serve`.
        """
        from mega import cli  # a producer needs no command line

        self._end_import_in_child()
        arguments = sys.argv[1:] if argv is None else list(argv)
        defaults = cli.Defaults(
            role=role,
            broker=broker,
            backend=backend,
            drain_timeout=drain_timeout,
            max_jobs=max_jobs,
        )
        cli.run_app(self, arguments, defaults)

    async def serve(
        self,
        *,
        role: Role = "all",
        drain_timeout: float = DRAIN_TIMEOUT,
        max_jobs: int | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        """Serve a role in the running event loop until SIGINT or SIGTERM.

        `max_jobs` is how many runs of jobs, all together, this process has at once.

        Raises: DeclarationError, BrokerError, CpuStartError.
        """
        self._end_import_in_child()
        supervisor = Supervisor(
            self._opened_to_serve,
            role=check_role(role),
            drain_timeout=drain_timeout,
            max_jobs=max_jobs,
            on_ready=lambda session: on_ready() if on_ready else None,
        )
        try:
            await supervisor.run()
        except BaseExceptionGroup as group:
            raise sole_error(group) from None

    async def __aenter__(self) -> Self:
        self._end_import_in_child()
        opened = self._opened()
        await opened.__aenter__()
        self._entered = opened
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        entered, self._entered = self._entered, None
        if entered is None or self._session is None:
            return
        if exc_info[0] is not None:
            await self._session.pools.end_now()
        # The body's error is not handed down: task groups would wrap it.
        await entered.__aexit__(None, None, None)

    def test(self) -> AbstractAsyncContextManager[TestApp]:
        """Serve this app on the memory broker and a virtual clock; see `mega.testing`."""
        from mega.testing import open_test

        return open_test(self._opened_to_serve)

    # -- what the command line asks

    def use_broker(self, url: str) -> None:
        """Use this broker, whatever the environment and the declaration say. Raises: BadOption."""
        self._chosen = parse_broker_url(url)

    def check(self) -> None:
        """Find what only the whole declaration shows. Raises: DeclarationError."""
        self._file.check_loaded_once()
        self.registry.freeze()

    @property
    def broker_url(self) -> BrokerUrl:
        """The broker: the chosen one, else that of MEGA_BROKER, else the declared one."""
        if self._chosen is not None:
            return self._chosen
        named = os.environ.get("MEGA_BROKER")
        return parse_broker_url(named) if named else self._declared

    @property
    def broker_line(self) -> str:
        """What the start screen says of the broker."""
        if self._session is not None:
            return self._session.around.broker.describe()
        url = self.broker_url
        folder = os.path.relpath(self._home)
        return f"embedded, data in {folder}/" if url.kind == "embedded" else url.text

    @asynccontextmanager
    async def _opened(
        self, broker: Broker | None = None, clock: Clock | None = None
    ) -> AsyncIterator[Session]:
        if self._session is not None:
            raise NotConnected(f"the app {self.name!r} is entered already.")
        self.check()
        clock = clock or SystemClock()
        with open_locks(self._locks, clock=clock, in_memory=broker is not None) as locks:
            async with broker or self._make_broker(clock) as connected:
                try:
                    async with self._session_on(connected, clock, locks) as self._session:
                        yield self._session
                finally:
                    self._session = None

    @asynccontextmanager
    async def _opened_aside(self) -> AsyncIterator[Session]:
        """Open the app for `enqueue_sync` alone; it may be entered or served beside that."""
        self._end_import_in_child()
        self.check()
        if self.broker_url.kind == "memory":
            raise NotConnected(
                "a broker in memory lives as long as the app is entered, and it is not.",
                hint="Call it inside `async with app:`, or name another broker.",
            )
        clock = SystemClock()
        async with (
            self._make_broker(clock) as broker,
            self._session_on(broker, clock, {}) as session,
        ):
            yield session

    def _session_on(
        self, broker: Broker, clock: Clock, locks: Mapping[str, ClaimStore]
    ) -> AbstractAsyncContextManager[Session]:
        return open_session(
            self, self.registry, broker=broker, locks=locks, pool_factory=make_pool, clock=clock
        )

    @asynccontextmanager
    async def _opened_to_serve(
        self, broker: Broker | None = None, clock: Clock | None = None
    ) -> AsyncIterator[Session]:
        async with self._opened(broker, clock) as session, self._lifespan() as state:
            self.state = cast("S", state)
            yield session

    def _make_broker(self, clock: Clock) -> Broker:
        return make_broker(
            self.broker_url,
            name=self.name,
            home=self._home,
            is_provisioning=self._is_provisioning,
            clock=clock,
        )

    @property
    def _home(self) -> Path:
        chosen = self.broker_url.home or os.environ.get("MEGA_HOME")
        return Path(chosen) if chosen else self._file.folder / ".mega"

    @property
    def _owner(self) -> Owner:
        return self

    def _schedules(self, what: str) -> Schedules:
        return self._live(what).schedules

    def _now(self) -> datetime:
        return (self._session.around.clock if self._session else SystemClock()).now()

    def _cpu_pools(self) -> CpuPools:
        return self._live("a CPU call").pools

    def _end_import_in_child(self) -> None:
        child = sys.modules.get("mega.adapters.pool.child")
        if child is not None:
            child.end_import_in_child()
