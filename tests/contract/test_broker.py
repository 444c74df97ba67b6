"""What every broker does with what is published, now and later; reads as a tutorial."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mega.errors import PayloadTooLarge, UnknownSubject
from mega.options import Backoff
from mega.ports import Delivery, Receipt
from tests.contract.bench import (
    ACK_WAIT,
    Bench,
    BusyWorker,
    Worker,
    consuming,
    eventually,
    job,
    message_of,
    new_queue,
)
from tests.waiting import until


async def test_a_job_arrives_as_it_was_sent(bench: Bench) -> None:
    queue, worker = new_queue(), Worker()
    sent = job(
        queue,
        b'{"to": "\xc3\xa4"}',
        retries=7,
        backoff=Backoff(initial=2.0),
        headers={"traceparent": "00-1-2-01"},
    )
    async with bench.broker() as broker:
        await broker.provide(queue)
        receipt = await broker.publish(sent)
        async with consuming(broker, queue, worker):
            await until(lambda: worker.deliveries, what="the delivery")
    assert not receipt.duplicate
    [delivery] = worker.deliveries
    assert sent == message_of(delivery)
    assert queue.subject == delivery.subject
    assert 1 == delivery.starts


async def test_the_broker_says_when_it_stored_a_job(bench: Bench) -> None:
    queue, worker = new_queue(), Worker()
    before = bench.now()
    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish(job(queue))
        after = bench.now()
        async with consuming(broker, queue, worker):
            await until(lambda: worker.deliveries, what="the delivery")
    stored_at = worker.deliveries[0].stored_at
    assert timedelta(0) == stored_at.utcoffset()
    assert before <= stored_at <= after


async def test_the_time_of_the_enqueue_travels_with_the_job(bench: Bench) -> None:
    queue, worker = new_queue(), Worker()
    enqueued_at = bench.now() - timedelta(hours=1, microseconds=1)
    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish(job(queue, enqueued_at=enqueued_at, attempt=2))
        async with consuming(broker, queue, worker):
            await until(lambda: worker.deliveries, what="the delivery")
    assert enqueued_at == message_of(worker.deliveries[0]).enqueued_at


async def test_a_consumer_gets_what_is_published_while_it_waits(bench: Bench) -> None:
    queue, worker = new_queue(), Worker()
    async with bench.broker() as broker:
        await broker.provide(queue)
        async with consuming(broker, queue, worker):
            await bench.pass_time(0.5)
            await broker.publish(job(queue, b"1"))
            await until(lambda: worker.bodies == [b"1"], what="the delivery")


async def test_one_id_is_stored_once(bench: Bench) -> None:
    queue, worker = new_queue(), Worker()
    async with bench.broker() as broker:
        await broker.provide(queue)
        first = await broker.publish(job(queue, b"first", id="invoice-1"))
        second = await broker.publish(job(queue, b"second", id="invoice-1"))
        await broker.publish(job(queue, b"other", id="invoice-2"))
        async with consuming(broker, queue, worker):
            await until(lambda: b"other" in worker.bodies, what="the other job")
    assert [False, True] == [first.duplicate, second.duplicate]
    assert [b"first", b"other"] == worker.bodies


async def test_an_id_is_a_duplicate_also_after_its_job_was_done(bench: Bench) -> None:
    queue, worker = new_queue(), Worker()
    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish(job(queue, id="invoice-1"))
        async with consuming(broker, queue, worker):
            await until(lambda: worker.deliveries, what="the delivery")
        again = await broker.publish(job(queue, id="invoice-1"))
        assert again.duplicate
        await eventually(lambda: bench.kept(broker, queue.subject), 0)


async def test_a_message_without_headers_is_a_job(bench: Bench) -> None:
    queue, worker = new_queue(), Worker()
    async with bench.broker() as broker:
        await broker.provide(queue)
        await bench.publish_raw(broker, queue.subject, b"1")
        await bench.publish_raw(broker, queue.subject, b"2")
        async with consuming(broker, queue, worker):
            await until(lambda: worker.bodies == [b"1", b"2"], what="both deliveries")
    one, two = map(message_of, worker.deliveries)
    assert (1, {}) == (one.attempt, one.headers)
    assert one.id != two.id


async def test_the_id_of_a_message_without_headers_stays(bench: Bench) -> None:
    queue, killed, worker = new_queue(), BusyWorker(), Worker()
    seen: list[str] = []

    async def note_and_work(delivery: Delivery) -> None:
        seen.append(delivery.fallback_id)
        await killed(delivery)

    async with bench.broker() as broker:
        await broker.provide(queue)
        await bench.publish_raw(broker, queue.subject, b"1")
        async with consuming(broker, queue, note_and_work) as call:
            await until(lambda: killed.running, what="the first run")
            await call.cancel()
        await bench.pass_time(ACK_WAIT)
        async with consuming(broker, queue, worker):
            await until(lambda: worker.deliveries, what="the second delivery")
    assert seen == [worker.deliveries[0].fallback_id]


async def test_one_slot_keeps_the_order(bench: Bench) -> None:
    queue, worker = new_queue(concurrency=1), Worker()
    bodies = [str(number).encode() for number in range(50)]
    async with bench.broker() as broker:
        await broker.provide(queue)
        for body in bodies:
            await broker.publish(job(queue, body))
        async with consuming(broker, queue, worker):
            await until(lambda: len(worker.bodies) == 50, what="50 jobs")
    assert bodies == worker.bodies


async def test_to_provide_twice_changes_nothing(bench: Bench) -> None:
    queue, worker = new_queue(), Worker()
    async with bench.broker() as broker, bench.second_broker(broker) as other:
        await broker.provide(queue)
        await broker.publish(job(queue, b"1"))
        await broker.provide(queue)
        await other.provide(queue)
        async with consuming(broker, queue, worker):
            await until(lambda: worker.bodies == [b"1"], what="the delivery")


async def test_a_job_over_the_limit_is_refused(bench: Bench) -> None:
    queue, worker = new_queue(), Worker()
    async with bench.broker() as broker:
        await broker.provide(queue)
        with pytest.raises(PayloadTooLarge):
            await broker.publish(job(queue, bytes(broker.max_size)))
        await broker.publish(job(queue, b"1"))
        async with consuming(broker, queue, worker):
            await until(lambda: worker.bodies == [b"1"], what="the job after the refused one")


async def test_headers_count_for_the_limit(bench: Bench) -> None:
    queue, worker = new_queue(), Worker()
    async with bench.broker() as broker:
        await broker.provide(queue)
        body = bytes(broker.max_size - 1000)
        with pytest.raises(PayloadTooLarge):
            await broker.publish(job(queue, body, headers={"note": "x" * 1000}))
        await broker.publish(job(queue, body, headers={"note": "x" * 500}))
        async with consuming(broker, queue, worker):
            await until(lambda: worker.bodies == [body], what="a job just under the limit")


async def test_a_delayed_job_waits_until_it_is_due(bench: Bench) -> None:
    queue = new_queue()
    started_at = []

    async def note(delivery: Delivery) -> None:
        started_at.append(bench.now())
        await delivery.ack()

    worker = Worker(note)
    async with bench.broker() as broker:
        await broker.provide(queue)
        async with consuming(broker, queue, worker):
            due_at = bench.now() + timedelta(seconds=1)
            await broker.publish(job(queue, b"later", id="report"), due_at=due_at)
            await broker.publish(job(queue, b"now"))
            await until(lambda: worker.bodies == [b"now"], what="the job that is due")
            await bench.pass_time(1)
            await until(lambda: worker.bodies == [b"now", b"later"], what="the delayed job")
    assert due_at <= started_at[1]
    assert "report" == message_of(worker.deliveries[1]).id


async def test_a_delayed_job_is_stored_once(bench: Bench) -> None:
    queue, worker = new_queue(), Worker()
    async with bench.broker() as broker:
        await broker.provide(queue)
        due_at = bench.now() + timedelta(seconds=0.5)
        await broker.publish(job(queue, id="report"), due_at=due_at)
        again = await broker.publish(job(queue, id="report"), due_at=due_at)
        async with consuming(broker, queue, worker):
            await bench.pass_time(0.5)
            await until(lambda: worker.deliveries, what="the delayed job")
    assert again.duplicate
    assert 1 == len(worker.deliveries)


async def test_a_due_time_in_the_past_means_now(bench: Bench) -> None:
    queue, worker = new_queue(), Worker()
    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish(job(queue, b"1"), due_at=bench.now() - timedelta(days=1))
        async with consuming(broker, queue, worker):
            await until(lambda: worker.bodies == [b"1"], what="the delivery")


async def test_a_delay_is_counted_by_the_broker(bench: Bench) -> None:
    queue, started_at = new_queue(), []

    async def note(delivery: Delivery) -> None:
        started_at.append(bench.now())
        await delivery.ack()

    async with bench.broker() as broker:
        await broker.provide(queue)
        async with consuming(broker, queue, note):
            begun = bench.now()
            await broker.publish(job(queue), after=1)
            await bench.pass_time(0.5)
            assert [] == started_at
            await bench.pass_time(0.5)
            await until(lambda: started_at, what="the delayed job")
    assert timedelta(seconds=0.9) < started_at[0] - begun


async def test_the_broker_has_a_clock(bench: Bench) -> None:
    async with bench.broker() as broker:
        assert timedelta(0) == broker.now().utcoffset()
        assert abs(broker.now() - bench.now()) < timedelta(seconds=5)


async def test_many_are_stored_in_their_order(bench: Bench) -> None:
    queue, worker = new_queue(concurrency=1), Worker()
    bodies = [str(number).encode() for number in range(1201)]
    async with bench.broker() as broker:
        await broker.provide(queue)
        receipts = await broker.publish_many([job(queue, body) for body in bodies])
        async with consuming(broker, queue, worker):
            await until(lambda: len(worker.bodies) == len(bodies), within=20, what="all jobs")
    assert [Receipt(duplicate=False)] * len(bodies) == receipts
    assert bodies == worker.bodies


async def test_none_are_stored_at_once(bench: Bench) -> None:
    async with bench.broker() as broker:
        assert [] == await broker.publish_many([])


async def test_many_keep_what_each_job_says(bench: Bench) -> None:
    queue, worker = new_queue(), Worker()
    sent = [job(queue, headers={"Tenant": str(number)}, retries=number) for number in range(3)]
    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish_many(sent)
        async with consuming(broker, queue, worker):
            await until(lambda: len(worker.bodies) == 3, what="all jobs")
    assert sent == [message_of(delivery) for delivery in worker.deliveries]


async def test_of_many_each_duplicate_is_told(bench: Bench) -> None:
    queue = new_queue()
    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish(job(queue, id="b"))
        receipts = await broker.publish_many([job(queue, id=each) for each in ("a", "b", "c", "a")])
        assert 3 == await bench.kept(broker, queue.subject)
    assert [False, True, False, True] == [
        isinstance(each, Receipt) and each.duplicate for each in receipts
    ]


async def test_one_that_is_too_large_refuses_many(bench: Bench) -> None:
    queue = new_queue()
    async with bench.broker() as broker:
        await broker.provide(queue)
        with pytest.raises(PayloadTooLarge):
            await broker.publish_many([job(queue), job(queue, bytes(broker.max_size))])
        assert 0 == await bench.kept(broker, queue.subject)


async def test_many_without_a_queue_are_refused(bench: Bench) -> None:
    queue = new_queue()
    async with bench.broker() as broker:
        outcomes = await broker.publish_many([job(queue), job(queue)])
    assert [UnknownSubject] * 2 == [type(outcome) for outcome in outcomes]


async def test_many_can_be_delayed(bench: Bench) -> None:
    queue, worker = new_queue(), Worker()
    async with bench.broker() as broker:
        await broker.provide(queue)
        async with consuming(broker, queue, worker):
            await broker.publish_many([job(queue, b"1"), job(queue, b"2")], after=1)
            due_at = bench.now() + timedelta(seconds=1)
            await broker.publish_many([job(queue, b"3"), job(queue, b"4")], due_at=due_at)
            await bench.pass_time(0.5)
            assert [] == worker.bodies
            await bench.pass_time(0.6)
            await until(lambda: len(worker.bodies) == 4, what="the delayed jobs")
    assert [b"1", b"2", b"3", b"4"] == sorted(worker.bodies)


async def test_the_unique_key_travels_with_the_job(bench: Bench) -> None:
    queue, worker = new_queue(), Worker()
    key = "order 7/ü%.*>\n" + "\N{SNOWMAN}" * 100
    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish(job(queue, unique=key))
        async with consuming(broker, queue, worker):
            await until(lambda: worker.deliveries, what="the delivery")
    assert key == message_of(worker.deliveries[0]).unique
