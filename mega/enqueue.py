"""Enqueueing, as an app offers it; what a stored job takes is in `runtime.producer`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from threading import get_ident
from typing import Any, overload

from typing_extensions import TypeVar, Unpack

from mega.cpu_handle import CpuHandle
from mega.declare.naming import place_of
from mega.declare.registry import Registry
from mega.errors import BadHandler, BadOption, BlockingCall, NotConnected
from mega.handles import (
    BulkOptions,
    EnqueueOptions,
    Handle,
    Job,
    JobHandle,
    Owner,
    PayloadOf,
    ScheduleHandle,
)
from mega.runtime.background import Background, call_in_loop, refuse_in_loop
from mega.runtime.producer import Target
from mega.runtime.session import Session

__all__ = ["Enqueuer"]

T = TypeVar("T")
R = TypeVar("R")


class Enqueuer(ABC):
    """The half of an app that stores jobs, over the connection that the app holds."""

    name: str
    registry: Registry
    _session: Session | None
    _background: Background
    _targets: dict[str, Target]

    @property
    @abstractmethod
    def _owner(self) -> Owner: ...

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
        EnqueueOptions. When it returns, the broker has confirmed the job.

        Raises: NotConnected, BlockingCall in another event loop than that of the app,
        PayloadError, BadOption, BrokerFull, BrokerUnavailable (the job may be stored all
        the same: enqueue again with the same `id`).
        """
        return await self._enqueue(job, payload, options)

    @overload
    async def enqueue_many(
        self,
        job: JobHandle[T, ..., Any, R],
        payloads: Iterable[PayloadOf[T]],
        **options: Unpack[BulkOptions],
    ) -> list[Job[R]]: ...
    @overload
    async def enqueue_many(
        self, job: str, payloads: Iterable[Any], **options: Unpack[BulkOptions]
    ) -> list[Job[Any]]: ...
    async def enqueue_many(
        self, job: Any, payloads: Iterable[Any], **options: Unpack[BulkOptions]
    ) -> list[Job[Any]]:
        """Store a job for each payload, many times faster than one by one.

        All payloads are encoded first, and a bad one refuses all: the error names its index,
        `payloads[3].tag`. The jobs are stored in batches of at most 500, each whole or not at
        all, and in the order of the payloads. The options are those of BulkOptions.

        Raises: as `enqueue`. After a BrokerError some may be stored; its text says how many.
        """
        return await self._enqueue_many(job, payloads, options)

    @overload
    def enqueue_sync(
        self,
        job: JobHandle[None, ..., Any, R],
        payload: None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Job[R]: ...
    @overload
    def enqueue_sync(
        self,
        job: JobHandle[T, ..., Any, R],
        payload: PayloadOf[T],
        **options: Unpack[EnqueueOptions],
    ) -> Job[R]: ...
    @overload
    def enqueue_sync(
        self, job: str, payload: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Job[Any]: ...
    def enqueue_sync(
        self, job: Any, payload: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Job[Any]:
        """Store one job from code that has no event loop: a thread, a script, a sync web view.

        While the app is entered or served in another thread, its connection is used. Else
        the first call connects in a thread of its own, which later calls use and which ends
        with the process; a forked process gets one of its own.

        Raises: BlockingCall in a thread that runs an event loop, and what `enqueue` raises.
        """
        return self._enqueue_sync(job, payload, options)

    async def _enqueue(self, job: Any, payload: Any, options: EnqueueOptions) -> Job[Any]:
        producer = self._live("enqueue").producer
        return await producer.enqueue(self._target(job), payload, options)

    async def _enqueue_many(
        self, job: Any, payloads: Iterable[Any], options: BulkOptions
    ) -> list[Job[Any]]:
        producer = self._live("enqueue_many").producer
        _refuse_single(payloads)
        return await producer.enqueue_many(self._target(job), payloads, options)

    def _enqueue_sync(self, job: Any, payload: Any, options: EnqueueOptions) -> Job[Any]:
        refuse_in_loop("enqueue_sync", "`await app.enqueue(…)`")
        session = self._session
        if session is None or not session.is_of_this_process:
            session = self._background.session()
        return call_in_loop(
            session.loop, session.producer.enqueue, self._target(job), payload, options
        )

    def _live(self, what: str) -> Session:
        """Return the session that `what` needs. Raises: NotConnected, BlockingCall."""
        session = self._session
        if session is None:
            raise NotConnected(
                f"{what} needs a connection, and the app {self.name!r} has none.",
                hint="Call it inside `async with app:`, or from a handler under app.run()."
                + _without_a_loop(what),
            )
        if session.thread != get_ident():
            raise BlockingCall(
                f"{what} was awaited in another event loop than the one in which the app "
                f"{self.name!r} was entered.",
                hint="Await it there, or call app.enqueue_sync in a thread without a loop.",
            )
        return session

    def _target(self, job: Any) -> Target:
        subject = self._subject_of(job)
        target = self._targets.get(subject)
        if target is None:
            spec = self.registry.jobs.get(subject)
            target = Target.named(subject) if spec is None else Target.of(spec)
            self._targets[subject] = target
        return target

    def _subject_of(self, job: Any) -> str:
        if isinstance(job, JobHandle) and job._owner is not self._owner:
            raise BadHandler(f"{job!r} belongs to another app or to a group that is not included.")
        subject = job.subject if isinstance(job, JobHandle) else job
        if not isinstance(subject, str):
            raise BadHandler(
                f"{getattr(job, '__name__', job)!r} is not a job.",
                where=place_of(job.fn if isinstance(job, Handle) else job) if callable(job) else "",
                hint=_instead_of(job),
            )
        return subject


def _refuse_single(payloads: object) -> None:
    """Refuse one payload where many are wanted: its letters or keys are none. Raises: BadOption."""
    if isinstance(payloads, str | bytes | bytearray | memoryview | Mapping):
        raise BadOption(
            f"enqueue_many was given a {type(payloads).__name__}, which is one payload.",
            hint="Give it a list of payloads, or call enqueue.",
        )


def _without_a_loop(what: str) -> str:
    is_enqueue = what == "enqueue"
    return " Code without an event loop calls enqueue_sync." if is_enqueue else ""


def _instead_of(other: object) -> str:
    """Return what to do with what is no job and was to be enqueued."""
    if isinstance(other, CpuHandle):
        return f"Await {other.name}.run(…), or enqueue a job whose handler does."
    if not isinstance(other, ScheduleHandle):
        return 'Decorate the function with @app.job("…") and enqueue what that leaves.'
    subject = other.spec.subject
    if subject is None:
        return f"It is a schedule: await {other.__name__}.run_now() runs it."
    return f'It is the schedule of a job: enqueue that by its subject, app.enqueue("{subject}").'
