"""The App: it declares, holds and composes, and is the only module that sees both sides."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, cast, overload

from typing_extensions import TypeVar, Unpack

from mega.adapters import make_broker, make_pool
from mega.declare.broker_url import EMBEDDED, parse_broker_url
from mega.declare.naming import AppFile, alias_main, located, place_of
from mega.declare.registry import CpuSpec, ScheduleSpec
from mega.errors import BadHandler, NotConnected, sole_error
from mega.group import Group
from mega.handles import EnqueueOptions, Job, JobHandle, Owner, PayloadOf
from mega.ops.terminal import show_errors_plainly
from mega.options import BrokerUrl, Role, check_role
from mega.ports import Broker, Clock
from mega.runtime.clock import SystemClock
from mega.runtime.session import Session, open_session
from mega.runtime.supervisor import Supervisor

if TYPE_CHECKING:
    from mega.testing import TestApp

__all__ = ["App"]

S = TypeVar("S", default=None)
T = TypeVar("T")
R = TypeVar("R")

Backend = Literal["asyncio", "trio"]

DRAIN_TIMEOUT = 25.0


class App(Group, Generic[S]):
    """Scheduled jobs, queued jobs and CPU tasks, declared in one file and served by `run()`.

    `broker` is a URL: `nats://…`, `embedded:` (the default: a server of its own in `.mega/`
    beside the file) or `memory:`. `lifespan` is an async context manager that is entered in
    each serving process; what it yields is `app.state` and `ctx.state`. `provision=False`
    creates no stream, for a worker without that permission.

    `async with app:` connects a producer, for scripts and web apps.
    """

    @overload
    def __init__(
        self: App[None],
        name: str,
        *,
        broker: str | None = None,
        lifespan: None = None,
        provision: bool = True,
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        *,
        broker: str | None = None,
        lifespan: Callable[[], AbstractAsyncContextManager[S]],
        provision: bool = True,
    ) -> None: ...
    def __init__(
        self, name: str, *, broker: str | None = None, lifespan: Any = None, provision: bool = True
    ) -> None:
        super().__init__()
        frame = sys._getframe(1)
        show_errors_plainly(frame)
        alias_main(frame)
        self.name: str = name
        self.state: S = cast("S", None)
        with located(frame):
            self._declared = parse_broker_url(EMBEDDED if broker is None else broker)
        self._chosen: BrokerUrl | None = None
        self._lifespan = lifespan or nullcontext
        self._is_provisioning = provision
        self._file = AppFile(name, frame)
        self._session: Session | None = None
        self._entered: AbstractAsyncContextManager[Session] | None = None

    # -- enqueue

    @overload
    async def enqueue(
        self,
        job: JobHandle[None, ..., Any, R],
        payload: None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Job[R]: ...
    @overload
    async def enqueue(
        self,
        job: JobHandle[T, ..., Any, R],
        payload: PayloadOf[T],
        **options: Unpack[EnqueueOptions],
    ) -> Job[R]: ...
    @overload
    async def enqueue(
        self, job: str, payload: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Job[Any]: ...
    async def enqueue(
        self, job: Any, payload: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Job[Any]:
        """Store one job and return its handle; it does not run here.

        `job` is a job of this app, or a subject as text. The options are those of
        EnqueueOptions.

        Raises: NotConnected, PayloadError, BadOption, BrokerUnavailable (the job may be
        stored all the same: enqueue again with the same `id`).
        """
        return await self._enqueue(job, payload, options)

    async def _enqueue(self, job: Any, payload: Any, options: EnqueueOptions) -> Job[Any]:
        producer = self._live("enqueue").producer
        if isinstance(job, JobHandle) and job._owner is not self:
            raise BadHandler(f"{job!r} belongs to another app or to a group that is not included.")
        subject = job.subject if isinstance(job, JobHandle) else job
        if not isinstance(subject, str):
            raise BadHandler(
                f"{getattr(job, '__name__', job)!r} is not a job.",
                where=place_of(job) if callable(job) else "",
                hint='Decorate the function with @app.job("…") and enqueue what that leaves.',
            )
        spec = self.registry.jobs.get(subject)
        if spec is None:
            return await producer.enqueue_by_name(subject, payload, options)
        return await producer.enqueue(spec, payload, options)

    # -- serve

    def run(
        self,
        *,
        role: Role | None = None,
        broker: str | None = None,
        backend: Backend = "asyncio",
        drain_timeout: float = DRAIN_TIMEOUT,
        argv: Iterable[str] | None = None,
    ) -> None:
        """Run the command line of this app: serve a role until Ctrl-C, or one command.

        Flags win over MEGA_ROLE and MEGA_BROKER, and these over the arguments. Returns
        after an orderly end; an error ends the process with the codes of docs/reference.
        """
        from mega import cli  # a producer needs no command line

        self._end_import_in_child()
        arguments = sys.argv[1:] if argv is None else list(argv)
        defaults = cli.Defaults(
            role=role, broker=broker, backend=backend, drain_timeout=drain_timeout
        )
        cli.run_app(self, arguments, defaults)

    async def serve(
        self,
        *,
        role: Role = "all",
        drain_timeout: float = DRAIN_TIMEOUT,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        """Serve a role in the running event loop until SIGINT or SIGTERM.

        Raises: DeclarationError, BrokerError, CpuStartError.
        """
        self._end_import_in_child()
        supervisor = Supervisor(
            self._opened_to_serve,
            role=check_role(role),
            drain_timeout=drain_timeout,
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
        broker = broker or self._make_broker(clock)
        async with open_session(
            self, self.registry, broker=broker, pool_factory=make_pool, clock=clock
        ) as session:
            self._session = session
            try:
                yield session
            finally:
                self._session = None

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

    def _live(self, what: str) -> Session:
        if self._session is None:
            raise NotConnected(
                f"{what} needs a connection, and the app {self.name!r} has none.",
                hint="Call it inside `async with app:`, or from a handler under app.run().",
            )
        return self._session

    async def _run_schedule(self, spec: ScheduleSpec) -> None:
        error = await self._live("run_now").schedules.run(spec)
        if error is not None:
            raise error

    async def _call_task(self, spec: CpuSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await self._live("a CPU call").pools.call(spec, args, kwargs)

    def _end_import_in_child(self) -> None:
        child = sys.modules.get("mega.adapters.pool.child")
        if child is not None:
            child.end_import_in_child()
