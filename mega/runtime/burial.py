"""Moving a job to the dead letters, also when they can't be stored at once."""

from __future__ import annotations

from typing import Any

import anyio

from mega.declare.registry import JobSpec
from mega.errors import BrokerError, PayloadTooLarge, one_line
from mega.events import JobDeadLettered, JobFailed
from mega.runtime.attempt import Attempt
from mega.runtime.draining import has_slept
from mega.runtime.surroundings import Surroundings
from mega.runtime.unique import free_key
from mega.wire.dead_letter import seal
from mega.wire.message import life_id
from mega.wire.record import LIVE_TTL, JobRecord

__all__ = ["Burial"]

FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0


class Burial:
    """Buries the jobs of one subject. One that is refused is kept in hand and tried again.

    A worker that drains gives up at once, so that a refusal never holds it up: the job comes
    back, and of a tracked one the record keeps the error for the letter that is stored then.
    """

    def __init__(self, spec: JobSpec, around: Surroundings) -> None:
        self.draining: anyio.Event = anyio.Event()
        self._options = spec.options
        self._around = around

    async def bury(self, attempt: Attempt, error: BaseException, reason: str) -> None:
        """Store the dead letter, then the end of the job. Raises nothing but cancellation."""
        now, hub = self._around.clock.now(), self._around.hub
        letter = seal(
            attempt.message,
            error,
            reason=reason,
            attempts=attempt.number,
            enqueued_at=attempt.enqueued_at(),
            failed_at=now,
            worker=attempt.worker,
        )
        facts = {"error": one_line(error), "reason": reason, "ended_at": now}
        if await self._is_stored(letter, attempt, facts):
            await self._write(attempt.record("failed", **facts), ttl=self._options.result_ttl)
            await free_key(self._around.broker, attempt.message)
            hub.emit(JobFailed(**attempt.facts(), error=error, phase=reason))
            hub.emit(JobDeadLettered(**attempt.facts(), error=error))

    async def _is_stored(self, letter: bytes, attempt: Attempt, facts: dict[str, Any]) -> bool:
        """Store the letter, however long that takes; False when the worker drains before."""
        wait, letter_id = FIRST_WAIT, life_id(attempt.message, attempt.enqueued_at())
        while True:
            try:
                # Before the letter: should this worker die now, the next one knows the error.
                await self._write(attempt.record("running", **facts), ttl=LIVE_TTL)
                await attempt.delivery.dead_letter(letter, letter_id=letter_id)
                return True
            except (BrokerError, PayloadTooLarge) as refusal:
                refused = JobFailed(**attempt.facts(), error=refusal, phase="dead_letter")
                self._around.hub.emit(refused)
            if not await has_slept(self._around.clock, wait, draining=self.draining):
                return False
            wait = min(LONGEST_WAIT, wait * 2)

    async def _write(self, record: JobRecord, *, ttl: float) -> None:
        if self._options.track:
            await self._around.broker.state.write(record, ttl=ttl)
