"""What a caller learns who waits for a result: each outcome by its name, and never too late."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from mega import App
from mega.adapters.nats.layout import job_stream
from mega.declare.broker_url import parse_broker_url
from mega.errors import JobFailedError, ResultExpired
from mega.handles import Job
from mega.options import JobOptions
from mega.ports import Queue
from tests.cases.onlooker import Onlooker
from tests.cases.served import serving
from tests.unit.adapters.nats.asking import until_answer


async def test_each_outcome_has_an_answer_of_its_own(broker: str, subject: str) -> None:
    """result-01: done, running, failed, not kept, and expired or unknown can be told apart.

    Cancelled jobs come with a later release. What has expired can't be told from what never
    was, since nothing is left of it; the error says both.
    """
    app, may_end = App("cases", broker=broker), anyio.Event()

    @app.job(f"{subject}.done")
    async def done() -> int:
        return 1

    @app.job(f"{subject}.running")
    async def running() -> None:
        await may_end.wait()

    @app.job(f"{subject}.failed", retries=0)
    async def failed() -> None:
        raise ValueError("no such customer")

    @app.job(f"{subject}.untracked", track=False)
    async def untracked() -> None: ...

    @app.job(f"{subject}.short", result_ttl=1)
    async def short() -> None: ...

    async with serving(app):
        jobs = [await each.enqueue() for each in (done, running, failed, untracked, short)]
        await jobs[4].wait(timeout=10)
        await until_gone(jobs[4])
        outcomes = [await outcome(job) for job in jobs]
        may_end.set()

    assert "1" == outcomes[0]
    assert f'TimeoutError: the job {jobs[1].id} on "{jobs[1].subject}" has not ended' in outcomes[1]
    assert "JobFailedError" in outcomes[2]
    assert "ValueError: no such customer" in outcomes[2]
    assert "ResultExpired" in outcomes[3]
    assert "track=False" in outcomes[3]
    assert "ResultExpired" in outcomes[4]
    assert "ran out, or it was never written" in outcomes[4]
    assert 5 == len(set(outcomes))


async def outcome(job: Job[Any]) -> str:
    """Return the result, or the error that is raised in its place, as text."""
    try:
        return str(await job.result(timeout=1))
    except (TimeoutError, JobFailedError, ResultExpired) as error:
        return f"{type(error).__name__}: {error}"


async def until_gone(job: Job[Any]) -> None:
    """Wait until nothing is known of the job."""

    async def is_known() -> bool:
        try:
            await job.state()
        except ResultExpired:
            return False
        return True

    await until_answer(is_known, lambda known: not known, what="the end of the record")


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
async def test_an_empty_result_is_a_result(broker: str, subject: str, value: Any) -> None:
    """result-03: a result that is false in Python ends the wait like any other."""
    app = App("cases", broker=broker)

    @app.job(subject)
    async def give(payload: Any) -> Any:
        return payload

    async with serving(app):
        job = await give.enqueue(value)
        result = await job.result(timeout=10)
        again = await job.result(timeout=10)

    assert (value, value) == (result, again)
    assert type(value) is type(result)


async def test_a_record_that_runs_out_under_a_waiter(broker: str, subject: str) -> None:
    """result-05: who waits hears of the end at once; who comes too late is told that it expired."""
    app, may_end, results = App("cases", broker=broker), anyio.Event(), []

    @app.job(subject, result_ttl=1)
    async def give() -> int:
        await may_end.wait()
        return 7

    async def wait(job: Job[int]) -> None:
        results.append(await job.result(timeout=20))

    async with serving(app):
        job = await give.enqueue()
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(wait, job)
            may_end.set()
        await until_gone(job)
        with pytest.raises(ResultExpired, match="ran out"):
            await job.result(timeout=5)

    assert [7, 7, 7] == results


async def forgetful_stream(onlooker: Onlooker, broker: str, subject: str) -> None:
    """Make the stream of the subject with a memory of ids of one second."""
    config = job_stream(Queue(subject, JobOptions()), parse_broker_url(broker))
    config["duplicate_window"] = 1_000_000_000
    request = f"$JS.API.STREAM.CREATE.{config['name']}", json.dumps(config).encode()
    answer = await onlooker.client.request(*request, timeout=5)
    assert "error" not in json.loads(answer.data)


async def test_an_id_that_is_used_again_has_no_old_result(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """result-01, result-05: a job that waits doesn't answer with the result of an earlier one."""
    await forgetful_stream(onlooker, broker, subject)
    app = App("cases", broker=broker)

    @app.job(subject)
    async def give(number: int) -> int:
        return number

    async def again() -> Job[int]:
        return await give.enqueue(2, id=f"{subject}-7", delay=2)

    async with serving(app):
        assert 1 == await (await give.enqueue(1, id=f"{subject}-7")).result(timeout=10)
        second = await until_answer(again, lambda job: not job.duplicate, what="a new job")
        assert "waiting" == (await second.state()).state
        assert 2 == await second.result(timeout=15)
