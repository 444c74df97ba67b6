"""How many runs there are at once, and how consuming ends."""

from __future__ import annotations

import anyio
import pytest

from mega.ports import Delivery
from tests.contract.bench import (
    ACK_WAIT,
    Bench,
    BusyWorker,
    Worker,
    consuming,
    eventually,
    job,
    new_queue,
    next_copy_of,
)
from tests.waiting import until


@pytest.mark.parametrize(("concurrency", "per_worker", "slots"), [(3, None, 3), (5, 2, 2)])
async def test_all_slots_are_used_and_no_more(
    bench: Bench, concurrency: int, per_worker: int | None, slots: int
) -> None:
    queue, busy = new_queue(concurrency=concurrency, per_worker=per_worker), BusyWorker()
    async with bench.broker() as broker:
        await broker.provide(queue)
        for _ in range(12):
            await broker.publish(job(queue))
        async with consuming(broker, queue, busy):
            await until(lambda: busy.running == slots, what="a run in each slot")
            busy.let_go()
            await until(lambda: busy.ended == 12, what="all jobs")
    assert slots == busy.most


async def test_concurrency_holds_for_all_consumers_together(bench: Bench) -> None:
    queue, busy = new_queue(concurrency=3), BusyWorker()
    async with bench.broker() as broker, bench.second_broker(broker) as other:
        await broker.provide(queue)
        async with consuming(broker, queue, busy), consuming(other, queue, busy):
            for _ in range(12):
                await broker.publish(job(queue))
            await until(lambda: busy.running == 3, what="three runs")
            await bench.pass_time(0.3)
            busy.let_go()
            await until(lambda: busy.ended == 12, what="all jobs")
    assert 3 == busy.most


async def test_consumers_share_the_work(bench: Bench) -> None:
    queue, one, two = new_queue(concurrency=4, per_worker=2), BusyWorker(), BusyWorker()
    async with bench.broker() as broker, bench.second_broker(broker) as other:
        await broker.provide(queue)
        async with consuming(broker, queue, one), consuming(other, queue, two):
            for _ in range(8):
                await broker.publish(job(queue))
            await until(lambda: (one.running, two.running) == (2, 2), what="two runs each")
            one.let_go()
            two.let_go()
            await until(lambda: one.ended + two.ended == 8, what="all jobs")


async def test_draining_ends_the_runs_in_hand_and_takes_nothing_new(bench: Bench) -> None:
    queue, busy, heir = new_queue(concurrency=2), BusyWorker(), Worker()
    async with bench.broker() as broker:
        await broker.provide(queue)
        for _ in range(6):
            await broker.publish(job(queue))
        async with consuming(broker, queue, busy) as call:
            await until(lambda: busy.running == 2, what="two runs")
            call.draining.set()
            await bench.pass_time(0.3)
            assert not call.returned.is_set()
            busy.let_go()
            await call.returned.wait()
        assert (2, 2) == (busy.started, busy.ended)
        async with consuming(broker, queue, heir):
            await until(lambda: len(heir.deliveries) == 4, what="the jobs that were not begun")
    assert [1, 1, 1, 1] == heir.starts


async def test_a_consumer_that_drains_leaves_its_place_to_another(bench: Bench) -> None:
    queue, leaving, heir = new_queue(concurrency=1), BusyWorker(), Worker()
    async with bench.broker() as broker, bench.second_broker(broker) as other:
        await broker.provide(queue)
        await broker.publish(job(queue, b"1"))
        await broker.publish(job(queue, b"2"))
        async with consuming(broker, queue, leaving) as call:
            await until(lambda: leaving.running, what="the run")
            async with consuming(other, queue, heir):
                call.draining.set()
                await bench.pass_time(0.1)
                leaving.let_go()
                await until(lambda: heir.bodies == [b"2"], what="the next job at the other")
    assert (1, 1) == (leaving.started, leaving.ended)


async def test_draining_an_idle_consumer_returns(bench: Bench) -> None:
    queue, worker = new_queue(concurrency=4), Worker()
    async with bench.broker() as broker:
        await broker.provide(queue)
        async with consuming(broker, queue, worker) as call:
            await broker.publish(job(queue))
            await until(lambda: worker.deliveries, what="the delivery")
            await call.drain()
            await broker.publish(job(queue))
            await bench.pass_time(0.3)
    assert 1 == len(worker.deliveries)


async def test_cancelling_consume_cancels_its_runs(bench: Bench) -> None:
    queue, busy = new_queue(concurrency=3), BusyWorker()
    async with bench.broker() as broker:
        await broker.provide(queue)
        for _ in range(3):
            await broker.publish(job(queue))
        async with consuming(broker, queue, busy) as call:
            await until(lambda: busy.running == 3, what="three runs")
            await call.cancel()
            assert (0, 3) == (busy.running, busy.cancelled)


async def test_another_consumer_takes_over_from_one_that_is_gone(bench: Bench) -> None:
    queue, gone, heir = new_queue(concurrency=1), BusyWorker(), Worker()
    async with bench.broker() as broker, bench.second_broker(broker) as other:
        await broker.provide(queue)
        await broker.publish(job(queue))
        async with consuming(broker, queue, gone) as call:
            await until(lambda: gone.running, what="the run")
            async with consuming(other, queue, heir):
                await bench.pass_time(0.1)
                await call.cancel()
                await bench.pass_time(ACK_WAIT)
                await until(lambda: heir.starts == [2], what="the other consumer's run")


async def test_a_cancelled_run_may_still_give_its_job_back(bench: Bench) -> None:
    queue, heir, started = new_queue(), Worker(), anyio.Event()

    async def give_back_at_the_end(delivery: Delivery) -> None:
        try:
            started.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await delivery.give_back(next_copy_of(delivery))

    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish(job(queue, b"1"))
        async with consuming(broker, queue, give_back_at_the_end) as call:
            await started.wait()
            await call.cancel()
        async with consuming(broker, queue, heir):
            await until(lambda: heir.bodies == [b"1"], what="the job that was given back")
            await eventually(lambda: bench.kept(broker, queue.subject), 0)
    assert [1] == heir.starts


async def test_a_flood_on_one_subject_does_not_stop_another(bench: Bench) -> None:
    flooded, quiet = new_queue(concurrency=2), new_queue(concurrency=1)
    busy, worker = BusyWorker(), Worker()
    async with bench.broker() as broker:
        await broker.provide(flooded)
        await broker.provide(quiet)
        for _ in range(200):
            await broker.publish(job(flooded))
        async with consuming(broker, flooded, busy), consuming(broker, quiet, worker):
            await until(lambda: busy.running == 2, what="the flood")
            await broker.publish(job(quiet, b"1"))
            await until(lambda: worker.bodies == [b"1"], what="the quiet subject's job")
            assert 2 == busy.started
            busy.let_go()
            await until(lambda: busy.ended == 200, what="the end of the flood")


async def test_a_thousand_jobs_run_exactly_once_each(bench: Bench) -> None:
    queue, worker = new_queue(concurrency=10), Worker()
    bodies = {str(number).encode() for number in range(1000)}
    async with bench.broker() as broker:
        await broker.provide(queue)
        async with consuming(broker, queue, worker), anyio.create_task_group() as tasks:
            for body in bodies:
                tasks.start_soon(broker.publish, job(queue, body))
            await until(lambda: len(worker.deliveries) >= 1000, what="1,000 jobs")
            await eventually(lambda: bench.kept(broker, queue.subject), 0)
    assert bodies == set(worker.bodies)
    assert 1000 == len(worker.bodies)
