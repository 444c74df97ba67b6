"""The decorators. A group declares jobs, schedules and CPU tasks for an app to include."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Never, ParamSpec, TypeVar, cast, overload

from mega.cpu_handle import CpuHandle
from mega.declare.naming import check_subject, located, place_of
from mega.declare.registry import (
    DEFAULT_POOL,
    CpuSpec,
    JobSpec,
    Middleware,
    Registry,
    StartUp,
)
from mega.declare.schedules import ScheduleDraft
from mega.declare.signature import (
    Handler,
    check_task,
    inspect_job,
    inspect_schedule,
    is_coroutine_function,
)
from mega.decorators import JobDecorator, ScheduleDecorator
from mega.errors import BadHandler, BadOption
from mega.events import Event, event_class
from mega.handles import Handle, JobHandle, Owner, ScheduleHandle
from mega.options import (
    Backoff,
    CatchUp,
    DeadLetter,
    JobOptions,
    Lock,
    LockErrorPolicy,
    Overlap,
    RetryOn,
    Role,
    Scope,
    Seconds,
    check_role,
    refuse_unknown,
    to_backoff,
    to_retry_on,
    to_seconds,
    to_timeout,
)
from mega.pool_options import PoolOptions
from mega.wire.payload import Codec

__all__ = ["Group"]

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=Event)
F = TypeVar("F", bound=Callable[..., Any])
Hook = TypeVar("Hook", bound=Callable[[], Any])
M = TypeVar("M", bound=Middleware)
H = TypeVar("H", bound=Handle)
Fn = Callable[..., Any]

DEFAULT_BACKOFF = Backoff()
DEFAULT_DEAD_LETTER = DeadLetter()
#: What to do instead of putting a decorator over what another one has left.
MISPLACED: dict[tuple[str, type[Handle]], str] = {
    ("job", ScheduleHandle): "Put @app.schedule above @app.job.",
    ("job", CpuHandle): "Write `await {}.run(…)` in the handler of a job.",
    ("job", Handle): "For a second subject, write app.job(…)({}.fn) below it.",
    ("schedule", CpuHandle): "Write `await {}.run(…)` in the function of a schedule.",
    ("schedule", Handle): "Write a function for each schedule; they may call the same code.",
    ("cpu_task", Handle): "Put @app.cpu_task() over a plain function, and await its run(…) in a "
    "handler.",
}


class Group:
    """Declarations for an app of several files: `app.include(group)`."""

    def __init__(self, *misplaced: Never, **unknown: Never) -> None:
        if misplaced or unknown:
            with located(sys._getframe(1)):
                raise BadOption(
                    "a group has no name and no options.",
                    hint="Write Group(): jobs are known by their subjects, schedules by name=.",
                )
        self.registry: Registry = Registry()
        self._handles: list[Handle] = []

    def job(
        self,
        subject: str,
        *,
        retries: int = 3,
        backoff: Backoff | Seconds = DEFAULT_BACKOFF,
        concurrency: int = 1,
        per_worker: int | None = None,
        timeout: Seconds | None = None,
        retry_on: RetryOn = Exception,
        dead_letter: DeadLetter = DEFAULT_DEAD_LETTER,
        result_ttl: Seconds = 3600,
        track: bool = True,
        roles: tuple[Role, ...] = ("worker",),
        **unknown: Never,
    ) -> JobDecorator:
        """Declare a job. The function takes `()`, `(payload)` or `(payload, ctx)`.

        `retries` are the runs after the first. `concurrency` counts the runs at once in all
        workers together, `per_worker` those in one. `timeout` (seconds) ends one run.
        `retry_on` says which errors are retried: classes, or a function of the error. The
        result is kept for `result_ttl` seconds; `track=False` keeps no state at all.

        Raises: DeclarationError.
        """
        with located(sys._getframe(1), subject if isinstance(subject, str) else ""):
            _refuse_bare(subject, '@app.job("email.send")')
            refuse_unknown(unknown, Group.job.__kwdefaults__ or (), what="a job")
            check_subject(subject)
            options = JobOptions(
                retries=retries,
                backoff=to_backoff(backoff),
                concurrency=concurrency,
                per_worker=per_worker,
                timeout=to_timeout(timeout),
                retry_on=to_retry_on(retry_on),
                dead_letter=dead_letter,
                result_ttl=to_seconds(result_ttl, option="result_ttl", minimum=1.0),
                track=track,
            )
            known_roles: tuple[Role, ...] = tuple(check_role(role) for role in roles)

        def declare(fn: Fn) -> JobHandle[Any, Any, Any, Any]:
            _refuse_handle(fn, "job")
            handler = inspect_job(fn, names=_locals(sys._getframe(1)))
            spec = JobSpec(
                subject=subject,
                handler=handler,
                codec=Codec(handler.payload if "p" in handler.shape else None, job=subject),
                # A result that nobody can ask for may be anything.
                result_codec=Codec(handler.result if track else Any, job=subject, noun="result"),
                options=options,
                roles=known_roles,
            )
            self.registry.add_job(spec)
            return self._keep(JobHandle(spec, self._owner))

        return cast("JobDecorator", declare)

    def schedule(
        self,
        cron: str | None = None,
        *,
        every: Seconds | None = None,
        timezone: str | None = None,
        lock: bool | str | Lock | None = None,
        name: str | None = None,
        jitter: Seconds = 0,
        overlap: Overlap = "skip",
        catch_up: CatchUp = "one",
        grace: Seconds | None = None,
        retries: int = 0,
        scope: Scope = "cluster",
        on_lock_error: LockErrorPolicy = "skip",
        timeout: Seconds | None = None,
        **unknown: Never,
    ) -> ScheduleDecorator:
        """Declare a schedule: a cron expression, or `every` so many seconds.

        The function takes `()` or `(ctx)`. Each tick runs once, however many schedulers
        there are; `lock` keeps runs apart that last longer than the time between ticks.
        Over a job, each tick enqueues that job. `timezone` is an IANA name; None means the
        host's. The dialect of cron is described in docs/reference/cron.md, and what the
        options do in docs/how-to/schedule.md.

        `jitter`: start up to so many seconds after the tick, always the same for one name.
        `overlap`: what a tick does while the last run goes on in this process.
        `catch_up`: what becomes of missed ticks; with "skip" one that is less than `grace`
        seconds late still runs. `retries`: runs of one tick after a failed one.
        `scope="replica"`: run in each scheduler process. `on_lock_error`: what a tick does
        that can't be claimed. After `timeout` seconds a run is cancelled and has failed.

        Raises: DeclarationError.
        """
        with located(sys._getframe(1)):
            _refuse_bare(cron, '@app.schedule("0 3 * * *")')
            refuse_unknown(unknown, Group.schedule.__kwdefaults__ or (), what="a schedule")
            draft = ScheduleDraft.of(
                cron,
                every=every,
                timezone=timezone,
                name=name,
                lock=lock,
                stores=self.registry.lock_stores,
                jitter=jitter,
                overlap=overlap,
                catch_up=catch_up,
                grace=grace,
                retries=retries,
                scope=scope,
                on_lock_error=on_lock_error,
                timeout=timeout,
            )

        def declare(fn: Fn) -> ScheduleHandle[Any, Any]:
            handler, subject = _scheduled(fn, sys._getframe(1))
            spec = draft.spec(handler, subject=subject)
            self.registry.add_schedule(spec)
            return self._keep(ScheduleHandle(spec, self._owner))

        return cast("ScheduleDecorator", declare)

    def cpu_task(
        self,
        *misplaced: Never,
        pool: str = DEFAULT_POOL,
        timeout: Seconds | None = None,
        **unknown: Never,
    ) -> Callable[[Callable[P, R]], CpuHandle[P, R]]:
        """Declare a CPU task: a plain function at the top level of a module.

        `await task.run(...)` runs it in a process of the pool. After `timeout` seconds the
        process is killed and the call raises CpuTimeout.

        Raises: DeclarationError.
        """
        with located(sys._getframe(1)):
            _refuse_bare(misplaced or None, "@app.cpu_task()")
            refuse_unknown(unknown, Group.cpu_task.__kwdefaults__ or (), what="a CPU task")
            limit = to_timeout(timeout)

        def declare(fn: Callable[P, R]) -> CpuHandle[P, R]:
            _refuse_handle(fn, "cpu_task")
            ref = check_task(fn)
            spec = CpuSpec(name=fn.__name__, ref=ref, pool=pool, timeout=limit, place=place_of(fn))
            self.registry.add_cpu_task(spec)
            return self._keep(CpuHandle(fn, spec, self._owner))

        return declare

    def pool(self, name: str, **options: Any) -> None:
        """Declare a CPU pool; `options` are those of PoolOptions. Raises: DeclarationError."""
        with located(sys._getframe(1)):
            self.registry.add_pool(name, PoolOptions.of(options))

    @overload
    def on(self, event: type[E], /) -> Callable[[Callable[[E], R]], Callable[[E], R]]: ...
    @overload
    def on(self, event: str, /) -> Callable[[F], F]: ...
    def on(self, event: type[Event] | str, /) -> Callable[[Any], Any]:
        """Subscribe a function, async or not, to an event by its class or its kind.

        Raises: UnknownEvent.
        """
        with located(frame := sys._getframe(1)):
            kind = event_class(event)

        def subscribe(fn: F) -> F:
            with located(frame):
                self.registry.add_subscriber(kind, fn)
            return fn

        return subscribe

    def middleware(self, fn: M) -> M:
        """Put `fn` around each run of every job of the app: `async def fn(ctx, call_next)`.

        It awaits `call_next()` for the handler's result, once at most, and what it returns is
        the result of the job. What was declared first is outermost; what an included group
        declares comes inside of it. Raises: BadHandler.
        """
        with located(sys._getframe(1)):
            if not is_coroutine_function(fn):
                raise BadHandler(
                    f"{getattr(fn, '__name__', fn)!r} can't be middleware: it is not async.",
                    hint="Write async def name(ctx, call_next): return await call_next().",
                )
            self.registry.add_middleware(fn)
        return fn

    @overload
    def on_startup(self, fn: Hook) -> Hook: ...
    @overload
    def on_startup(self, *, once: bool = False) -> Callable[[Hook], Hook]: ...
    def on_startup(self, fn: Any = None, *, once: bool = False) -> Any:
        """Call `fn`, async or not, before anything runs, in each serving process.

        They are called one after the other, in the order in which they are declared; one that
        raises ends the start. With `once`, only one of the processes that start together calls
        it, and the others don't wait for it.

        Raises: DuplicateName, for two of one name with `once`.
        """

        frame = sys._getframe(1)

        def declare(hook: Hook) -> Hook:
            with located(frame):
                self.registry.add_startup(StartUp(hook, once))
            return hook

        return declare if fn is None else declare(fn)

    def on_shutdown(self, fn: Hook) -> Hook:
        """Call `fn`, async or not, when all work has ended, in each serving process.

        They are called in the order in which they are declared, also after one has raised.
        """
        with located(sys._getframe(1)):
            self.registry.add_shutdown(fn)
        return fn

    def include(self, other: Group, /) -> None:
        """Add all that another group declares. Raises: DeclarationError."""
        self.registry.include(other.registry)
        for handle in other._handles:
            self._keep(handle)

    @property
    def _owner(self) -> Owner | None:
        return None

    def _keep(self, handle: H) -> H:
        self._handles.append(handle)
        if self._owner is not None:
            handle._bind(self._owner)
        return handle


def _refuse_bare(first: object, example: str) -> None:
    """Refuse a decorator that was given the function itself, or anything else in its place."""
    if callable(first) or isinstance(first, tuple):
        raise BadOption("the decorator lacks its parentheses.", hint=f"Write {example}.")


def _refuse_handle(fn: object, decorator: str) -> None:
    """Refuse what another decorator has left where a function is wanted. Raises: BadHandler."""
    if not isinstance(fn, Handle):
        return
    hint = MISPLACED.get((decorator, type(fn)), MISPLACED[decorator, Handle])
    raise BadHandler(
        f"@app.{decorator} can't be put over {fn!r}: it takes a function.",
        where=place_of(fn.fn),
        hint=hint.format(fn.__name__),
    )


def _scheduled(fn: Fn, frame: FrameType) -> tuple[Handler, str | None]:
    if not isinstance(fn, JobHandle):
        _refuse_handle(fn, "schedule")
        return inspect_schedule(fn, names=_locals(frame)), None
    handler = fn.spec.handler
    if "p" in handler.shape:
        raise BadHandler(
            f'the job "{fn.subject}" can\'t be scheduled: a tick has no payload to give it.',
            where=handler.place,
            hint="Schedule a function that enqueues it with its payload.",
        )
    return handler, fn.subject


def _locals(frame: FrameType) -> dict[str, Any]:
    """Return the names at the place of the decorator, for annotations of local classes."""
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)
