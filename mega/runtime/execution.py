"""One job's run, from its delivery to the answer that the broker gets."""

from __future__ import annotations

import logging
from contextlib import suppress
from contextvars import copy_context
from datetime import timedelta
from typing import Any

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from mega.context import NAMED, JobContext, current_run
from mega.control import Snooze
from mega.declare.registry import JobSpec
from mega.errors import (
    BrokerError,
    BrokerFull,
    JobFailedError,
    PayloadError,
    PayloadTooLarge,
    one_line,
    sole_error,
)
from mega.events import JobDone, JobRetried, JobSnoozed, JobStarted
from mega.ports import Delivery
from mega.runtime.attempt import Attempt
from mega.runtime.burial import Burial
from mega.runtime.calling import caller
from mega.runtime.isolation import is_closing, isolated
from mega.runtime.redelivery import crash_error, failed_before, may_begin, wait_for
from mega.runtime.retry import NextRun, fate_of, max_attempts
from mega.runtime.room import check_room
from mega.runtime.surroundings import Surroundings
from mega.runtime.unique import free_key
from mega.wire.message import as_it_came, unpack
from mega.wire.record import LIVE_TTL, JobRecord

__all__ = ["Execution"]

logger = logging.getLogger("mega.job")

GIVE_BACK_SECONDS = 5.0


class Overtaken(Exception):
    """Somebody wrote the job's record since it was looked at."""


class Execution:
    """Runs the deliveries of one job, each to exactly one answer.

    An answer is an acknowledgement, a stored retry, a dead letter, or giving back. What
    can't be answered, because the broker is away, comes back when its lease has run out.
    """

    def __init__(self, spec: JobSpec, around: Surroundings) -> None:
        self._spec = spec
        self._around = around
        self._is_tracked = spec.options.track
        self._burial = Burial(spec, around)
        self._call = caller(
            spec.handler, around, timeout=spec.options.timeout, middleware=around.middleware
        )
        self._start_context = copy_context()

    async def run(self, delivery: Delivery) -> None:
        """Run one delivery, unless it is too late. Raises nothing but cancellation."""
        if delivery.begin():
            await isolated(self._start_context.copy(), self._run(delivery))

    async def give_back(self, delivery: Delivery) -> None:
        """Return a delivery whose run has not begun. Raises nothing but cancellation."""
        attempt = self._open(delivery)
        if attempt.fault is None:
            await self._give_back(attempt)
        else:
            await self.run(delivery)  # which buries it

    def heed(self, draining: anyio.Event) -> None:
        """Let go of a refused dead letter once `draining` is set."""
        self._burial.draining = draining

    async def _run(self, delivery: Delivery) -> None:
        try:
            attempt = self._open(delivery)
            if attempt.fault is not None:
                await self._bury(attempt, attempt.fault, "malformed")
            elif attempt.is_first:
                await self._attempt(attempt)
            else:
                await self._run_again(delivery)
        except BrokerError as error:
            logger.error("%s: %s; the job comes back by itself", self._spec.subject, error)
        except Exception:
            # A fault of our own must not end the worker for all other jobs.
            logger.exception("%s: a run went wrong; the job comes back by itself", delivery.subject)

    def _open(self, delivery: Delivery) -> Attempt:
        subject, body, worker = self._spec.subject, delivery.body, self._around.worker
        headers, job_id = delivery.headers, delivery.fallback_id
        try:
            message = unpack(subject, headers, body, fallback_id=job_id)
        except PayloadError as fault:
            message = as_it_came(subject, headers, body, fallback_id=job_id)
            return Attempt(delivery, message, delivery.starts, 1, worker, fault)
        number = message.attempt + delivery.starts - 1
        return Attempt(delivery, message, number, max_attempts(message, self._spec.options), worker)

    async def _run_again(self, delivery: Delivery) -> None:
        """Run what may have begun before, as far as its record allows."""
        while True:
            attempt = self._open(delivery)
            with suppress(Overtaken):
                record = await self._record_of(attempt)
                if record is not None and await self._is_answered(attempt, record):
                    return
                if may_begin(attempt, record, is_tracked=self._is_tracked):
                    await self._attempt(attempt)
                else:
                    await self._bury(attempt, crash_error(attempt), "crashed")
                return

    async def _is_answered(self, attempt: Attempt, record: JobRecord) -> bool:
        """Answer a hand-over that must not run: the job has ended, or is another one's."""
        if attempt.was_answered(record):
            await attempt.delivery.ack()
            if record.is_final:
                await free_key(self._around.broker, attempt.message)
            return True
        if attempt.put_off_by(record):
            await self._put_off_again(attempt, record)
            return True
        if attempt.may_go_on(record) and await self._is_alive(record):
            wait = wait_for(attempt, record)
            await self._store_next(attempt, NextRun(attempt.number, wait), None)
            return True
        attempt.learn_from(record)
        if failure := failed_before(record, attempt):
            await self._bury(attempt, *failure)
            return True
        return False

    async def _record_of(self, attempt: Attempt) -> JobRecord | None:
        if not self._is_tracked:
            return None
        kept = await self._around.broker.state.look(attempt.message.id, after_writes=True)
        attempt.version = kept.version
        return kept.record if kept.record is not None and attempt.is_of(kept.record) else None

    async def _is_alive(self, record: JobRecord) -> bool:
        return record.worker is not None and await self._around.broker.state.is_alive(record.worker)

    async def _attempt(self, attempt: Attempt) -> None:
        try:
            payload = self._spec.codec.decode(attempt.message.body)
        except PayloadError as error:
            await self._bury(attempt, error, "payload")
            return
        if not await self._started(attempt):
            await self._bury(attempt, crash_error(attempt), "crashed")
            return
        context = self._context(attempt)
        current_run.set(context)
        begun = self._around.clock.monotonic()
        try:
            result = await self._called(attempt, payload, context, begun)
        except BaseException as error:
            if is_closing.get():
                raise
            if anyio.get_current_task().has_pending_cancellation():
                await self._give_back(attempt)
                await checkpoint()  # raises the cancellation alone; the error is its consequence
            else:  # a cancellation that nobody asked for is an error of the handler's own
                await self._failed(attempt, error)
        else:
            await self._succeeded(attempt, result, begun)

    async def _called(
        self, attempt: Attempt, payload: Any, context: JobContext[Any], begun: float
    ) -> Any:
        in_hand = self._around.in_hand
        in_hand[context] = begun
        try:
            return await self._call(payload, context)
        finally:
            del in_hand[context]
            attempt.delivery.leave_scopes()

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

    async def _started(self, attempt: Attempt) -> bool:
        """Note the start. Return False when it must not be: a last start that leaves no trace."""
        if self._is_tracked:
            attempt.started_at = self._around.clock.now()
            record = attempt.record("running")
            if attempt.version is None:
                await self._around.broker.state.write(record, ttl=LIVE_TTL)
                if attempt.number >= attempt.limit:
                    await self._around.broker.state.flush()
            elif not await self._is_noted(attempt, record) and attempt.is_extra:
                return False
        if self._around.hub.wants(JobStarted):
            self._around.hub.emit(JobStarted(**attempt.facts()))
        return True

    async def _is_noted(self, attempt: Attempt, record: JobRecord) -> bool:
        """Note a start over the record that allowed it; False without room for records.

        Raises: Overtaken, when somebody wrote since, who may have begun the job.
        """
        assert attempt.version is not None
        try:
            state = self._around.broker.state
            if not await state.replace(record.id, record, version=attempt.version, ttl=LIVE_TTL):
                raise Overtaken
        except BrokerFull:
            attempt.version = None
            return False
        return True

    async def _succeeded(self, attempt: Attempt, result: Any, begun: float) -> None:
        has_lapsed = self._note_lapse(attempt)
        record = self._end_record(attempt, result) if self._is_tracked else None
        try:
            await self._end(attempt, record)
        except anyio.get_cancelled_exc_class():
            # It has run: its answer is not to be lost. Each step may be done twice.
            with anyio.CancelScope(shield=True), anyio.move_on_after(GIVE_BACK_SECONDS):
                await self._end(attempt, record)
                self._tell_end(attempt, begun, has_lapsed=has_lapsed)
            raise
        self._tell_end(attempt, begun, has_lapsed=has_lapsed)

    async def _end(self, attempt: Attempt, record: JobRecord | None) -> None:
        if record is not None:
            await self._around.broker.state.write(record, ttl=self._spec.options.result_ttl)
        await attempt.delivery.ack()
        await free_key(self._around.broker, attempt.message)

    def _tell_end(self, attempt: Attempt, begun: float, *, has_lapsed: bool) -> None:
        if self._around.hub.wants(JobDone):
            seconds = self._around.clock.monotonic() - begun
            self._around.hub.emit(JobDone(**attempt.facts(), seconds=seconds, lapsed=has_lapsed))

    def _note_lapse(self, attempt: Attempt) -> bool:
        """Return whether other workers may have got the job while it ran here."""
        has_lapsed = attempt.delivery.lapsed
        if has_lapsed:
            self._log(attempt, "its lease lapsed while it ran; it may have run elsewhere too")
        return has_lapsed

    def _end_record(self, attempt: Attempt, result: Any) -> JobRecord:
        """Return the job's last record. A result that can't be kept does not undo the run."""
        end: dict[str, Any] = {"ended_at": self._around.clock.now()}
        try:
            end["result"] = msgspec.Raw(self._encode(result))
        except PayloadError as error:
            self._log(attempt, error, level=logging.ERROR)
            end["error"] = one_line(error)
        return attempt.record("done", **end)

    def _encode(self, result: Any) -> bytes:
        encoded = self._spec.result_codec.encode_result(result)
        hint = "Store the data elsewhere, and return where."
        check_room(self._around.broker, len(encoded), "its result", hint=hint)
        return encoded

    async def _failed(self, attempt: Attempt, error: BaseException) -> None:
        self._note_lapse(attempt)
        if await self._is_left_to_another(attempt):
            return
        error = sole_error(error)
        fate = fate_of(error, attempt.number, attempt.message, self._spec.options)
        if not isinstance(fate, NextRun):
            await self._bury(attempt, error, fate)
        elif isinstance(error, Snooze):
            if await self._put_off(attempt, fate):
                facts = attempt.facts()
                self._around.hub.emit(JobSnoozed(**facts, delay=fate.delay, reason=error.reason))
        elif await self._put_off(attempt, fate, error):
            self._around.hub.emit(JobRetried(**attempt.facts(), error=error, delay=fate.delay))

    async def _is_left_to_another(self, attempt: Attempt) -> bool:
        """Whether another worker began or ended the job since; its fate is that one's answer.

        Of a job that has ended this copy is acknowledged, or it would be handed out once more.
        """
        if attempt.version is None and not attempt.delivery.lapsed:
            return False
        record = await self._record_of(attempt)
        if record is not None and record.is_final:
            await attempt.delivery.ack()
            return True
        return record is not None and record.started_at != attempt.started_at

    async def _put_off(
        self, attempt: Attempt, following: NextRun, error: BaseException | None = None
    ) -> bool:
        """Store the copy that runs next; without an error the job is only waiting."""
        if self._is_tracked:
            due_at = self._around.clock.now() + timedelta(seconds=following.delay)
            record = attempt.record("waiting", due_at=due_at)
            if error is not None:
                record = attempt.record("retrying", error=one_line(error), due_at=due_at)
            await self._around.broker.state.write(record, ttl=LIVE_TTL + following.delay)
        return await self._store_next(attempt, following, error)

    async def _put_off_again(self, attempt: Attempt, record: JobRecord) -> None:
        """Repeat the answer of a run whose ack, or the copy before it, did not arrive."""
        assert record.due_at is not None
        attempt.number = record.attempt
        number = record.attempt + 1 if record.state == "retrying" else record.attempt
        wait = max(0.0, (record.due_at - self._around.clock.now()).total_seconds())
        error = JobFailedError(record.error) if record.error else None
        await self._store_next(attempt, NextRun(number, wait), error)

    async def _store_next(
        self, attempt: Attempt, following: NextRun, error: BaseException | None
    ) -> bool:
        """Store the next copy. A job that does not fit with its headers is buried: return False."""
        copy = attempt.copy(following.attempt)
        try:
            await attempt.delivery.retry(copy, after=following.delay)
        except PayloadTooLarge as refusal:
            await self._bury(attempt, error or refusal, "too_large")
            return False
        return True

    async def _bury(self, attempt: Attempt, error: BaseException, reason: str) -> None:
        await self._burial.bury(attempt, error, reason)

    async def _give_back(self, attempt: Attempt) -> None:
        """Return an interrupted job to the queue; a deploy costs no attempt."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(GIVE_BACK_SECONDS):
            try:
                if self._is_tracked and attempt.started_at is not None:
                    if await self._is_left_to_another(attempt):
                        return
                    waiting = attempt.record("waiting")
                    await self._around.broker.state.write(waiting, ttl=LIVE_TTL)
                await attempt.delivery.give_back(attempt.copy(attempt.number))
            except (BrokerError, PayloadTooLarge) as error:
                self._log(attempt, error)

    def _log(self, attempt: Attempt, text: object, *, level: int = logging.WARNING) -> None:
        message = attempt.message
        logger.log(level, "%s %s: %s", message.subject, message.id, text, extra=NAMED)
