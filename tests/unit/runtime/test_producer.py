"""Enqueue beside its happy path: producers that die between two steps, refusals, old records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from mega.adapters.memory import MemoryBroker
from mega.errors import BrokerError, BrokerFull, BrokerUnavailable
from mega.handles import EnqueueOptions, Job
from mega.options import JobOptions
from mega.ports import Guard, NotBegun, OnBegin, Outcome, Queue, Receipt
from mega.runtime.hub import Hub
from mega.runtime.producer import GUARD_TTL, Producer, Target
from mega.testing import VirtualClock
from mega.wire.message import Message
from mega.wire.payload import Codec
from mega.wire.record import JobRecord, JobState

SUBJECT, KEY = "report.build", "ada"
TTL = 3600.0


class UnsteadyBroker(MemoryBroker):
    """The broker in memory, which refuses, loses or repeats what it is told to."""

    refusal: BrokerError | None = None
    lost_receipt = False
    room = 10_000
    batch = 10_000
    tries = 1
    on_stored: Callable[[], Awaitable[None]] | None = None

    async def publish(
        self, message: Message, *, due_at: datetime | None = None, after: float = 0.0
    ) -> Receipt:
        if self.refusal is not None:
            raise self.refusal
        if self.room <= 0:
            raise BrokerFull("no room.")
        self.room -= 1
        for _ in range(self.tries):
            receipt = await super().publish(message, due_at=due_at, after=after)
        if self.on_stored is not None:
            await self.on_stored()
        if self.lost_receipt:
            raise BrokerUnavailable("not confirmed.")
        return receipt

    async def publish_many(
        self,
        messages: Sequence[Message],
        *,
        due_at: datetime | None = None,
        after: float = 0.0,
        on_begin: OnBegin | None = None,
    ) -> list[Outcome]:
        outcomes: list[Outcome] = [NotBegun()] * len(messages)
        for first in range(0, len(messages), self.batch):
            part = slice(first, first + self.batch)
            if on_begin is not None:
                await on_begin(messages[part])
            outcomes[part] = await self._store_each(messages[part], due_at, after)
            if not isinstance(outcomes[part][-1], Receipt):
                break
        return outcomes

    async def _store_each(
        self, messages: Sequence[Message], due_at: datetime | None, after: float
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for message in messages:
            try:
                outcomes.append(await self.publish(message, due_at=due_at, after=after))
            except BrokerError as error:
                outcomes.append(error)
        return outcomes


class Bench:
    """A producer on a broker of its own, under a virtual clock."""

    def __init__(self, broker: UnsteadyBroker, clock: VirtualClock) -> None:
        self.broker = broker
        self.clock = clock
        self.producer = Producer(broker, Hub([]))
        codec: Codec[Any] = Codec(int, job=SUBJECT)
        self.target = Target(SUBJECT, codec, codec, queue=Queue(SUBJECT, JobOptions()))

    async def enqueue(self, payload: int = 1, **options: Any) -> Job[Any]:
        return await self.producer.enqueue(self.target, payload, EnqueueOptions(**options))

    async def record(self, job_id: str, state: JobState, **fields: Any) -> None:
        """Write what a worker would."""
        record = JobRecord(id=job_id, subject=SUBJECT, state=state, **fields)
        await self.broker.state.write(record, ttl=TTL)

    async def died_before_its_job(self) -> Guard:
        """Leave the guard of a producer that died before it stored its job."""
        await self.broker.provide(Queue(SUBJECT, JobOptions()))
        guard = Guard(subject=SUBJECT, key=KEY, job_id="of-the-dead", ttl=GUARD_TTL)
        return await self.broker.guards.take(guard)

    async def died_after_its_job(self) -> Guard:
        """Leave the guard and the job of a producer that died before it confirmed the guard."""
        guard = await self.died_before_its_job()
        message = Message(id=guard.job_id, subject=SUBJECT, body=b"0", unique=KEY)
        await self.broker.publish(message)
        return guard


@asynccontextmanager
async def connected() -> AsyncIterator[Bench]:
    clock = VirtualClock()
    async with UnsteadyBroker(clock) as broker:
        yield Bench(broker, clock)


# -- unique


async def test_a_key_whose_producer_died_before_its_job_is_finished_under_its_id() -> None:
    async with connected() as bench:
        await bench.died_before_its_job()
        job = await bench.enqueue(unique=KEY)
        again = await bench.enqueue(unique=KEY)
        assert 1 == bench.broker.waiting(SUBJECT)
    assert ("of-the-dead", False) == (job.id, job.duplicate)
    assert ("of-the-dead", True) == (again.id, again.duplicate)


async def test_a_key_whose_producer_died_after_its_job_has_that_job() -> None:
    async with connected() as bench:
        await bench.died_after_its_job()
        job = await bench.enqueue(unique=KEY)
        assert 1 == bench.broker.waiting(SUBJECT)
        await bench.clock.advance(bench.broker.duplicate_window + 1)
        later = await bench.enqueue(unique=KEY)  # which knows that it is stored
        assert 1 == bench.broker.waiting(SUBJECT)
    assert [("of-the-dead", True)] * 2 == [(each.id, each.duplicate) for each in (job, later)]


async def test_an_old_guard_without_a_job_is_taken_over() -> None:
    async with connected() as bench:
        await bench.died_before_its_job()
        await bench.clock.advance(bench.broker.duplicate_window)
        job = await bench.enqueue(unique=KEY)
    assert not job.duplicate
    assert "of-the-dead" != job.id


async def test_an_old_guard_whose_job_ran_holds() -> None:
    async with connected() as bench:
        guard = await bench.died_after_its_job()
        await bench.clock.advance(bench.broker.duplicate_window)
        await bench.record(guard.job_id, "retrying")
        job = await bench.enqueue(unique=KEY)
        assert 1 == bench.broker.waiting(SUBJECT)
    assert ("of-the-dead", True) == (job.id, job.duplicate)


@pytest.mark.parametrize("state", ["done", "failed"])
async def test_a_key_that_was_not_freed_is_void_when_its_job_has_ended(state: JobState) -> None:
    async with connected() as bench:
        first = await bench.enqueue(unique=KEY)
        assert (await bench.enqueue(unique=KEY)).duplicate
        await bench.record(first.id, state)
        second = await bench.enqueue(unique=KEY)
    assert not second.duplicate
    assert first.id != second.id


async def test_a_key_with_a_time_of_its_own_holds_when_its_job_has_ended() -> None:
    async with connected() as bench:
        first = await bench.enqueue(unique=KEY, unique_for=60)
        await bench.record(first.id, "done")
        second = await bench.enqueue(unique=KEY)
    assert (first.id, True) == (second.id, second.duplicate)


async def test_a_key_outlives_the_delay_of_its_job() -> None:
    async with connected() as bench:
        at = bench.clock.now() + timedelta(days=30)
        for key, options in (("delay", {"delay": 30 * 24 * 3600}), ("at", {"at": at})):
            await bench.enqueue(unique=key, **options)
        await bench.clock.advance(30 * 24 * 3600 + GUARD_TTL - 1)
        assert (await bench.enqueue(unique="delay")).duplicate
        assert (await bench.enqueue(unique="at")).duplicate
        await bench.clock.advance(1)
        assert not (await bench.enqueue(unique="delay")).duplicate


async def test_a_lost_receipt_leaves_a_key_that_the_next_enqueue_finishes() -> None:
    async with connected() as bench:
        bench.broker.lost_receipt = True
        with pytest.raises(BrokerUnavailable):
            await bench.enqueue(unique=KEY)
        bench.broker.lost_receipt = False
        job = await bench.enqueue(unique=KEY)
        assert 1 == bench.broker.waiting(SUBJECT)
    assert job.duplicate


async def test_a_refused_job_frees_its_key_and_not_that_of_another() -> None:
    async with connected() as bench:
        bench.broker.refusal = BrokerFull("no room.")
        with pytest.raises(BrokerFull):
            await bench.enqueue(unique=KEY)
        bench.broker.refusal = None
        await bench.died_before_its_job()
        bench.broker.refusal = BrokerFull("no room.")
        with pytest.raises(BrokerFull):
            await bench.enqueue(unique=KEY)
        bench.broker.refusal = None
        assert "of-the-dead" == (await bench.enqueue(unique=KEY)).id


# -- records


@pytest.mark.parametrize("options", [{}, {"id": "invoice-7"}, {"unique": KEY}])
async def test_a_refused_job_leaves_no_record(options: dict[str, Any]) -> None:
    async with connected() as bench:
        bench.broker.refusal = BrokerFull("no room.")
        with pytest.raises(BrokerFull):
            await bench.enqueue(**options)
        assert [] == bench.broker.state.records()


async def test_a_job_that_was_refused_and_comes_again_has_a_record() -> None:
    async with connected() as bench:
        bench.broker.refusal = BrokerFull("no room.")
        with pytest.raises(BrokerFull):
            await bench.enqueue(id="invoice-7")
        bench.broker.refusal = None
        job = await bench.enqueue(id="invoice-7")
        assert "waiting" == (await job.state()).state


async def test_a_job_that_may_be_stored_keeps_its_record() -> None:
    async with connected() as bench:
        bench.broker.lost_receipt = True
        with pytest.raises(BrokerUnavailable):
            await bench.enqueue(id="invoice-7")
        assert ["waiting"] == [record.state for record in bench.broker.state.records()]


async def test_a_refused_job_leaves_the_record_of_an_earlier_one_of_its_id() -> None:
    async with connected() as bench:
        await bench.enqueue(id="invoice-7")
        await bench.record("invoice-7", "done")
        bench.broker.refusal = BrokerFull("no room.")
        with pytest.raises(BrokerFull):
            await bench.enqueue(id="invoice-7")
        (record,) = bench.broker.state.records()
    assert "done" == record.state


async def test_an_id_that_is_used_again_waits() -> None:
    async with connected() as bench:
        await bench.enqueue(id="invoice-7")
        await bench.record("invoice-7", "done")
        await bench.clock.advance(bench.broker.duplicate_window)
        job = await bench.enqueue(id="invoice-7")
        assert "waiting" == (await job.state()).state


async def test_the_record_of_a_duplicate_stays() -> None:
    async with connected() as bench:
        await bench.enqueue(id="invoice-7")
        await bench.record("invoice-7", "done")
        job = await bench.enqueue(id="invoice-7")
        assert ("done", True) == ((await job.state()).state, job.duplicate)


async def test_a_worker_that_is_faster_than_the_renewal_of_a_record_wins() -> None:
    async with connected() as bench:
        await bench.enqueue(id="invoice-7")
        await bench.record("invoice-7", "done")
        await bench.clock.advance(bench.broker.duplicate_window)
        bench.broker.on_stored = lambda: bench.record("invoice-7", "done", attempt=2)
        job = await bench.enqueue(id="invoice-7")
        assert 2 == (await job.state()).attempt


async def test_a_lost_answer_does_not_make_a_new_job_a_duplicate() -> None:
    async with connected() as bench:
        bench.broker.tries = 2
        assert not (await bench.enqueue()).duplicate
        assert not (await bench.enqueue(unique=KEY)).duplicate


# -- many


async def test_a_broker_that_fills_up_says_how_many_are_stored() -> None:
    async with connected() as bench:
        bench.broker.room = 2
        with pytest.raises(BrokerFull, match=r"Of 5 jobs 2 are known to be stored\."):
            await bench.producer.enqueue_many(bench.target, range(5), {})
        assert 2 == bench.broker.waiting(SUBJECT)
        assert 2 == len(bench.broker.state.records())


async def test_after_a_failure_no_further_part_is_begun() -> None:
    async with connected() as bench:
        bench.broker.room = 1500
        with pytest.raises(BrokerFull, match=r"Of 4,000 jobs 1,500 are known to be stored\."):
            await bench.producer.enqueue_many(bench.target, range(4000), {})
        assert 1500 == len(bench.broker.state.records())


async def test_of_many_only_what_may_be_stored_has_a_record() -> None:
    async with connected() as bench:
        bench.broker.batch = 2
        bench.broker.lost_receipt = True
        with pytest.raises(BrokerUnavailable, match=r"Of 5 jobs 0 are known to be stored\."):
            await bench.producer.enqueue_many(bench.target, range(5), {})
        assert 2 == bench.broker.waiting(SUBJECT)
        assert 2 == len(bench.broker.state.records())


async def test_a_due_time_is_kept_in_the_record() -> None:
    async with connected() as bench:
        now = bench.clock.now()
        await bench.enqueue(delay=60)
        await bench.enqueue(at=now + timedelta(seconds=60))
        await bench.enqueue(at=now)
        due = [record.due_at for record in bench.broker.state.records()]
    assert [now + timedelta(seconds=60)] * 2 + [None] == due
