"""What a contract test needs of an adapter, beside the port itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any, Protocol

import anyio

from mega.adapters.memory import MemoryBroker
from mega.options import JobOptions
from mega.ports import Broker, Delivery, Queue, Run
from mega.testing import VirtualClock
from mega.wire.message import Message, new_id, unpack

# How long the broker under test waits for the answer of a consumer that is gone.
ACK_WAIT = 1.0
GIVE_UP_AFTER = 30.0


class Bench(Protocol):
    """One adapter under test, with its time and a look behind its port."""

    @abstractmethod
    def broker(self) -> AbstractAsyncContextManager[Broker]:
        """Connect a process to the queue."""

    @abstractmethod
    def second_broker(self, first: Broker) -> AbstractAsyncContextManager[Broker]:
        """Connect another process, or give the first one when there can't be two."""

    @abstractmethod
    def now(self) -> datetime:
        """Return the time that the adapter lives in."""

    @abstractmethod
    async def pass_time(self, seconds: float) -> None:
        """Let time go by, virtual or real."""

    @abstractmethod
    async def publish_raw(self, broker: Broker, subject: str, body: bytes) -> None:
        """Store a message as a producer without mega does: no headers."""

    @abstractmethod
    async def kept(self, broker: Broker, subject: str) -> int:
        """Return how many messages the subject has: waiting, delayed and in hand."""

    @abstractmethod
    async def dead_letters(self, broker: Broker, subject: str) -> list[bytes]:
        """Return the subject's dead letters, oldest first."""


class MemoryBench:
    """The memory adapter under a virtual clock. Its one broker stands for every process."""

    def __init__(self) -> None:
        self.clock = VirtualClock()

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[Broker]:
        with anyio.fail_after(GIVE_UP_AFTER):
            async with MemoryBroker(self.clock) as broker:
                yield broker

    @asynccontextmanager
    async def second_broker(self, first: Broker) -> AsyncIterator[Broker]:
        yield first

    def now(self) -> datetime:
        return self.clock.now()

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def publish_raw(self, broker: Broker, subject: str, body: bytes) -> None:
        assert isinstance(broker, MemoryBroker)
        await broker.publish_raw(subject, body)

    async def kept(self, broker: Broker, subject: str) -> int:
        assert isinstance(broker, MemoryBroker)
        return broker.waiting(subject) + broker.delayed(subject) + broker.in_hand(subject)

    async def dead_letters(self, broker: Broker, subject: str) -> list[bytes]:
        assert isinstance(broker, MemoryBroker)
        return broker.dead_letters(subject)


class Worker:
    """A run that remembers its deliveries, and answers each with an ack or as it is told."""

    def __init__(self, answer: Callable[[Delivery], Awaitable[None]] | None = None) -> None:
        self.deliveries: list[Delivery] = []
        self._answer = answer

    async def __call__(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        await (self._answer(delivery) if self._answer else delivery.ack())

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.deliveries]

    @property
    def starts(self) -> list[int]:
        return [delivery.starts for delivery in self.deliveries]


class BusyWorker:
    """A run that lasts until it is let go, and counts how many are at it."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.started = 0
        self.ended = 0
        self.cancelled = 0
        self._may_end = anyio.Event()

    def let_go(self) -> None:
        """End the runs in hand, and let all later ones end by themselves."""
        self._may_end.set()

    async def __call__(self, delivery: Delivery) -> None:
        self.started += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self._may_end.wait()
            await anyio.sleep(0.001)
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        self.ended += 1
        await delivery.ack()


class Consuming:
    """A call of `consume` in the background."""

    def __init__(self) -> None:
        self.draining = anyio.Event()
        self.returned = anyio.Event()
        self._scope = anyio.CancelScope()

    async def start(self, broker: Broker, queue: Queue, run: Run) -> None:
        try:
            with self._scope:
                await broker.consume(queue, run, draining=self.draining)
        finally:
            self.returned.set()

    async def drain(self) -> None:
        """Take nothing new, and wait for the runs in hand."""
        self.draining.set()
        await self.returned.wait()

    async def cancel(self) -> None:
        """Cancel the call, and wait until it has returned."""
        self._scope.cancel()
        await self.returned.wait()


@asynccontextmanager
async def consuming(broker: Broker, queue: Queue, run: Run) -> AsyncIterator[Consuming]:
    """Consume while the block lasts, and drain at its end."""
    call = Consuming()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.start, broker, queue, run)
        yield call
        call.draining.set()


def new_queue(**options: Any) -> Queue:
    """Return a queue that no other test uses."""
    return Queue(f"contract.{new_id()}", JobOptions(**options))


def job(queue: Queue, body: bytes = b"{}", **fields: Any) -> Message:
    """Return a job for that queue."""
    return Message(**{"id": new_id(), "subject": queue.subject, "body": body} | fields)


def message_of(delivery: Delivery) -> Message:
    """Return the job in that delivery."""
    return unpack(
        delivery.subject, delivery.headers, delivery.body, fallback_id=delivery.fallback_id
    )


def next_copy_of(delivery: Delivery, *, attempt: int | None = None, **changes: Any) -> Message:
    """Return the copy that follows that delivery's in the chain of its job."""
    message = message_of(delivery)
    number = message.attempt if attempt is None else attempt
    enqueued_at = message.enqueued_at or delivery.stored_at
    return message.next_copy(attempt=number, enqueued_at=enqueued_at).but(**changes)


async def eventually(
    ask: Callable[[], Awaitable[object]], expected: object, *, within: float = 10.0
) -> None:
    """Return when the answer is as expected; fail the test after `within` seconds."""
    answer = await ask()
    with anyio.move_on_after(within):
        while answer != expected:
            await anyio.sleep(0.01)
            answer = await ask()
    assert expected == answer
