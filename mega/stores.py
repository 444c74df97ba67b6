"""What a broker keeps beside its queues: job records, unique guards, dead letters, claims.

These are contracts, and a part of `ports`, which is where to import them from.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol, TypeAlias

from mega.wire.record import JobRecord

__all__ = [
    "Claim",
    "ClaimStore",
    "Guard",
    "GuardStore",
    "Kept",
    "LeaseAnswer",
    "LetterStore",
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
    """One guard for each unique key, which goes when its time to live is over."""

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
