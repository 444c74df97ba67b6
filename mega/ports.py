"""What the runtime needs of the outside world, as contracts.

Every adapter of a port passes the port's suite in `tests/contract/`. An adapter may rely
on one event loop; it imports `wire` and the leaf types and nothing of the runtime.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeAlias

import anyio

from mega.cpu import Report
from mega.errors import BrokerError, PayloadTooLarge
from mega.options import JobOptions
from mega.stores import (
    FAR_AHEAD,
    Claim,
    ClaimStore,
    Guard,
    GuardStore,
    Held,
    Kept,
    LeaseAnswer,
    LetterStore,
    Lost,
    ScheduleStore,
    Skip,
    StateStore,
    StoredLetter,
)
from mega.wire.message import Message

__all__ = [
    "FAR_AHEAD",
    "Broker",
    "Claim",
    "ClaimStore",
    "Clock",
    "Delivery",
    "Guard",
    "GuardStore",
    "Held",
    "Kept",
    "LeaseAnswer",
    "LetterStore",
    "Lost",
    "NotBegun",
    "OnBegin",
    "Outcome",
    "ProcessPool",
    "Queue",
    "Receipt",
    "Run",
    "ScheduleStore",
    "Skip",
    "StateStore",
    "StoredLetter",
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


@dataclass(frozen=True, slots=True)
class NotBegun:
    """The message was not sent, as another one had failed."""


#: What became of one message of many: stored, what `publish` would have raised, or nothing.
Outcome: TypeAlias = Receipt | NotBegun | BrokerError | PayloadTooLarge

#: Told of those among many messages that are about to be sent.
OnBegin: TypeAlias = Callable[[Sequence[Message]], Awaitable[None]]


class Delivery(Protocol):
    """One hand-over of a stored message.

    The lease is renewed by the adapter until one of the four methods was called; none is
    called again once one has succeeded. After a crash the message comes back as another
    delivery with `starts` one higher; `starts` counts the hand-overs of this copy, from 1.
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

    @property
    def lapsed(self) -> bool:
        """Whether the lease ran out while it was in hand: others may have got the message."""
        ...

    def begin(self) -> bool:
        """Note that the run begins. False: it must not, for the lease has lapsed meanwhile.

        The message is another worker's then, or comes back. Until it has begun, a later hand-over
        of the same copy to this process takes the place of this one.
        """
        ...

    def leave_scopes(self) -> None:
        """Leave the cancel scopes that the handler has entered in this task and not left.

        Called when the handler has ended, before its answer.
        """
        ...

    async def ack(self) -> None:
        """Remove the message. Returns before the broker has confirmed it."""
        ...

    async def retry(self, copy: Message, *, after: float) -> None:
        """Store `copy` to be delivered after that many seconds, then remove this message.

        The removal follows the confirmed storing. Of all copies with the same `server_id` one
        is stored: a crash in between neither loses nor doubles the job.
        Raises: BrokerUnavailable or PayloadTooLarge, and the message stays.
        """
        ...

    async def give_back(self, copy: Message) -> None:
        """Store `copy` for delivery at once, then remove this message: as `retry`.

        Does nothing when the lease has lapsed: the message comes back, or is with others.
        """
        ...

    async def dead_letter(self, letter: bytes, *, letter_id: str) -> None:
        """Store `letter` among the subject's dead letters, then remove this message.

        A letter of any size is stored, and of all letters with the same `letter_id` one. The
        call may be repeated when it was refused.
        Raises: BrokerError or PayloadTooLarge, and the message stays.
        """
        ...


Run: TypeAlias = Callable[[Delivery], Awaitable[None]]


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
    def guards(self) -> GuardStore: ...
    @property
    def schedules(self) -> ScheduleStore: ...
    @property
    def letters(self) -> LetterStore: ...
    @property
    def duplicate_window(self) -> float:
        """For how many seconds an id that was stored is known."""
        ...

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

    async def attend(self, worker: str) -> None:
        """Give signs of life under that name until the broker is left, whatever the loop does.

        Raises: BrokerUnavailable.
        """
        ...

    def now(self) -> datetime:
        """Return the instant by the broker's own clock, as nearly as it is known; aware."""
        ...

    async def publish(
        self, message: Message, *, due_at: datetime | None = None, after: float = 0.0
    ) -> Receipt:
        """Return when the message is stored, to be delivered at once or later.

        Later is at `due_at`, or `after` that many seconds by the broker's clock, whatever
        the time is here. Storing one id twice within `duplicate_window` stores it once.
        Raises: BrokerUnavailable when storing was not confirmed in time (it may still have
        happened), BrokerFull and UnknownSubject when it certainly was not, PayloadTooLarge
        before anything is sent.
        """
        ...

    async def publish_many(
        self,
        messages: Sequence[Message],
        *,
        due_at: datetime | None = None,
        after: float = 0.0,
        on_begin: OnBegin | None = None,
    ) -> list[Outcome]:
        """Store messages of one subject in their order, as `publish` does, and faster.

        Returns for each one its receipt, or what `publish` would have raised; after a
        failure nothing more is begun. `on_begin` is awaited with some at a time, right before
        they are sent, and with all that are; a BrokerError of it is their outcome. Raises:
        PayloadTooLarge before any of them is sent, for what is over `max_size`; a stream may
        have a lower limit.
        """
        ...

    async def consume(self, queue: Queue, run: Run, *, draining: anyio.Event) -> None:
        """Await `run(delivery)` for each message, `queue.options.slots` at once.

        Messages in hand are never more than slots. `concurrency` holds for all processes
        together. When `draining` is set, nothing new is taken, messages that were not
        begun go back, and the call returns once the runs in hand have ended. `run` may wait,
        and asks `Delivery.begin` before it does anything. Cancelling
        the call cancels those runs, each by an anyio cancel scope around it; it returns when
        they have ended. `run` raises nothing but that cancellation.
        """
        ...


class ProcessPool(Protocol):
    """CPU work in processes of its own. Entering starts nothing yet; leaving stops all.

    Leaving waits for the calls in hand, except when it is left by an error. `size` is how many
    calls it runs at once.
    """

    size: int

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
        context: Mapping[str, str | int] | None = None,
        on_progress: Report | None = None,
    ) -> Any:
        """Run the task `module:qualname` in a worker and return what it returned.

        Cancelling the call, or `timeout` seconds after it was handed over, ends it at once; a
        worker process is killed, a thread is left behind. `context` goes into its log records.
        `on_progress` is told in the event loop of what the task reports; it must not raise or
        wait. Raises what the task raised, or a CpuError.
        """
        ...

    async def stop(self, grace: float) -> None:
        """Refuse new calls, wait `grace` seconds for those in hand, kill the rest."""
        ...
