"""What the memory adapter has beside its contract: counts, clocks, and its way in and out."""

from __future__ import annotations

from datetime import timedelta

import anyio
import pytest
from anyio.lowlevel import checkpoint

from mega.adapters.memory import DUPLICATE_WINDOW, MemoryBroker
from mega.adapters.memory_stores import MemoryState
from mega.errors import BrokerUnavailable, UnknownSubject
from mega.options import JobOptions
from mega.ports import Broker, Delivery, Queue
from mega.testing import VirtualClock
from mega.wire.message import Message, new_id
from mega.wire.record import JobRecord

QUEUE = Queue("email.send", JobOptions(concurrency=2))


def job(job_id: str | None = None, body: bytes = b"{}") -> Message:
    return Message(id=job_id or new_id(), subject=QUEUE.subject, body=body)


def counts(broker: MemoryBroker) -> tuple[int, int, int]:
    subject = QUEUE.subject
    return broker.waiting(subject), broker.delayed(subject), broker.in_hand(subject)


async def test_it_is_a_broker() -> None:
    broker: Broker = MemoryBroker(VirtualClock())
    assert broker.describe().startswith("memory:")


async def test_it_counts_what_it_has() -> None:
    clock, started = VirtualClock(), anyio.Event()

    async def run(delivery: Delivery) -> None:
        started.set()
        await clock.sleep(5)
        await delivery.ack()

    async with MemoryBroker(clock) as broker, anyio.create_task_group() as tasks:
        await broker.provide(QUEUE)
        for _ in range(3):
            await broker.publish(job())
        await broker.publish(job(), due_at=clock.now() + timedelta(seconds=30))
        assert (3, 1, 0) == counts(broker)
        draining = anyio.Event()
        tasks.start_soon(lambda: broker.consume(QUEUE, run, draining=draining))
        await started.wait()
        assert (1, 1, 2) == counts(broker)
        await clock.advance(10)
        assert (0, 1, 0) == counts(broker)
        await clock.advance(25)
        assert (0, 0, 0) == counts(broker)
        draining.set()


async def test_an_id_is_a_duplicate_for_two_minutes() -> None:
    clock = VirtualClock()
    async with MemoryBroker(clock) as broker:
        await broker.provide(QUEUE)
        await broker.publish(job("invoice-1"))
        await clock.advance(DUPLICATE_WINDOW - 1)
        assert (await broker.publish(job("invoice-1"))).duplicate
        await clock.advance(1)
        assert not (await broker.publish(job("invoice-1"))).duplicate


async def test_a_delay_of_a_month_is_a_matter_of_the_clock() -> None:
    clock, month = VirtualClock(), timedelta(days=30)
    async with MemoryBroker(clock) as broker:
        await broker.provide(QUEUE)
        await broker.publish(job(), due_at=clock.now() + month)
        await clock.advance(month.total_seconds() - 1)
        assert (0, 1, 0) == counts(broker)
        await clock.advance(1)
        assert (1, 0, 0) == counts(broker)


async def test_what_it_stores_can_not_be_changed_from_outside() -> None:
    body, headers = bytearray(b"1"), {"trace": "a"}
    seen: list[tuple[bytes, str]] = []
    draining = anyio.Event()

    async def run(delivery: Delivery) -> None:
        assert delivery.headers
        seen.append((delivery.body, delivery.headers["trace"]))
        draining.set()

    async with MemoryBroker(VirtualClock()) as broker:
        await broker.provide(QUEUE)
        sent = Message(id="1", subject=QUEUE.subject, body=body, headers=headers)  # type: ignore[arg-type]
        await broker.publish(sent)
        body[:] = b"2"
        headers["trace"] = "b"
        await broker.consume(QUEUE, run, draining=draining)
    assert [(b"1", "a")] == seen


async def test_a_subject_that_nobody_provided_keeps_nothing() -> None:
    async with MemoryBroker(VirtualClock()) as broker:
        with pytest.raises(UnknownSubject, match=r'jobs for "email\.send"'):
            await broker.publish(job())


async def test_it_must_be_entered() -> None:
    with pytest.raises(BrokerUnavailable, match="not entered"):
        await MemoryBroker(VirtualClock()).provide(QUEUE)


async def test_the_error_of_its_block_comes_out_as_it_is() -> None:
    clock = VirtualClock()

    async def fail() -> None:
        async with MemoryBroker(clock) as broker:
            await broker.provide(QUEUE)
            await broker.publish(job(), due_at=clock.now() + timedelta(days=1))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()


async def test_leaving_ends_at_once_whatever_is_delayed() -> None:
    clock = VirtualClock()
    with anyio.move_on_after(0.02) as scope:
        async with MemoryBroker(clock) as broker:
            await broker.provide(QUEUE)
            await broker.publish(job(), due_at=clock.now() + timedelta(days=1))
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_handlers_that_never_wait_leave_the_loop_to_others() -> None:
    draining = anyio.Event()
    left = 1000

    async def run(delivery: Delivery) -> None:
        nonlocal left
        left -= 1
        await delivery.ack()

    async with MemoryBroker(VirtualClock()) as broker, anyio.create_task_group() as tasks:
        await broker.provide(QUEUE)
        for _ in range(left):
            await broker.publish(job())
        tasks.start_soon(lambda: broker.consume(QUEUE, run, draining=draining))
        for _ in range(10):
            await checkpoint()
        assert left > 900
        draining.set()


async def test_what_comes_back_goes_before_what_waits() -> None:
    bodies: list[bytes] = []
    draining = anyio.Event()

    async def run(delivery: Delivery) -> None:
        bodies.append(delivery.body)
        if len(bodies) > 1:
            await delivery.ack()
        if len(bodies) == 3:
            draining.set()

    async with MemoryBroker(VirtualClock()) as broker:
        queue = Queue(QUEUE.subject, JobOptions(concurrency=1))
        await broker.provide(queue)
        await broker.publish(job(body=b"1"))
        await broker.publish(job(body=b"2"))
        await broker.consume(queue, run, draining=draining)
    assert [b"1", b"1", b"2"] == bodies


async def test_expired_records_take_no_memory() -> None:
    clock = VirtualClock()
    state = MemoryState(clock)
    for number in range(100):
        await state.write(JobRecord(id=str(number), subject="s", state="done"), ttl=10)
        await clock.advance(1)
    assert 10 == len(state._kept)
    assert 10 == len(state._ends)
