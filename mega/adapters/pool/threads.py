"""The pool of threads: the same calls without processes, for tasks that free the interpreter.

A thread can't be killed. Who times out or is cancelled leaves it behind: it is counted, and
above a limit the pool refuses calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Self

import anyio
from anyio import RunFinishedError, from_thread, to_thread
from anyio.lowlevel import EventLoopToken, current_token

from mega.adapters.pool.cpus import default_size
from mega.adapters.pool.mainfile import find_task, running_main
from mega.adapters.pool.slots import Slots
from mega.adapters.pool.thread_work import Work
from mega.cpu import Report
from mega.errors import CpuPoolBroken, CpuStartError, CpuStopped, CpuTimeout
from mega.pool_options import PoolOptions

__all__ = ["ThreadPool"]

#: When it is worth to call again, while threads that were left behind keep the pool closed.
LOOK_AGAIN_SECONDS = 1.0


class ThreadPool:
    """A ProcessPool of threads, for one event loop (asyncio or trio), entered once.

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
        self._most_left = options.max_restarts
        self._tasks = tuple(tasks)
        self._emit = emit
        self._state: Literal["not open", "open", "stopping", "stopped"] = "not open"
        self._is_leaving = False
        self._slots = Slots(self.size, max_queue=options.max_queue)
        # No limit: a thread that is left behind must not take the place of a call.
        self._limiter = anyio.CapacityLimiter(math.inf)
        self._in_hand: set[anyio.CancelScope] = set()
        self._left: set[Work] = set()

    @property
    def left(self) -> int:
        """How many threads go on whose calls are over."""
        return len(self._left)

    async def __aenter__(self) -> Self:
        self._token: EventLoopToken = current_token()
        self._state = "open"
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        with anyio.CancelScope(shield=True):
            await self.stop(math.inf if exc_info[0] is None else 0.0)

    async def start(self) -> None:
        """Find every task. Raises: CpuStartError."""
        for task in self._tasks:
            self._found(task)

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
        """Run the task `module:qualname` in a thread and return what it returned.

        `timeout` counts from the hand-over, not from the wait for a thread. It, and
        cancellation, leave the thread behind. `context` goes into the event of that.
        Raises: what the task raised, or a CpuError.
        """
        self._refuse_unless_open()
        function = self._found(task)
        await self._slots.take()
        try:
            self._refuse_unless_open()
            report = on_progress and self._from_thread(on_progress)
            work = Work(task, function, args, kwargs, report=report, left=self._left)
            return await self._told(work, timeout, context or {})
        finally:
            self._slots.give()

    async def stop(self, grace: float) -> None:
        """Refuse new calls, wait `grace` seconds for those in hand, leave the rest behind."""
        if self._state in ("not open", "stopped"):
            self._state = "stopped"
            return
        self._state = "stopping"
        self._slots.turn_away(self._stopped)
        with anyio.move_on_after(grace):
            await self._slots.all_free()
        with anyio.CancelScope(shield=True):
            await self._leave_all()
        self._tell_stopped()

    async def _leave_all(self) -> None:
        self._is_leaving = True
        for scope in self._in_hand:
            scope.cancel()
        await self._slots.all_free()

    async def _told(
        self, work: Work, timeout: float | None, context: Mapping[str, str | int]
    ) -> Any:
        self._tell("cpu.dispatch", work)
        try:
            result = await self._run(work, timeout, context)
        except BaseException as error:
            self._tell("cpu.fail", work, error=error)
            raise
        self._tell("cpu.done", work, seconds=work.seconds)
        return result

    async def _run(
        self, work: Work, timeout: float | None, context: Mapping[str, str | int]
    ) -> Any:
        scope = anyio.move_on_after(timeout)
        self._in_hand.add(scope)
        try:
            with scope:
                await to_thread.run_sync(work.do, limiter=self._limiter, abandon_on_cancel=True)
        finally:
            self._in_hand.discard(scope)
            stack = work.stack()
            if work.leave():
                self._note_left(work, context)
        if work.has_ended:
            return work.outcome()
        raise self._stopped() if self._is_leaving else _timed_out(work, timeout, stack)

    def _note_left(self, work: Work, context: Mapping[str, str | int]) -> None:
        self._tell("thread.left", work, **context, left=self.left)
        if self.left > self._most_left:
            self._slots.turn_away(self._broken)

    def _found(self, task: str) -> Callable[..., Any]:
        # Not from its cache: a module may have been loaded anew in this process.
        running_main()
        try:
            function: Callable[..., Any] = find_task.__wrapped__(task)
        except Exception as error:
            raise CpuStartError(
                f'the pool "{self.name}" can\'t find the task "{task}": {error}.',
                hint="A task must be found by module and name once the file is imported.",
            ) from error
        return function

    def _from_thread(self, on_progress: Report) -> Report:
        def report(fraction: float, note: str) -> None:
            with suppress(RunFinishedError):
                from_thread.run_sync(on_progress, fraction, note, token=self._token)

        return report

    def _refuse_unless_open(self) -> None:
        if self._state != "open":
            raise self._stopped()
        if self.left > self._most_left:
            raise self._broken()

    def _stopped(self) -> CpuStopped:
        return CpuStopped(
            f'the pool "{self.name}" is {self._state}.', hint="Call again in the next process."
        )

    def _broken(self) -> CpuPoolBroken:
        error = CpuPoolBroken(
            f'the pool "{self.name}" refuses calls: {self.left} of its threads were left behind '
            "and still run (max_restarts).",
            hint="It takes calls again when some of them have ended. What must end in time "
            'belongs into a pool with mode="process".',
        )
        error.retry_after = LOOK_AGAIN_SECONDS
        return error

    def _tell_stopped(self) -> None:
        if self._state != "stopped":
            self._state = "stopped"
            self._emit("cpu.stopped", {"pool": self.name})

    def _tell(self, kind: str, work: Work, **facts: Any) -> None:
        self._emit(kind, {"pool": self.name, "task": work.task, **facts})


def _timed_out(work: Work, timeout: float | None, stack: str) -> CpuTimeout:
    error = CpuTimeout(
        f"{work} ran longer than {timeout} s. Its thread can't be stopped and goes on.",
        hint='Where it stood is in the error\'s stack. A process can be killed: mode="process".',
    )
    error.stack = stack
    return error
