"""One job's run, from its delivery to the answer that the broker gets."""

from __future__ import annotations

import logging
from contextvars import copy_context
from datetime import timedelta
from typing import Any

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from mega.context import JobContext, current_run
from mega.declare.registry import JobSpec
from mega.errors import BrokerError, JobFailedError, PayloadError, PayloadTooLarge, one_line
from mega.events import JobDeadLettered, JobDone, JobFailed, JobRetried, JobStarted
from mega.ports import Delivery
from mega.runtime.attempt import Attempt
from mega.runtime.calling import caller
from mega.runtime.isolation import isolated
from mega.runtime.retry import max_attempts, next_run_after
from mega.runtime.surroundings import Surroundings
from mega.wire.dead_letter import seal
from mega.wire.message import Message, unpack
from mega.wire.record import LIVE_TTL, JobRecord, JobState

__all__ = ["Execution"]

logger = logging.getLogger("mega.job")

GIVE_BACK_SECONDS = 5.0


class Execution:
    """Runs the deliveries of one job, each to exactly one answer.

    An answer is an acknowledgement, a stored retry, a dead letter, or giving back. What
    can't be answered, because the broker is away, comes back when its lease has run out.
    """

    def __init__(self, spec: JobSpec, around: Surroundings) -> None:
        self._spec = spec
        self._around = around
        self._is_tracked = spec.options.track
        self._call = caller(
            spec.handler,
            slots=spec.options.slots,
            timeout=spec.options.timeout,
            middleware=around.middleware,
        )
        self._start_context = copy_context()

    async def run(self, delivery: Delivery) -> None:
        """Run one delivery. Raises nothing but cancellation."""
        await isolated(self._start_context.copy(), self._run(delivery))

    async def _run(self, delivery: Delivery) -> None:
        try:
            attempt = self._open(delivery)
            if delivery.starts == 1 or await self._may_start_again(attempt):
                await self._attempt(attempt)
        except (BrokerError, PayloadTooLarge) as error:
            logger.error("%s: %s; the job comes back by itself", self._spec.subject, error)
        except _Unreadable as unreadable:
            await self._bury(unreadable.attempt, unreadable.error, "malformed")
        except Exception:
            # A fault of our own must not end the worker for all other jobs.
            logger.exception("%s: a run went wrong; the job comes back by itself", delivery.subject)

    def _open(self, delivery: Delivery) -> Attempt:
        subject, body, job_id = self._spec.subject, delivery.body, delivery.fallback_id
        try:
            message = unpack(subject, delivery.headers, body, fallback_id=job_id)
        except PayloadError as error:
            bare = Message(id=job_id, subject=subject, body=body)
            raise _Unreadable(Attempt(delivery, bare, delivery.starts, 1), error) from None
        number = message.attempt + delivery.starts - 1
        return Attempt(delivery, message, number, max_attempts(message, self._spec.options))

    async def _may_start_again(self, attempt: Attempt) -> bool:
        """Answer a redelivery that must not run: it is done already, or it kills its worker."""
        if self._is_tracked:
            record = await self._around.broker.state.get(attempt.message.id)
            # An id may be used again after a while; the time tells the jobs apart.
            ended = record if record is not None and record.state == "done" else None
            if ended is not None and ended.enqueued_at == attempt.enqueued_at():
                await attempt.delivery.ack()
                return False
        if attempt.number <= attempt.limit:
            return True
        error = JobFailedError(f"its worker died in the last {attempt.delivery.starts - 1} runs.")
        await self._bury(attempt, error, "crashed")
        return False

    async def _attempt(self, attempt: Attempt) -> None:
        try:
            payload = self._spec.codec.decode(attempt.message.body)
        except PayloadError as error:
            await self._bury(attempt, error, "payload")
            return
        await self._started(attempt)
        context = self._context(attempt)
        current_run.set(context)
        begun = self._around.clock.monotonic()
        try:
            result = await self._call(payload, context)
        except GeneratorExit:
            raise
        except BaseException as error:
            # A cancellation that nobody asked for is an error of the handler's own.
            if not isinstance(error, Exception):
                await self._stop_if_cancelled(attempt)
            await self._failed(attempt, error)
        else:
            await self._succeeded(attempt, result, begun)

    async def _stop_if_cancelled(self, attempt: Attempt) -> None:
        if anyio.get_current_task().has_pending_cancellation():
            await self._give_back(attempt)
            await checkpoint()  # raises the cancellation alone; a group may hold errors too

    def _context(self, attempt: Attempt) -> JobContext[Any]:
        message = attempt.message
        return JobContext(
            id=message.id,
            subject=message.subject,
            attempt=attempt.number,
            max_attempts=attempt.limit,
            headers=message.headers,
            enqueued_at=attempt.enqueued_at,
            app=self._around.app,
        )

    async def _started(self, attempt: Attempt) -> None:
        if self._is_tracked:
            attempt.started_at = self._around.clock.now()
            record = self._record(attempt, "running")
            await self._around.broker.state.write(record, ttl=LIVE_TTL)
        if self._around.hub.wants(JobStarted):
            self._around.hub.emit(JobStarted(**attempt.facts()))

    async def _succeeded(self, attempt: Attempt, result: Any, begun: float) -> None:
        if self._is_tracked:
            await self._keep_result(attempt, result)
        await attempt.delivery.ack()
        if self._around.hub.wants(JobDone):
            seconds = self._around.clock.monotonic() - begun
            self._around.hub.emit(JobDone(**attempt.facts(), seconds=seconds))

    async def _keep_result(self, attempt: Attempt, result: Any) -> None:
        """Write the end of the job. A result that can't be kept does not undo the run."""
        end: dict[str, Any] = {"ended_at": self._around.clock.now()}
        try:
            end["result"] = msgspec.Raw(self._spec.result_codec.encode_result(result))
        except PayloadError as error:
            logger.error("%s %s: %s", attempt.message.subject, attempt.message.id, error)
            end["error"] = str(error)
        record = self._record(attempt, "done", **end)
        await self._around.broker.state.write(record, ttl=self._spec.options.result_ttl)

    async def _failed(self, attempt: Attempt, error: BaseException) -> None:
        following = next_run_after(attempt.number, attempt.message, self._spec.options)
        if following is None:
            await self._bury(attempt, error, "retries")
            return
        due_at = self._around.clock.now() + timedelta(seconds=following.delay)
        if self._is_tracked:
            record = self._record(attempt, "retrying", error=one_line(error), due_at=due_at)
            await self._around.broker.state.write(record, ttl=LIVE_TTL + following.delay)
        await attempt.delivery.retry(attempt.copy(following.attempt), after=following.delay)
        self._around.hub.emit(JobRetried(**attempt.facts(), error=error, delay=following.delay))

    async def _bury(self, attempt: Attempt, error: BaseException, reason: str) -> None:
        """Move a job to the dead letters; when that is refused, it stays and comes back."""
        now, hub = self._around.clock.now(), self._around.hub
        facts = {
            "reason": reason,
            "attempts": attempt.number,
            "enqueued_at": attempt.enqueued_at(),
            "failed_at": now,
            "worker": self._around.worker,
        }
        try:
            await self._store_letter(attempt, error, facts)
        except (BrokerError, PayloadTooLarge) as refusal:
            hub.emit(JobFailed(**attempt.facts(), error=refusal, phase="dead_letter"))
            return
        if self._is_tracked:
            record = self._record(attempt, "failed", error=one_line(error), ended_at=now)
            await self._around.broker.state.write(record, ttl=self._spec.options.result_ttl)
        hub.emit(JobFailed(**attempt.facts(), error=error, phase=reason))
        hub.emit(JobDeadLettered(**attempt.facts(), error=error))

    async def _store_letter(
        self, attempt: Attempt, error: BaseException, facts: dict[str, Any]
    ) -> None:
        message, delivery = attempt.message, attempt.delivery
        try:
            await delivery.dead_letter(seal(message, error, **facts), job_id=message.id)
        except PayloadTooLarge:
            bare = error.with_traceback(None)
            await delivery.dead_letter(seal(message, bare, **facts), job_id=message.id)

    async def _give_back(self, attempt: Attempt) -> None:
        """Return an interrupted job to the queue; a deploy costs no attempt."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(GIVE_BACK_SECONDS):
            try:
                if self._is_tracked:
                    waiting = self._record(attempt, "waiting")
                    await self._around.broker.state.write(waiting, ttl=LIVE_TTL)
                await attempt.delivery.give_back(attempt.copy(attempt.number))
            except BrokerError as error:
                logger.warning("%s %s: %s", attempt.message.subject, attempt.message.id, error)

    def _record(self, attempt: Attempt, state: JobState, **more: Any) -> JobRecord:
        return JobRecord(
            id=attempt.message.id,
            subject=attempt.message.subject,
            state=state,
            attempt=attempt.number,
            started_at=attempt.started_at,
            enqueued_at=attempt.enqueued_at(),
            worker=self._around.worker,
            **more,
        )


class _Unreadable(Exception):
    """A message whose headers can't be read."""

    def __init__(self, attempt: Attempt, error: PayloadError) -> None:
        super().__init__()
        self.attempt = attempt
        self.error = error
