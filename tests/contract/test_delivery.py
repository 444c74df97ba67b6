"""The four answers to a delivery, and what becomes of one without an answer."""

from __future__ import annotations

from datetime import datetime, timedelta

from mega.ports import Delivery
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
    next_copy_of,
)
from tests.waiting import until


async def test_an_acknowledged_job_is_gone(bench: Bench) -> None:
    queue, worker = new_queue(), Worker()
    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish(job(queue))
        async with consuming(broker, queue, worker):
            await until(lambda: worker.deliveries, what="the delivery")
            await eventually(lambda: bench.kept(broker, queue.subject), 0)
            await bench.pass_time(2 * ACK_WAIT)
    assert 1 == len(worker.deliveries)


async def test_a_retry_comes_after_its_delay_as_the_next_attempt(bench: Bench) -> None:
    queue = new_queue()
    started_at: list[datetime] = []

    async def fail_once(delivery: Delivery) -> None:
        started_at.append(bench.now())
        if len(started_at) == 1:
            await delivery.retry(next_copy_of(delivery, attempt=2, body=b"again"), after=1)
        else:
            await delivery.ack()

    worker = Worker(fail_once)
    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish(job(queue, b"first", id="report"))
        async with consuming(broker, queue, worker):
            await until(lambda: worker.deliveries, what="the first attempt")
            await bench.pass_time(1)
            await until(lambda: len(worker.deliveries) == 2, what="the second attempt")
            await eventually(lambda: bench.kept(broker, queue.subject), 0)
    second = message_of(worker.deliveries[1])
    assert ("report", 2, b"again") == (second.id, second.attempt, second.body)
    assert [1, 1] == worker.starts
    assert started_at[0] + timedelta(seconds=1) <= started_at[1]


async def test_a_retry_that_waits_holds_no_slot(bench: Bench) -> None:
    queue = new_queue(concurrency=1)

    async def put_off(delivery: Delivery) -> None:
        if delivery.body == b"failing":
            await delivery.retry(next_copy_of(delivery, attempt=2), after=3600)
        else:
            await delivery.ack()

    worker = Worker(put_off)
    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish(job(queue, b"failing"))
        await broker.publish(job(queue, b"fine"))
        async with consuming(broker, queue, worker):
            await until(lambda: worker.bodies == [b"failing", b"fine"], what="the next job")
        await eventually(lambda: bench.kept(broker, queue.subject), 1)


async def test_a_retry_is_stored_once_however_often_it_is_asked_for(bench: Bench) -> None:
    queue = new_queue()

    async def fail_once(delivery: Delivery) -> None:
        if message_of(delivery).attempt == 1:
            copy = next_copy_of(delivery, attempt=2)
            await delivery.retry(copy, after=0.3)
            await delivery.retry(copy, after=0.3)
        else:
            await delivery.ack()

    worker = Worker(fail_once)
    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish(job(queue, id="report"))
        async with consuming(broker, queue, worker):
            await until(lambda: worker.deliveries, what="the first attempt")
            await bench.pass_time(0.3)
            await until(lambda: len(worker.deliveries) == 2, what="the second attempt")
            await eventually(lambda: bench.kept(broker, queue.subject), 0)
            await bench.pass_time(ACK_WAIT)
    assert 2 == len(worker.deliveries)


async def test_one_attempt_can_be_put_off_again_and_again(bench: Bench) -> None:
    queue = new_queue()

    async def snooze_twice(delivery: Delivery) -> None:
        if len(worker.deliveries) < 3:
            await delivery.retry(next_copy_of(delivery), after=0.3)
        else:
            await delivery.ack()

    worker = Worker(snooze_twice)
    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish(job(queue, id="report"))
        async with consuming(broker, queue, worker):
            await until(lambda: len(worker.deliveries) == 1, what="the first run")
            await bench.pass_time(0.3)
            await until(lambda: len(worker.deliveries) == 2, what="the second run")
            await bench.pass_time(0.3)
            await until(lambda: len(worker.deliveries) == 3, what="the third run")
    assert [1, 1, 1] == [message_of(delivery).attempt for delivery in worker.deliveries]


async def test_a_job_that_is_given_back_comes_at_once_as_the_same_attempt(bench: Bench) -> None:
    queue = new_queue()

    async def give_back_twice(delivery: Delivery) -> None:
        if len(worker.deliveries) < 3:
            await delivery.give_back(next_copy_of(delivery))
        else:
            await delivery.ack()

    worker = Worker(give_back_twice)
    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish(job(queue, b"1", id="report", attempt=2))
        async with consuming(broker, queue, worker):
            await until(lambda: len(worker.deliveries) == 3, what="the third delivery")
            await eventually(lambda: bench.kept(broker, queue.subject), 0)
    messages = list(map(message_of, worker.deliveries))
    assert [(message.id, message.attempt) for message in messages] == [("report", 2)] * 3
    assert [1, 1, 1] == worker.starts


async def test_a_dead_letter_takes_the_place_of_its_job(bench: Bench) -> None:
    queue = new_queue()
    worker = Worker(lambda delivery: delivery.dead_letter(b'{"why": "no"}', letter_id="report"))
    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish(job(queue, id="report"))
        async with consuming(broker, queue, worker):
            await until(lambda: worker.deliveries, what="the delivery")
            await eventually(lambda: bench.kept(broker, queue.subject), 0)
        assert [b'{"why": "no"}'] == await bench.dead_letters(broker, queue.subject)


async def test_a_run_that_was_cancelled_starts_again(bench: Bench) -> None:
    queue, killed, worker = new_queue(), BusyWorker(), Worker()
    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish(job(queue, b"1", id="report"))
        async with consuming(broker, queue, killed) as call:
            await until(lambda: killed.running, what="the first run")
            await call.cancel()
        async with consuming(broker, queue, worker):
            await bench.pass_time(ACK_WAIT)
            await until(lambda: worker.deliveries, what="the second run")
    assert [2] == worker.starts
    assert "report" == message_of(worker.deliveries[0]).id


async def test_a_run_that_gives_no_answer_starts_again(bench: Bench) -> None:
    queue = new_queue()

    async def answer_late(delivery: Delivery) -> None:
        if delivery.starts > 1:
            await delivery.ack()

    worker = Worker(answer_late)
    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish(job(queue))
        async with consuming(broker, queue, worker):
            await until(lambda: worker.deliveries, what="the first run")
            await bench.pass_time(ACK_WAIT)
            await until(lambda: len(worker.deliveries) == 2, what="the second run")
            await eventually(lambda: bench.kept(broker, queue.subject), 0)
    assert [1, 2] == worker.starts


async def test_a_long_run_is_not_started_again(bench: Bench) -> None:
    queue, busy = new_queue(concurrency=2), BusyWorker()
    async with bench.broker() as broker, bench.second_broker(broker) as other:
        await broker.provide(queue)
        await broker.publish(job(queue))
        async with consuming(broker, queue, busy), consuming(other, queue, busy):
            await until(lambda: busy.running, what="the run")
            await bench.pass_time(3 * ACK_WAIT)
            busy.let_go()
            await eventually(lambda: bench.kept(broker, queue.subject), 0)
    assert 1 == busy.started
