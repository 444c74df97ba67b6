"""The queue in memory: all of `ports.Broker` within one process, for tests and `memory:`.

Time is the given clock's alone, so that a virtual one moves it. Nothing outlives the object.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heappop, heappush
from itertools import count
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from mega.adapters.memory_letters import MemoryLetters
from mega.adapters.memory_schedules import MemorySchedules
from mega.adapters.memory_stores import MemoryClaims, MemoryGuards, MemoryState
from mega.adapters.scopes import leave_to
from mega.errors import BrokerUnavailable, PayloadTooLarge, UnknownSubject
from mega.ports import Clock, OnBegin, Outcome, Queue, Receipt, Run
from mega.wire.message import Message, pack, server_id

__all__ = ["MemoryBroker"]

MAX_SIZE = 1024 * 1024
DUPLICATE_WINDOW = 120.0


class MemoryBroker:
    """Implements `ports.Broker`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._streams: dict[str, _Stream] = {}
        self._timers: TaskGroup | None = None
        self._state = MemoryState(clock)
        self._claims = MemoryClaims(clock)
        self._guards = MemoryGuards(clock)
        self._schedules = MemorySchedules()
        self._letters = MemoryLetters()

    @property
    def state(self) -> MemoryState:
        return self._state

    @property
    def claims(self) -> MemoryClaims:
        return self._claims

    @property
    def guards(self) -> MemoryGuards:
        return self._guards

    @property
    def schedules(self) -> MemorySchedules:
        return self._schedules

    @property
    def letters(self) -> MemoryLetters:
        return self._letters

    @property
    def duplicate_window(self) -> float:
        return DUPLICATE_WINDOW

    @property
    def max_size(self) -> int:
        return MAX_SIZE

    async def __aenter__(self) -> Self:
        self._timers = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        # Given the body's error, the group would wrap it; its answer on trio would swallow it.
        if self._timers is not None:
            self._timers.cancel_scope.cancel()
            await self._timers.__aexit__(None, None, None)

    def describe(self) -> str:
        return "memory:  in this process, gone when it ends"

    async def provide(self, queue: Queue, *, is_serving: bool = False) -> None:
        if self._timers is None:
            raise BrokerUnavailable("the broker in memory is not entered.")
        if queue.subject not in self._streams:
            stream = _Stream(queue, self._clock, self._timers, self._letters)
            self._streams[queue.subject] = stream

    async def attend(self, worker: str) -> None:
        await checkpoint()

    def now(self) -> datetime:
        return self._clock.now()

    async def publish(
        self, message: Message, *, due_at: datetime | None = None, after: float = 0.0
    ) -> Receipt:
        await checkpoint()
        stream, headers = self._stream(message.subject), pack(message)
        _check_size(message, headers)
        if due_at is not None:
            after = (due_at - self._clock.now()).total_seconds()
        if not stream.admit((server_id(message),)):
            return Receipt(duplicate=True)
        stream.put(message.body, headers, after=after)
        return Receipt(duplicate=False)

    async def publish_many(
        self,
        messages: Sequence[Message],
        *,
        due_at: datetime | None = None,
        after: float = 0.0,
        on_begin: OnBegin | None = None,
    ) -> list[Outcome]:
        for message in messages:
            _check_size(message, pack(message))
        if on_begin is not None:
            await on_begin(messages)
        try:
            return [await self.publish(message, due_at=due_at, after=after) for message in messages]
        except UnknownSubject as error:  # they have one subject, so it was the first
            return [error] * len(messages)

    async def publish_raw(self, subject: str, body: bytes) -> None:
        """Store a message without headers, as a foreign producer does."""
        await checkpoint()
        self._stream(subject).put(body, None)

    async def consume(self, queue: Queue, run: Run, *, draining: anyio.Event) -> None:
        await self.provide(queue)
        stream = self._stream(queue.subject)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.wake_when, draining)
            for _ in range(queue.options.slots):
                tasks.start_soon(stream.work, run, draining)

    def dead_letters(self, subject: str) -> list[bytes]:
        """Return the subject's dead letters, oldest first."""
        return self._letters.bodies(subject)

    def waiting(self, subject: str) -> int:
        """Return how many messages could be delivered now."""
        return len(self._stream(subject).waiting)

    def delayed(self, subject: str) -> int:
        """Return how many messages wait for their time."""
        return self._stream(subject).delayed

    def in_hand(self, subject: str) -> int:
        """Return how many messages are with a consumer."""
        return len(self._stream(subject).in_hand)

    def _stream(self, subject: str) -> _Stream:
        try:
            return self._streams[subject]
        except KeyError:
            text = f'nothing was provided to keep jobs for "{subject}".'
            raise UnknownSubject(text, hint="A worker of the job's app keeps them.") from None


@dataclass(slots=True, order=True)
class _Copy:
    """One stored message. The order of copies is that of their storing."""

    sequence: int
    body: bytes = field(compare=False)
    headers: dict[str, str] | None = field(compare=False)
    stored_at: datetime = field(compare=False)
    starts: int = field(default=0, compare=False)


class _Stream:
    """What is kept of one subject, and who waits for it."""

    def __init__(
        self, queue: Queue, clock: Clock, timers: TaskGroup, letters: MemoryLetters
    ) -> None:
        self.subject = queue.subject
        self.waiting: list[_Copy] = []
        self.in_hand: dict[int, _Copy] = {}
        self.delayed = 0
        self.letters = letters
        self._concurrency = queue.options.concurrency
        self._clock = clock
        self._timers = timers
        self._sequences = count(1)
        self._admitted: dict[Hashable, float] = {}
        self._waiters: dict[anyio.Event, None] = {}

    def admit(self, key: Hashable) -> bool:
        """Note `key`. Return False if it was noted within the duplicate window."""
        now = self._clock.monotonic()
        self._forget_before(now - DUPLICATE_WINDOW)
        if key in self._admitted:
            return False
        self._admitted[key] = now
        return True

    def _forget_before(self, instant: float) -> None:
        while self._admitted:
            oldest = next(iter(self._admitted))
            if self._admitted[oldest] > instant:
                return
            del self._admitted[oldest]

    def put(self, body: bytes, headers: dict[str, str] | None, *, after: float = 0) -> None:
        if after > 0:
            self.delayed += 1
            self._timers.start_soon(self._put_later, body, headers, after)
            return
        sequence, stored_at = next(self._sequences), self._clock.now()
        heappush(self.waiting, _Copy(sequence, bytes(body), headers, stored_at))
        self._wake_one()

    async def _put_later(self, body: bytes, headers: dict[str, str] | None, after: float) -> None:
        await self._clock.sleep(after)
        self.delayed -= 1
        self.put(body, headers)

    async def work(self, run: Run, draining: anyio.Event) -> None:
        """Be one slot: run one message after the other."""
        while copy := await self._take(draining):
            try:
                with anyio.CancelScope() as scope:
                    await run(_Delivery(self, copy, scope))
            finally:
                self._take_back(copy)

    async def wake_when(self, draining: anyio.Event) -> None:
        """Let the slots see that they are to stop."""
        await draining.wait()
        for waiter in self._waiters:
            waiter.set()

    def remove(self, copy: _Copy) -> None:
        """Forget a message that was answered; its slot takes the next one when the run ends."""
        self.in_hand.pop(copy.sequence, None)

    @property
    def _has_next(self) -> bool:
        return bool(self.waiting) and len(self.in_hand) < self._concurrency

    async def _take(self, draining: anyio.Event) -> _Copy | None:
        await checkpoint()  # or handlers that never wait would keep the loop to themselves
        try:
            while not draining.is_set() and not self._has_next:
                await self._wait()
            return None if draining.is_set() else self._hand_over()
        finally:
            self._wake_one()

    def _hand_over(self) -> _Copy:
        copy = heappop(self.waiting)
        copy.starts += 1
        self.in_hand[copy.sequence] = copy
        return copy

    def _take_back(self, copy: _Copy) -> None:
        if self.in_hand.pop(copy.sequence, None):
            heappush(self.waiting, copy)
            self._wake_one()

    async def _wait(self) -> None:
        waiter = anyio.Event()
        self._waiters[waiter] = None
        try:
            await waiter.wait()
        finally:
            self._waiters.pop(waiter, None)

    def _wake_one(self) -> None:
        """Wake one slot; it wakes the next if there is more, or if it can't take any."""
        if self._has_next and self._waiters:
            waiter = next(iter(self._waiters))
            del self._waiters[waiter]
            waiter.set()


class _Delivery:
    """Implements `ports.Delivery`."""

    def __init__(self, stream: _Stream, copy: _Copy, scope: anyio.CancelScope) -> None:
        self.scope = scope
        self._stream = stream
        self._copy = copy
        self.starts = copy.starts
        self.lapsed = False

    @property
    def subject(self) -> str:
        return self._stream.subject

    @property
    def body(self) -> bytes:
        return self._copy.body

    @property
    def headers(self) -> Mapping[str, str] | None:
        return None if self._copy.headers is None else dict(self._copy.headers)

    @property
    def fallback_id(self) -> str:
        return f"{self.subject}.{self._copy.sequence}"

    @property
    def stored_at(self) -> datetime:
        return self._copy.stored_at

    def begin(self) -> bool:
        return not self.lapsed

    def leave_scopes(self) -> None:
        leave_to(self.scope)

    async def ack(self) -> None:
        self._stream.remove(self._copy)

    async def retry(self, copy: Message, *, after: float) -> None:
        await self._replace(copy, after)

    async def give_back(self, copy: Message) -> None:
        await self._replace(copy, 0)

    async def dead_letter(self, letter: bytes, *, letter_id: str) -> None:
        await checkpoint()
        if self._stream.admit(("dead letter", letter_id)):
            self._stream.letters.store(self.subject, letter)
        self._stream.remove(self._copy)

    async def _replace(self, copy: Message, after: float) -> None:
        await checkpoint()
        if self._stream.admit((server_id(copy),)):
            self._stream.put(copy.body, pack(copy), after=after)
        self._stream.remove(self._copy)


def _check_size(message: Message, headers: Mapping[str, str]) -> None:
    """Count as NATS does: a status line, `name: value` lines and an empty one."""
    size = 14 + sum(len(name) + len(value) + 4 for name, value in headers.items())
    size += len(message.body)
    if size > MAX_SIZE:
        raise PayloadTooLarge(
            f'a job for "{message.subject}" takes {size:,} bytes, the broker {MAX_SIZE:,} at most.',
            hint="Store the data elsewhere, and let the payload say where.",
        )
