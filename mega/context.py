"""What a handler is told about the run it is in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from typing_extensions import TypeVar

if TYPE_CHECKING:
    from mega.app import App

__all__ = [
    "NAMED",
    "JobContext",
    "RunContext",
    "RunFilter",
    "ScheduleContext",
    "current_job",
    "current_run",
]

S = TypeVar("S", default=Any)

logger: logging.Logger = logging.getLogger("mega.job")
schedule_logger: logging.Logger = logging.getLogger("mega.schedule")
#: The fields of log lines that name a run.
FIELDS = ("job_id", "subject", "attempt", "schedule")
#: `extra=` of a line whose text names the run, so that nobody puts it before the text again.
NAMED: Mapping[str, str] = {"run": ""}

RunContext: TypeAlias = "JobContext[Any] | ScheduleContext[Any]"

#: The run that this code is in, also in its threads and child tasks.
current_run: ContextVar[RunContext | None] = ContextVar("mega_run", default=None)


def current_job() -> JobContext[Any] | None:
    """Return the context of the job that this code runs in, or None outside of a job.

    It holds in async and plain handlers, in their child tasks and in `anyio.to_thread`. A
    thread that the handler starts itself needs `contextvars.copy_context().run`.
    """
    run = current_run.get()
    return run if isinstance(run, JobContext) else None


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines carry the fields of one run."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, Any]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class RunFilter(logging.Filter):
    """Puts on each log record which run it was logged in; it holds nothing back.

    A record gets `job_id`, `subject`, `attempt` and `schedule` (None outside of a run, and
    where they don't apply), and `run`, one text of them for people, which is empty outside.
    What a record has of them already stays. Add it to a handler: a filter of a logger sees no
    records of the loggers below it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        run, known = current_run.get(), vars(record)
        names_its_run = "job_id" in known or "schedule" in known
        facts = {} if run is None or names_its_run else run.facts()
        for name in FIELDS:
            known.setdefault(name, facts.get(name))
        known.setdefault("run", _title(known))
        return True


def _title(facts: Mapping[str, Any]) -> str:
    """Return how people call a run, or an empty text when the facts name none."""
    if facts.get("job_id"):
        return f"{facts.get('subject')} {facts['job_id']} attempt {facts.get('attempt')}"
    return f"schedule {facts['schedule']}" if facts.get("schedule") else ""


class JobContext(Generic[S]):
    """One run of one job.

    `attempt` counts from 1 and includes runs that ended in a crash; `headers` are those
    given at enqueue; `state` is what the app's `lifespan` yielded.
    """

    __slots__ = ("_enqueued_at", "app", "attempt", "headers", "id", "max_attempts", "subject")

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - the public name of the field
        subject: str,
        attempt: int,
        max_attempts: int,
        headers: Mapping[str, str],
        enqueued_at: Callable[[], datetime],
        app: App[S],
    ) -> None:
        self.id: str = id
        self.subject: str = subject
        self.attempt: int = attempt
        self.max_attempts: int = max_attempts
        self.headers: Mapping[str, str] = headers
        self.app: App[S] = app
        self._enqueued_at = enqueued_at

    @property
    def attempts_made(self) -> int:
        """How many runs have ended before this one."""
        return self.attempt - 1

    @property
    def is_last_attempt(self) -> bool:
        """Whether an error in this run sends the job to the dead letters."""
        return self.attempt >= self.max_attempts

    @property
    def enqueued_at(self) -> datetime:
        """When the job was first stored; aware, in UTC."""
        return self._enqueued_at()

    @property
    def state(self) -> S:
        """What the app's `lifespan` yielded."""
        return self.app.state

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry the job's id, subject and attempt."""
        return RunLogger(logger, self.facts())

    def facts(self) -> dict[str, Any]:
        """What identifies this run in events, log lines and CPU calls."""
        return {"job_id": self.id, "subject": self.subject, "attempt": self.attempt}

    def __str__(self) -> str:
        return _title(self.facts())


class ScheduleContext(Generic[S]):
    """One run of one schedule. `due_at` is the tick; None for a manual run.

    `lateness` is the seconds from the tick to the start. `fence` grows with each claim, so
    that a store can refuse what a holder writes after its lease was lost.
    """

    __slots__ = ("app", "due_at", "fence", "lateness", "name")

    def __init__(
        self, *, name: str, due_at: datetime | None, lateness: float, fence: int, app: App[S]
    ) -> None:
        self.name: str = name
        self.due_at: datetime | None = due_at
        self.lateness: float = lateness
        self.fence: int = fence
        self.app: App[S] = app

    @property
    def state(self) -> S:
        """What the app's `lifespan` yielded."""
        return self.app.state

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry the schedule's name."""
        return RunLogger(schedule_logger, self.facts())

    def facts(self) -> dict[str, Any]:
        """What identifies this run in log lines and CPU calls."""
        return {"schedule": self.name}

    def __str__(self) -> str:
        return _title(self.facts())
