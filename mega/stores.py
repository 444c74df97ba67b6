"""What a broker keeps beside its queues: job records, guards, dead letters, claims, schedules.

These are contracts, and a part of `ports`, which is where to import them from.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Protocol, TypeAlias

from mega.wire.record import JobRecord
from mega.wire.schedule_record import ScheduleRecord

__all__ = [
    "FAR_AHEAD",
    "Claim",
    "ClaimStore",
    "Guard",
    "GuardStore",
    "Held",
    "Kept",
    "LeaseAnswer",
    "LetterStore",
    "Lost",
    "ScheduleStore",
    "Skip",
    "StateStore",
    "StoredLetter",
]


@dataclass(frozen=True, slots=True)
class Kept:
    """A record as it was read, or None. `version` tells whether somebody wrote since.

    `is_vacant`: nothing is kept, where `record` is also None for what can't be read.
    """

    record: JobRecord | None
    version: int
    is_vacant: bool


class StateStore(Protocol):
    """Job records by id, each with a time to live in seconds."""

    async def create(self, record: JobRecord, *, ttl: float) -> None:
        """Write the record unless there is one. Does not wait for the store.

        Raises: BrokerUnavailable, when what was written before can't be waited for.
        """
        ...

    async def write(self, record: JobRecord, *, ttl: float) -> None:
        """Write the record. Writes of one process arrive in order; it doesn't wait for them.

        What a broken connection swallows is written again, unless somebody wrote since.
        Raises: BrokerUnavailable, when it can't be kept.
        """
        ...

    async def get(self, job_id: str) -> JobRecord | None:
        """Return the record, or None when there is none (any more).

        A process sees what it has written itself. Raises: BrokerUnavailable.
        """
        ...

    async def is_alive(self, worker: str) -> bool:
        """Whether that process still gives the signs of life that `Broker.attend` began.

        A dead one may count as alive for some seconds. Raises: BrokerUnavailable.
        """
        ...

    async def flush(self) -> None:
        """Return when what was written has left this process, and so survives its death.

        Raises: BrokerUnavailable.
        """
        ...

    async def look(self, job_id: str, *, after_writes: bool = False) -> Kept:
        """Return the record with its version, for `replace`.

        It may miss what this process wrote a moment ago, unless it is to come `after_writes`.
        Raises: BrokerUnavailable.
        """
        ...

    async def replace(
        self, job_id: str, record: JobRecord | None, *, version: int, ttl: float
    ) -> bool:
        """Put `record`, or nothing, in the place of that version; wait for the store.

        False: somebody wrote since, and that stays.
        Raises: BrokerUnavailable, BrokerFull, PayloadTooLarge.
        """
        ...

    def follow(self, job_id: str) -> AbstractAsyncContextManager[AsyncIterator[JobRecord]]:
        """Yield the present record, if any, and each later one, for ever. Nothing is polled.

        Under a burst, records in between may be left out, but never the last one.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Who has a unique key of a subject.

    `is_stored`: the broker confirmed the holder's job. `is_timed`: it lasts for its `ttl`
    (seconds) and not until the job's end. `version` tells whether somebody wrote since, and
    `age` are the seconds since it was written.
    """

    subject: str
    key: str
    job_id: str
    ttl: float
    is_stored: bool = False
    is_timed: bool = False
    version: int = 0
    age: float = 0.0


class GuardStore(Protocol):
    """One guard for each unique key, which goes when its time to live is over.

    A job without a record whose worker dies before it can `free` keeps its key until then.
    """

    async def take(self, guard: Guard, *, over: Guard | None = None) -> Guard:
        """Write `guard` if nobody has the key, or if who has it is still `over`.

        Returns who has it then. Raises: BrokerUnavailable.
        """
        ...

    async def confirm(self, guard: Guard) -> None:
        """Note that the job of `guard` is stored, unless somebody wrote since.

        Raises: BrokerUnavailable.
        """
        ...

    async def free(self, subject: str, key: str, *, job_id: str) -> None:
        """Remove the guard if that job has it. Raises: BrokerUnavailable."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """A decided tick, and the lease of its run when one was asked for.

    `fence` grows with every claim of the same key. `lease` counts from the call, not from the
    answer: so whoever holds it knows by its own monotonic clock when it may have run out.
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


@dataclass(frozen=True, slots=True)
class Held:
    """The lease lasts for another `Claim.lease` seconds.

    `retaken`: the store had lost the record, and nobody else had claimed the key meanwhile.
    """

    retaken: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """Another owner has claimed the key. `by` is empty when it is not known (any more) who."""

    by: str = ""


LeaseAnswer: TypeAlias = Held | Lost


#: A tick that is decided so far ahead of the store's clock was decided by a clock that was wrong.
FAR_AHEAD = timedelta(hours=3)


class ClaimStore(Protocol):
    """One record per schedule: the last decided tick, and who holds the lease until when.

    A store that can't answer within a second or so raises LockBackendError; nothing else
    raises. What was asked may have been done all the same when the error is `ambiguous`.
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
        run) asks for the lease alone. `lease` None asks for none. One attempt, no waiting.

        A decided tick that is more than FAR_AHEAD, of the asked one and of the store's clock,
        counts for nothing: a clock that was wrong has decided it.

        A repeated call of one owner for one tick gets the same answer, and its lease counts
        anew; unless another owner has come between, who then is `running`.
        """
        ...

    async def extend(self, claim: Claim) -> LeaseAnswer:
        """Renew the lease for another `claim.lease` seconds.

        One that ran out, or whose record vanished, is taken again: only a claim of another
        owner is a loss.
        """
        ...

    async def release(self, claim: Claim) -> None:
        """Give the lease up if this owner still has it. The tick stays decided."""
        ...

    async def time(self) -> datetime:
        """Return the store's own instant, in UTC, as it was at some moment of the call."""
        ...


class ScheduleStore(Protocol):
    """Which schedules are paused, and what their last runs came to, by their names.

    All calls raise BrokerError. The runs of schedules wait for `paused` and `keep`, which
    give up within a second or so.
    """

    async def paused(self) -> Mapping[str, str]:
        """Return who paused each schedule that is paused, by its name."""
        ...

    async def pause(self, name: str, *, by: str) -> None:
        """Note for all processes that the schedule is paused; who was first stays noted."""
        ...

    async def resume(self, name: str) -> None:
        """Take that back."""
        ...

    async def keep(self, record: ScheduleRecord) -> None:
        """Keep `record` in the place of the schedule's earlier one."""
        ...

    async def last_run(self, name: str) -> ScheduleRecord | None:
        """Return what was kept last, or None."""
        ...


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """One stored dead letter. A large one lies in parts, with a sequence each."""

    sequences: tuple[int, ...]
    body: bytes

    @property
    def sequence(self) -> int:
        """The number that names the letter among those of its subject; it grows."""
        return self.sequences[-1]


class LetterStore(Protocol):
    """The dead letters of each subject. All calls raise BrokerUnavailable."""

    async def read(self, subject: str, *, limit: int, newest_first: bool) -> list[StoredLetter]:
        """Return at most `limit` letters; none when the subject never had any."""
        ...

    async def holds(self, subject: str, letter: StoredLetter) -> bool:
        """Return whether that letter is still there."""
        ...

    async def delete(self, subject: str, letter: StoredLetter) -> bool:
        """Remove that letter. Return False when it was not there any more."""
        ...

    async def purge(self, subject: str) -> int:
        """Remove all letters, and return how many messages that were."""
        ...
