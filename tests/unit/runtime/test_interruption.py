"""Runs that the end of the process interrupts: each is given back, or done."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import anyio
import pytest
from anyio.lowlevel import checkpoint

from mega.context import JobContext
from mega.control import Reject
from mega.ports import Guard
from mega.runtime.execution import Execution
from tests.unit.runtime.stage import AWAY, Handed, Stage, declare


async def test_a_cancelled_run_is_given_back_and_costs_no_attempt(stage: Stage) -> None:
    attempts = []

    async def slow(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            await stage.clock.sleep(math.inf)

    job = declare(slow)
    async with stage.serving(job):
        await stage.publish()
        await stage.clock.advance(0)
        assert "running" == (await stage.record("1")).state
    assert "waiting" == (await stage.record("1")).state
    assert 1 == stage.broker.waiting("email.send")
    async with stage.serving(job):
        await stage.clock.advance(0)
        assert "done" == (await stage.record("1")).state

    assert [1, 1] == attempts


@pytest.mark.parametrize("is_tracked", [True, False])
@pytest.mark.parametrize("error", [ValueError("no time to clean up"), SystemExit(1), Reject("no")])
async def test_an_error_that_a_handler_makes_of_its_cancellation_costs_no_attempt(
    stage: Stage, error: BaseException, is_tracked: bool
) -> None:
    attempts = []

    async def stubborn(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            try:
                await stage.clock.sleep(math.inf)
            finally:
                raise error

    job = declare(stubborn, retries=0, track=is_tracked)
    for _ in range(2):
        async with stage.serving(job):
            if not attempts:
                await stage.publish()
            await stage.clock.advance(0)

    assert [1, 1] == attempts
    assert ["job.start", "job.start", "job.done"] == stage.kinds
    assert [] == stage.letters


async def test_a_handler_that_ends_well_although_it_was_cancelled_is_done(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = stage.broker.guards.free

    async def free_over_a_network(subject: str, key: str, *, job_id: str) -> None:
        await checkpoint()
        await free(subject, key, job_id=job_id)

    async def tidy() -> str:
        with suppress(anyio.get_cancelled_exc_class()):
            await stage.clock.sleep(math.inf)
        return "tidied up"

    monkeypatch.setattr(stage.broker.guards, "free", free_over_a_network)
    held = Guard(subject="email.send", key="key", job_id="1", ttl=60)
    await stage.broker.guards.take(held)
    async with stage.serving(declare(tidy)):
        await stage.publish(unique="key")
        await stage.clock.advance(0)
    await stage.clock.advance(0)

    assert b'"tidied up"' == bytes((await stage.record("1")).result)
    assert ["job.start", "job.done"] == stage.kinds
    assert "2" == (await stage.broker.guards.take(replace(held, job_id="2"))).job_id


async def test_errors_of_a_handler_that_is_being_cancelled_do_not_hide_the_cancellation(
    stage: Stage,
) -> None:
    async def stubborn() -> None:
        try:
            await stage.clock.sleep(math.inf)
        finally:
            raise ValueError("no time to clean up")

    async def parent() -> None:
        async with anyio.create_task_group() as children:
            children.start_soon(stubborn)
            children.start_soon(stage.clock.sleep, math.inf)

    async with stage.serving(declare(parent)):
        await stage.publish()
        await stage.clock.advance(0)

    assert 1 == stage.broker.waiting("email.send") + stage.broker.delayed("email.send")


async def test_giving_back_to_a_broker_that_is_away_ends_with_the_cancellation(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async def slow() -> None:
        await stage.clock.sleep(math.inf)

    delivery = Handed(refusal=AWAY)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Execution(declare(slow).spec, stage.around).run, delivery)
        await stage.clock.advance(0)
        tasks.cancel_scope.cancel()
    assert [] == delivery.answers
    assert "the broker is away" in caplog.text
