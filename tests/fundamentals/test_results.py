"""What enqueue returns: a handle to ask for the state, the end and the result of the job."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import pytest

from mega import App, Job, JobFailedError, ResultExpired


@dataclass
class Receipt:
    number: int


async def test_the_result_comes_back_as_its_declared_type() -> None:
    app = App("shop")

    @app.job("order.pay")
    async def pay(order_id: int) -> Receipt:
        return Receipt(order_id)

    async with app.test() as t:
        job = await pay.enqueue(7)
        await t.drain()
        assert Receipt(7) == await job.result()


async def test_a_result_can_be_waited_for() -> None:
    app, results = App("shop"), []

    @app.job("order.pay")
    async def pay(order_id: int) -> str:
        await t.clock.sleep(60)
        return f"paid {order_id}"

    async def wait(job: Job[str]) -> None:
        results.append(await job.result())

    async with app.test() as t:
        job = await pay.enqueue(7)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, job)
            await t.advance(59)
            assert [] == results
            await t.advance(1)

    assert ["paid 7"] == results


async def test_waiting_ends_after_a_timeout() -> None:
    app = App("shop")

    @app.job("order.pay")
    async def pay() -> None: ...

    async with app.test():
        job = await pay.enqueue(delay=3600)
        with pytest.raises(TimeoutError):
            await job.wait(timeout=0.01)


async def test_the_state_follows_the_job() -> None:
    app, states = App("shop"), []

    @app.job("order.pay", retries=1, backoff=10)
    async def pay() -> None:
        states.append((await job.state()).state)
        if len(states) < 4:
            raise ConnectionError("the bank is away")

    async with app.test() as t:
        job = await pay.enqueue(delay=5)
        states.append((await job.state()).state)
        await t.advance(5)
        states.append((await job.state()).state)
        await t.advance(10)
        states.append((await job.state()).state)

    assert ["waiting", "running", "retrying", "running", "done"] == states


async def test_the_state_tells_the_error_and_the_time_of_the_next_run() -> None:
    app = App("shop")

    @app.job("order.pay", retries=1, backoff=10)
    async def pay() -> None:
        raise ConnectionError("the bank is away")

    async with app.test() as t:
        job = await pay.enqueue()
        await t.drain()
        record = await job.state()
        assert (1, "ConnectionError: the bank is away") == (record.attempt, record.error)
        assert record.due_at is not None
        assert 10 == (record.due_at - t.clock.now()).total_seconds()


async def test_the_result_of_a_failed_job_is_an_error_that_says_why() -> None:
    app = App("shop")

    @app.job("order.pay", retries=0)
    async def pay() -> None:
        raise ConnectionError("the bank is away")

    async with app.test() as t:
        job = await pay.enqueue()
        await t.drain()
        with pytest.raises(JobFailedError, match="ConnectionError: the bank is away"):
            await job.result()
        assert "failed" == (await job.wait()).state


async def test_a_result_that_is_not_json_leaves_the_job_done() -> None:
    app, runs = App("shop"), []

    @app.job("order.pay")
    async def pay() -> object:
        runs.append(1)
        return object()

    async with app.test() as t:
        job = await pay.enqueue()
        await t.advance(3600 - 1)
        assert "done" == (await job.state()).state
        with pytest.raises(JobFailedError):
            await job.result()

    assert [1] == runs


async def test_a_result_is_kept_for_its_time_to_live() -> None:
    app = App("shop")

    @app.job("order.pay", result_ttl=60)
    async def pay() -> str:
        return "paid"

    async with app.test() as t:
        job = await pay.enqueue()
        await t.advance(59)
        assert "paid" == await job.result()
        await t.advance(1)
        with pytest.raises(ResultExpired, match="its record ran out"):
            await job.result()


async def test_an_untracked_job_runs_and_leaves_no_record() -> None:
    app, runs = App("shop"), []

    @app.job("page.view", track=False)
    async def count_view() -> None:
        runs.append(1)

    async with app.test() as t:
        job = await count_view.enqueue()
        await t.drain()
        assert [] == t.jobs
        with pytest.raises(ResultExpired, match="track=False"):
            await job.state()

    assert [1] == runs
