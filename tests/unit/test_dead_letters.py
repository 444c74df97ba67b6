"""Sending a job back beside its happy path: the answer is lost, and the call repeated."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from mega.adapters.memory import MemoryBroker
from mega.dead_letters import DeadLetters
from mega.errors import BrokerUnavailable
from mega.options import JobOptions
from mega.ports import Queue, Receipt
from mega.testing import EPOCH, VirtualClock
from mega.wire.dead_letter import seal
from mega.wire.message import Message
from mega.wire.record import LIVE_TTL, JobRecord

JOB = Message(id="7", subject="email.send", body=b"1")


class ForgetfulBroker(MemoryBroker):
    """The broker in memory, whose answers are lost."""

    is_losing = True

    async def publish(
        self, message: Message, *, due_at: datetime | None = None, after: float = 0.0
    ) -> Receipt:
        receipt = await super().publish(message, due_at=due_at, after=after)
        if self.is_losing:
            raise BrokerUnavailable("not confirmed.")
        return receipt


def record(state: Any, **more: Any) -> JobRecord:
    return JobRecord(id="7", subject="email.send", state=state, enqueued_at=EPOCH, **more)


async def test_a_requeue_that_is_repeated_leaves_the_end_of_the_job_alone() -> None:
    """The first call stored the job, and it has run since."""
    async with ForgetfulBroker(VirtualClock()) as broker:
        await broker.provide(Queue("email.send", JobOptions()))
        facts = {"reason": "retries", "attempts": 1, "enqueued_at": EPOCH, "failed_at": EPOCH}
        letter = seal(JOB, ValueError("no"), worker="vm:1", **facts)  # type: ignore[arg-type]
        broker.letters.store("email.send", letter)
        await broker.state.write(record("failed"), ttl=LIVE_TTL)
        letters = DeadLetters(broker, "email.send")
        (found,) = await letters.list()
        with pytest.raises(BrokerUnavailable):
            await letters.requeue(found)
        life = await broker.state.get("7")
        assert life is not None
        assert "waiting" == life.state
        done = record("done", earlier_deaths=life.earlier_deaths)
        await broker.state.write(done, ttl=LIVE_TTL)
        broker.is_losing = False

        assert await letters.requeue(found)

        assert done == await broker.state.get("7")
        assert 1 == broker.waiting("email.send")
        assert [] == await letters.list()
