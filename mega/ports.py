"""What the runtime needs of the outside world, as contracts.

Every adapter of a port passes the port's suite in `tests/contract/`. An adapter may rely
on one event loop; it imports `wire` and the leaf types and nothing of the runtime.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, TypeAlias

import anyio

from mega.options import JobOptions
from mega.wire.message import Message
from mega.wire.record import JobRecord

__all__ = [
    "Broker",
    "Claim",
    "ClaimStore",
    "Clock",
    "Delivery",
    "LeaseAnswer",
    "ProcessPool",
    "Queue",
    "Receipt",
    "Run",
    "Skip",
    "StateStore",
]


class Clock(Protocol):
    """Time. Tests put a virtual one in its place."""

    def now(self) -> datetime:
        """Return the wall clock's instant, aware, in UTC. It may step."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never step."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after that many seconds of the monotonic clock."""
        ...


@dataclass(frozen=True, slots=True)
class Queue:
    """One job subject and what its declaration says of delivery."""

    subject: str
    options: JobOptions


@dataclass(frozen=True, slots=True)
class Receipt:
    """The broker's word that a message is stored. `duplicate`: its id was there already."""

    duplicate: bool


class Delivery(Protocol):
    """One hand-over of a stored message.

    The lease is renewed by the adapter until one of the four methods was called; each is
    called at most once. After a crash the message comes back as another delivery with
    `starts` one higher; `starts` counts the hand-overs of this copy, from 1.
    """

    @property
    def subject(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def headers(self) -> Mapping[str, str] | None: ...
    @property
    def starts(self) -> int: ...
    @property
    def fallback_id(self) -> str:
        """An id for a message that has none: the same at every delivery of this copy."""
        ...

    @property
    def stored_at(self) -> datetime:
        """When the broker stored this copy; aware."""
        ...

    async def ack(self) -> None:
        """Remove the message. Returns before the broker has confirmed it."""
        ...

    async def retry(self, copy: Message, *, after: float) -> None:
        """Store `copy` to be delivered after that many seconds, then remove this message.

        The removal follows the confirmed storing, and a repeated call for this stored copy
        stores once: a crash in between neither loses nor doubles the job.
        Raises: BrokerUnavailable or PayloadTooLarge, and the message stays.
        """
        ...

    async def give_back(self, copy: Message) -> None:
        """Store `copy` for delivery at once, then remove this message: as `retry`."""
        ...

    async def dead_letter(self, letter: bytes, *, job_id: str) -> None:
        """Store `letter` among the subject's dead letters, then remove this message.

        Raises: BrokerUnavailable or PayloadTooLarge, and the message stays.
        """
        ...


Run: TypeAlias = Callable[[Delivery], Awaitable[None]]


class StateStore(Protocol):
    """Job records by id, each with a time to live in seconds."""

    async def create(self, record: JobRecord, *, ttl: float) -> None:
        """Write the record unless there is one. Does not wait for the store."""
        ...

    async def write(self, record: JobRecord, *, ttl: float) -> None:
        """Write the record. Writes of one process arrive in order; it doesn't wait for them."""
        ...

    async def get(self, job_id: str) -> JobRecord | None:
        """Return the record, or None when there is none (any more).

        A process sees what it has written itself. Raises: BrokerUnavailable.
        """
        ...

    def follow(self, job_id: str) -> AbstractAsyncContextManager[AsyncIterator[JobRecord]]:
        """Yield the present record, if any, and each later one, for ever. Nothing is polled.

        Under a burst, records in between may be left out, but never the last one.
        """
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """A decided tick, and the lease of its run when one was asked for.

    `fence` grows with every claim of the same key.
    """

    key: str
    owner: str
    fence: int
    tick: datetime | None
    lease: float | None


@dataclass(frozen=True, slots=True)
class Skip:
    """Why nothing runs: the tick is `taken`, or a run that holds the lease is `running`."""

    reason: Literal["taken", "running"]
    by: str


LeaseAnswer: TypeAlias = Literal["held", "lost"]


class ClaimStore(Protocol):
    """One record per schedule: the last decided tick, and who holds the lease until when.

    A store that can't answer raises LockBackendError; nothing else raises.
    """

    async def last_tick(self, key: str) -> datetime | None:
        """Return the latest decided tick of `key`, or None before the first one."""
        ...

    async def claim(
        self, key: str, *, tick: datetime | None, owner: str, lease: float | None
    ) -> Claim | Skip:
        """Decide a tick once for all processes, and take the lease in the same step.

        A tick at or before the last decided one is `taken`. While another owner's lease is
        alive the answer is `running`, and the tick counts as decided. `tick` None (a manual
        run) asks for the lease alone. `lease` None asks for none. One attempt, no waiting;
        a repeated call of one owner for one tick gets the same answer.
        """
        ...

    async def extend(self, claim: Claim) -> LeaseAnswer:
        """Renew the lease for another `claim.lease` seconds; `lost` names a proven loss."""
        ...

    async def release(self, claim: Claim) -> None:
        """Give the lease up if this owner still has it. The tick stays decided."""
        ...


class Broker(Protocol):
    """Durable queues, one per job subject, with their state and claims.

    Entering connects, leaving closes; both happen in the same task. A broker is entered
    once. While it is away, calls raise BrokerUnavailable within a few seconds, and
    consumers come back by themselves.
    """

    @property
    def state(self) -> StateStore: ...
    @property
    def claims(self) -> ClaimStore: ...
    @property
    def max_size(self) -> int:
        """The most bytes that headers and body of one message may have together."""
        ...

    async def __aenter__(self) -> Broker: ...
    async def __aexit__(self, *exc_info: Any) -> bool | None: ...

    def describe(self) -> str:
        """Return one line for the start screen: where it is, without any secret."""
        ...

    async def provide(self, queue: Queue, *, is_serving: bool = False) -> None:
        """Create what the queue needs, if absent, and leave what is there as it is.

        `is_serving`: a worker starts, so its `concurrency` holds from now on. A producer may
        run an older release, and changes nothing.
        """
        ...

    async def publish(self, message: Message, *, due_at: datetime | None = None) -> Receipt:
        """Return when the message is stored, to be delivered at once or at `due_at`.

        Storing one id twice within two minutes stores it once. Raises: BrokerUnavailable
        when storing was not confirmed in time (it may still have happened),
        PayloadTooLarge before anything is sent.
        """
        ...

    async def consume(self, queue: Queue, run: Run, *, draining: anyio.Event) -> None:
        """Await `run(delivery)` for each message, `queue.options.slots` at once.

        Messages in hand are never more than slots. `concurrency` holds for all processes
        together. When `draining` is set, nothing new is taken, messages that were not
        begun go back, and the call returns once the runs in hand have ended. Cancelling
        the call cancels those runs, each by an anyio cancel scope around it; it returns when
        they have ended. `run` raises nothing but that cancellation.
        """
        ...


class ProcessPool(Protocol):
    """CPU work in processes of its own. Entering starts nothing yet; leaving stops all.

    Leaving waits for the calls in hand, except when it is left by an error.
    """

    async def __aenter__(self) -> ProcessPool: ...
    async def __aexit__(self, *exc_info: Any) -> bool | None: ...

    async def start(self) -> None:
        """Boot one worker and check that it finds every task. Raises: CpuStartError."""
        ...

    async def call(
        self,
        task: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        timeout: float | None,
        context: Mapping[str, str] | None = None,
    ) -> Any:
        """Run the task `module:qualname` in a worker process and return what it returned.

        Cancelling the call, or `timeout` seconds after it was handed over, kills the
        process. Raises what the task raised, or a CpuError.
        """
        ...

    async def stop(self, grace: float) -> None:
        """Refuse new calls, wait `grace` seconds for those in hand, kill the rest."""
        ...
