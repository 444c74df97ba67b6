"""The pool: hands calls to worker processes, replaces those that die, and stops them all."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Literal, Self

import anyio

from mega.adapters.pool import answers
from mega.adapters.pool.budget import CrashBudget
from mega.adapters.pool.cpus import default_size
from mega.adapters.pool.frames import Frame, Kind, Part, Settings, encode
from mega.adapters.pool.loading import aside_if_large
from mega.adapters.pool.logs import log_levels
from mega.adapters.pool.mainfile import loops_in_use, running_main
from mega.adapters.pool.slots import Slots
from mega.adapters.pool.worker import DISCONNECTED, LEAVE_SECONDS, Worker, WorkerLost
from mega.cpu import Report
from mega.pool_options import PoolOptions

__all__ = ["WorkerPool"]

MAX_HAND_OVERS = 3
RESULT_LIMIT = 1 << 30
STOPPED = "the pool has stopped"


@dataclass
class Call:
    task: str
    parts: list[Part]
    timeout: float | None
    on_progress: Report | None = None
    pid: int | None = None
    began: float = 0.0


class WorkerPool:
    """A ProcessPool of own processes, for one event loop (asyncio or trio), entered once.

    `emit(kind, facts)` hears of what happens; it must not raise or wait.
    """

    def __init__(
        self,
        name: str,
        options: PoolOptions,
        tasks: Sequence[str],
        *,
        emit: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.name = name
        self.size = options.size or default_size()
        self._options = options
        self._tasks = tuple(tasks)
        self._emit = emit
        self._state: Literal["not open", "open", "stopping", "stopped"] = "not open"
        self._slots = Slots(self.size, max_queue=options.max_queue)
        self._budget = CrashBudget(options.max_restarts, options.restart_window)
        self._last_crash = ""
        self._workers: set[Worker] = set()
        self._idle: list[Worker] = []

    @property
    def retry_after(self) -> float:
        """For how many seconds calls are refused because of crashes; 0 when they are not."""
        return self._budget.retry_after(time.monotonic())

    async def __aenter__(self) -> Self:
        self._reapers = anyio.create_task_group()
        self._context = copy_context()
        await self._reapers.__aenter__()
        self._state = "open"
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await self.stop(math.inf if exc_info[0] is None else 0.0)
        finally:
            # Its answer is dropped: on trio it is True, which would swallow the body's error.
            await self._reapers.__aexit__(None, None, None)

    async def start(self) -> None:
        """Boot one worker, which imports the app, finds every task and stays.

        Without a task no process starts. Raises: CpuStartError.
        """
        if not self._tasks or self._workers:
            return
        await self._slots.take()
        try:
            self._idle.append(await self._boot())
        finally:
            self._slots.give()

    async def call(
        self,
        task: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        timeout: float | None,
        context: Mapping[str, str | int] | None = None,
        on_progress: Report | None = None,
    ) -> Any:
        """Run the task `module:qualname` in a worker process and return what it returned.

        `timeout` counts from the hand-over, not from the wait for a process. It, and
        cancellation, kill the process. `context` goes into the task's log records;
        `on_progress` is told of what it reports, and must not raise or wait.
        Raises: what the task raised, or a CpuError.
        """
        self._refuse_unless_open()
        parts = answers.encode_call(task, args, kwargs, context)
        await self._slots.take()
        try:
            return await self._told(Call(task, parts, timeout, on_progress))
        finally:
            self._slots.give()

    async def stop(self, grace: float) -> None:
        """Refuse new calls, wait `grace` seconds for those in hand, kill the rest.

        A second stop with less grace cuts the first one short.
        """
        if self._state in ("not open", "stopped"):
            self._state = "stopped"
            return
        self._state = "stopping"
        self._slots.turn_away(self._stopped)
        with anyio.move_on_after(grace):
            await self._slots.all_free()
        with anyio.CancelScope(shield=True):
            await self._end_all()
        self._tell_stopped()

    async def _told(self, call: Call) -> Any:
        try:
            frame = await self._answer(call)
            result = await aside_if_large(answers.result_of, call.task, frame)
        except BaseException as error:
            self._tell("cpu.fail", task=call.task, pid=call.pid, error=error)
            raise
        seconds = time.monotonic() - call.began
        self._tell("cpu.done", task=call.task, pid=call.pid, seconds=seconds)
        return result

    async def _answer(self, call: Call) -> Frame:
        hand_overs = 0
        while True:
            self._refuse_unless_open()
            worker = self._idle.pop() if self._idle else await self._boot()
            hand_overs += 1
            try:
                return await self._hand_over(call, worker)
            except WorkerLost:
                if worker.ended_for == STOPPED:
                    raise self._stopped() from None
                if worker.has_started_call or hand_overs == MAX_HAND_OVERS:
                    raise answers.crashed(call.task, worker) from None

    async def _hand_over(self, call: Call, worker: Worker) -> Frame:
        self._note_dispatch(call, worker)
        frame = None
        try:
            with anyio.move_on_after(call.timeout):
                frame = await worker.request(call.parts)
            if frame is None:
                await worker.end_with_stack("timeout")
                raise answers.timed_out(call.task, call.timeout, worker)
            return frame
        finally:
            if frame is None:
                await worker.end("cancelled")
            else:
                self._put_back(worker)

    def _note_dispatch(self, call: Call, worker: Worker) -> None:
        worker.task, worker.on_progress = call.task, call.on_progress
        worker.calls += 1
        is_first = call.pid is None
        call.pid, call.began = worker.pid, time.monotonic()
        if is_first:
            self._tell("cpu.dispatch", task=call.task, pid=call.pid)

    def _put_back(self, worker: Worker) -> None:
        worker.task, worker.on_progress = "", None
        self._budget.answered(time.monotonic())
        if worker.dead.is_set():
            return
        if self._is_worn(worker):
            self._start(worker.retire, "recycled")
        else:
            self._idle.append(worker)

    def _is_worn(self, worker: Worker) -> bool:
        calls, rss = self._options.recycle_after, self._options.recycle_rss
        return (calls is not None and worker.calls >= calls) or (
            rss is not None and worker.rss() > rss
        )

    async def _boot(self) -> Worker:
        self._refuse_unless_open()
        if not hasattr(os, "killpg"):
            raise answers.no_posix(self.name)
        try:
            worker = Worker()
        except OSError as error:
            raise answers.no_process(self.name, error) from error
        self._workers.add(worker)
        self._start(worker.reap, self._on_death)
        try:
            await self._set_up(worker)
        except BaseException:
            await worker.end("its start failed")
            raise
        return worker

    async def _set_up(self, worker: Worker) -> None:
        limit = self._options.start_timeout
        frame = None
        try:
            with anyio.move_on_after(limit):
                frame = await worker.request(encode(Kind.SETTINGS, tuple(self._settings())))
        except WorkerLost:
            if worker.ended_for == STOPPED:
                raise self._stopped() from None
            raise answers.died_at_start(self.name, worker) from None
        if frame is None:
            worker.start_error = f"its start took longer than {limit} s"
            await worker.end_with_stack("its start took too long")
            raise answers.slow_start(self.name, limit, worker)
        if frame.kind == Kind.NOT_READY:
            error = answers.not_ready(self.name, frame)
            worker.start_error = error.args[0]
            raise error

    def _start(self, work: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        # Not in the context of the call that happens to start it: a worker outlives its job.
        self._context.copy().run(lambda: self._reapers.start_soon(work, *args))

    def _settings(self) -> Settings:
        main = running_main()
        return Settings(
            path=list(sys.path),
            argv=list(sys.argv),
            main=None if main is None else tuple(main),
            loops=loops_in_use(),
            tasks=self._tasks,
            log_levels=log_levels(),
            memory_limit=self._options.memory_limit,
            nice=self._options.nice,
            result_limit=RESULT_LIMIT,
        )

    def _on_death(self, worker: Worker) -> None:
        self._workers.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        if worker.start_error or worker.ended_for in (None, DISCONNECTED):
            self._count_crash(worker)

    def _count_crash(self, worker: Worker) -> None:
        self._last_crash = worker.start_error or answers.death_of(worker)
        has_opened = self._budget.spend(time.monotonic())
        facts = {"task": worker.task, "pid": worker.pid, "returncode": worker.returncode}
        self._tell("cpu.crash", **facts, recent=self._budget.recent)
        if has_opened:
            self._slots.turn_away(self._broken)

    async def _end_all(self) -> None:
        for worker in self._workers:
            if worker.is_busy:
                worker.kill(STOPPED)
            else:
                worker.leave(STOPPED)
        with anyio.move_on_after(LEAVE_SECONDS):
            await self._all_dead()
        for worker in self._workers:
            worker.kill(STOPPED)
        await self._all_dead()

    async def _all_dead(self) -> None:
        for worker in tuple(self._workers):
            await worker.dead.wait()

    def _refuse_unless_open(self) -> None:
        if self._state != "open":
            raise self._stopped()
        if self.retry_after:
            raise self._broken()

    def _stopped(self) -> Exception:
        return answers.stopped(self.name, f"is {self._state}")

    def _broken(self) -> Exception:
        return answers.broken(self.name, self._budget.recent, self._last_crash, self.retry_after)

    def _tell_stopped(self) -> None:
        if self._state != "stopped":
            self._state = "stopped"
            self._tell("cpu.stopped")

    def _tell(self, kind: str, **facts: Any) -> None:
        self._emit(kind, {"pool": self.name, **facts})
