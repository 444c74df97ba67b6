"""What decorators leave in place of a function, and what enqueue returns.

A handle calls its function in place. It knows its owner: the app, or nobody while the
group that declared it is not included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Never,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    overload,
)

import anyio
import msgspec
from typing_extensions import TypeVar, Unpack

from mega.declare.registry import JobSpec, ScheduleSpec
from mega.errors import JobFailedError, NotConnected, ResultExpired
from mega.options import Backoff, Seconds, check_count, to_seconds
from mega.ports import StateStore
from mega.wire.payload import Codec
from mega.wire.record import JobRecord
from mega.wire.schedule_record import ScheduleRecord

if TYPE_CHECKING:
    from mega.cpu_handle import Pools

__all__ = [
    "BulkOptions",
    "EnqueueOptions",
    "Job",
    "JobHandle",
    "Owner",
    "PayloadOf",
    "ScheduleHandle",
    "Schedules",
]

P = ParamSpec("P")
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
Ret = TypeVar("Ret", covariant=True)
R = TypeVar("R", covariant=True)

# The callable is for mypy alone, which then takes T from the job and not from the payload as
# well: without it, {"to": "a"} is no TypedDict and "a" no Literal.
PayloadOf: TypeAlias = T | Callable[[T], Never]


class BulkOptions(TypedDict, total=False):
    """What an enqueue of many jobs may say beside the payloads.

    `delay` (seconds) or `at` (an aware datetime) put the first run off. `retries` (runs
    after the first) or `attempts` (runs in all) and `backoff` override the declaration.
    """

    delay: Seconds | None
    at: datetime | None
    retries: int | None
    attempts: int | None
    backoff: Backoff | Seconds | None
    headers: Mapping[str, str] | None


class EnqueueOptions(BulkOptions, total=False):
    """What an enqueue may say beside the payload; see also BulkOptions.

    `id` makes the enqueue idempotent for two minutes. `unique` is a key of which one job at
    a time may be waiting, running or backing off: a second enqueue gets that job's handle.
    `unique_for` (seconds) holds the key for that long instead, whatever becomes of the job.
    """

    id: str | None
    unique: str | None
    unique_for: Seconds | None


class Schedules(Protocol):
    """What a handle asks of the schedules of its process."""

    async def run_now(self, spec: ScheduleSpec) -> bool: ...
    async def pause(self, spec: ScheduleSpec) -> None: ...
    async def resume(self, spec: ScheduleSpec) -> None: ...
    async def is_paused(self, spec: ScheduleSpec) -> bool: ...
    async def last_run(self, spec: ScheduleSpec) -> ScheduleRecord | None: ...


class Owner(Protocol):
    """What a handle asks of its app."""

    async def _enqueue(self, job: Any, payload: Any, options: EnqueueOptions) -> Job[Any]: ...
    async def _enqueue_many(
        self, job: Any, payloads: Iterable[Any], options: BulkOptions
    ) -> list[Job[Any]]: ...
    def _enqueue_sync(self, job: Any, payload: Any, options: EnqueueOptions) -> Job[Any]: ...
    def _schedules(self, what: str) -> Schedules: ...
    def _now(self) -> datetime: ...
    def _cpu_pools(self) -> Pools: ...


class Handle:
    """What all handles share: the owner, and the look of the function."""

    def __init__(self, fn: Callable[..., Any], owner: Owner | None) -> None:
        self.fn: Callable[..., Any] = fn
        self._owner = owner
        self.__name__: str = getattr(fn, "__name__", type(fn).__name__)
        self.__qualname__: str = getattr(fn, "__qualname__", self.__name__)
        self.__module__: str = getattr(fn, "__module__", "")
        self.__doc__: str | None = getattr(fn, "__doc__", None)
        self.__wrapped__: Callable[..., Any] = fn

    def _bind(self, owner: Owner) -> None:
        self._owner = owner

    def _require_owner(self) -> Owner:
        if self._owner is None:
            raise NotConnected(
                f"{self.__name__!r} belongs to a group that no app includes.",
                hint="Add app.include(group) to the app's file.",
            )
        return self._owner


class JobHandle(Handle, Generic[T_contra, P, Ret, R]):
    """A declared job. `T_contra` is its payload, `R` its result."""

    def __init__(self, spec: JobSpec, owner: Owner | None) -> None:
        super().__init__(spec.handler.fn, owner)
        self.spec: JobSpec = spec
        self.subject: str = spec.subject

    @property
    def retry_delays(self) -> tuple[float, ...]:
        """The longest wait before each retry, in seconds.

        Their sum, and what the runs themselves take, is the time from the first failure to
        the dead letter.
        """
        return self.spec.options.retry_delays

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Ret:
        """Run the function here and now, as if it were not decorated."""
        result: Ret = self.fn(*args, **kwargs)
        return result

    @overload
    async def enqueue(
        self: JobHandle[None, P, Ret, R], payload: None = None, **options: Unpack[EnqueueOptions]
    ) -> Job[R]: ...
    @overload
    async def enqueue(self, payload: T_contra, **options: Unpack[EnqueueOptions]) -> Job[R]: ...
    async def enqueue(self, payload: Any = None, **options: Unpack[EnqueueOptions]) -> Job[R]:
        """Store the job and return its handle; see `App.enqueue`."""
        return await self._require_owner()._enqueue(self, payload, options)

    async def enqueue_many(
        self, payloads: Iterable[T_contra], **options: Unpack[BulkOptions]
    ) -> list[Job[R]]:
        """Store a job for each payload and return their handles; see `App.enqueue_many`."""
        return await self._require_owner()._enqueue_many(self, payloads, options)

    @overload
    def enqueue_sync(
        self: JobHandle[None, P, Ret, R], payload: None = None, **options: Unpack[EnqueueOptions]
    ) -> Job[R]: ...
    @overload
    def enqueue_sync(self, payload: T_contra, **options: Unpack[EnqueueOptions]) -> Job[R]: ...
    def enqueue_sync(self, payload: Any = None, **options: Unpack[EnqueueOptions]) -> Job[R]:
        """Store the job from code without an event loop; see `App.enqueue_sync`."""
        return self._require_owner()._enqueue_sync(self, payload, options)

    def __repr__(self) -> str:
        return f"<job {self.subject}>"


class ScheduleHandle(Handle, Generic[P, Ret]):
    """A declared schedule."""

    def __init__(self, spec: ScheduleSpec, owner: Owner | None) -> None:
        super().__init__(spec.handler.fn, owner)
        self.spec: ScheduleSpec = spec
        self.name: str = spec.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Ret:
        """Run the function here and now, without a claim or lock."""
        result: Ret = self.fn(*args, **kwargs)
        return result

    async def run_now(self) -> bool:
        """Run once, whatever the time. The schedule's lock applies, and no tick is claimed.

        Returns when the run has ended, and False at once, with the event `ScheduleSkipped`,
        when the lock is held. Raises: what the handler raised, NotConnected, LockBackendError.
        """
        return await self._live("run_now").run_now(self.spec)

    async def pause(self) -> None:
        """Skip all ticks, in all processes, until `resume`; they are not caught up later.

        It outlasts restarts. What runs goes on, and `run_now` works.
        Raises: NotConnected, BrokerError.
        """
        await self._live("pause").pause(self.spec)

    async def resume(self) -> None:
        """Run ticks again after `pause`. Raises: NotConnected, BrokerError."""
        await self._live("resume").resume(self.spec)

    async def is_paused(self) -> bool:
        """Whether its ticks are skipped until `resume`. Raises: NotConnected, BrokerError."""
        return await self._live("is_paused").is_paused(self.spec)

    async def last_run(self) -> ScheduleRecord | None:
        """Return how the last run of any process ended. Raises: NotConnected, BrokerError."""
        return await self._live("last_run").last_run(self.spec)

    def next_runs(self, count: int = 1) -> list[datetime]:
        """Return the next ticks after now, in a test by its clock; aware, in UTC."""
        check_count(count, option="count", minimum=1)
        ticks: list[datetime] = []
        tick: datetime | None = datetime.now(UTC) if self._owner is None else self._owner._now()
        while len(ticks) < count and tick and (tick := self.spec.timetable.next(tick)):
            ticks.append(tick)
        return ticks

    def _live(self, what: str) -> Schedules:
        return self._require_owner()._schedules(what)

    def __repr__(self) -> str:
        return f"<schedule {self.name}>"


class Job(Generic[R]):
    """One enqueued job. `duplicate` is true when a job of its id or unique key was there.

    The methods are awaited in the event loop in which the app was entered, and raise
    BlockingCall in any other. Sync code has `id` and `duplicate` to keep.
    """

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - the public name of the field
        subject: str,
        duplicate: bool,
        store: StateStore | None,
        codec: Codec[Any],
    ) -> None:
        self.id: str = id
        self.subject: str = subject
        self.duplicate: bool = duplicate
        self._store = store
        self._codec = codec

    async def state(self) -> JobRecord:
        """Return what is known of the job. Raises: ResultExpired, BrokerUnavailable.

        A job whose worker has died is `waiting`, until it is handed out again.
        """
        store = self._tracked()
        record = await store.get(self.id)
        if record is None:
            raise self._expired("its record ran out, or it was never written")
        worker = record.worker if record.state == "running" else None
        if worker is not None and not await store.is_alive(worker):
            return msgspec.structs.replace(record, state="waiting")
        return record

    async def wait(self, *, timeout: Seconds | None = None) -> JobRecord:
        """Return the record once the job has ended, well or not.

        Raises: TimeoutError after `timeout` seconds, ResultExpired, BrokerUnavailable.
        """
        limit = math.inf if timeout is None else to_seconds(timeout, option="timeout")
        store = self._tracked()
        with anyio.move_on_after(limit):
            await self.state()
            async with store.follow(self.id) as records:
                async for record in records:
                    if record.is_final:
                        return record
        raise TimeoutError(f'the job {self.id} on "{self.subject}" has not ended in {limit:g} s.')

    async def result(self, *, timeout: Seconds | None = None) -> R:
        """Return what the handler returned, as its declared type.

        Raises: JobFailedError, and what `wait` raises.
        """
        record = await self.wait(timeout=timeout)
        if record.state == "failed" or record.error is not None:
            raise JobFailedError(f'the job {self.id} on "{self.subject}" failed: {record.error}')
        result: R = self._codec.decode_result(bytes(record.result))
        return result

    def _tracked(self) -> StateStore:
        if self._store is None:
            raise self._expired("it is declared with track=False, so nothing is kept")
        return self._store

    def _expired(self, why: str) -> ResultExpired:
        return ResultExpired(f'nothing is known of the job {self.id} on "{self.subject}": {why}.')

    def __repr__(self) -> str:
        return f"<job {self.subject} {self.id}>"
