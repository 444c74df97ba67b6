"""What the options of an enqueue come to; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from mega.errors import BadOption
from mega.handles import BulkOptions, EnqueueOptions
from mega.options import Backoff, check_count, refuse_unknown, to_backoff, to_seconds
from mega.wire.message import Message, check_headers, check_id, check_unique, new_id

__all__ = ["Plan", "plan_many", "plan_one"]

LATEST = datetime(2100, 1, 1, tzinfo=UTC)
KNOWN = frozenset(EnqueueOptions.__annotations__)
KNOWN_OF_MANY = frozenset(BulkOptions.__annotations__)
SHORTEST_GUARD = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything about an enqueue but the job and its payload.

    Due is the job at `due_at`, or `after` that many seconds, or at once.
    """

    due_at: datetime | None = None
    after: float = 0.0
    retries: int | None = None
    backoff: Backoff | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    id: str | None = None
    unique: str | None = None
    unique_for: float | None = None

    def message(self, subject: str, body: bytes, *, now: datetime) -> Message:
        """Return the message of one job, with the planned id or a fresh one."""
        return Message(
            id=self.id or new_id(),
            subject=subject,
            body=body,
            # The broker stamps a delayed copy when it fires.
            enqueued_at=now if self.after or self.due_at else None,
            retries=self.retries,
            backoff=self.backoff,
            unique=self.unique if self.unique_for is None else None,
            headers=self.headers,
        )

    def wait(self, now: datetime) -> float:
        """Return the seconds until the job is due."""
        if self.due_at is None:
            return self.after
        return max(0.0, (self.due_at - now).total_seconds())

    def due(self, now: datetime) -> datetime | None:
        """Return when the job is due, or None for at once."""
        return now + timedelta(seconds=self.after) if self.after else self.due_at


AT_ONCE = Plan()


def plan_one(options: EnqueueOptions, *, now: datetime) -> Plan:
    """Return the plan of one job. Raises: BadOption."""
    if not options:
        return AT_ONCE
    refuse_unknown(_unknown(options, KNOWN), KNOWN, what="enqueue")
    job_id, unique, unique_for = map(options.get, ("id", "unique", "unique_for"))
    if unique is not None and job_id is not None:
        raise BadOption(
            "enqueue was given both id= and unique=.",
            hint="id= names one job for some minutes, unique= lets one job of a key be there.",
        )
    if unique is None and unique_for is not None:
        raise BadOption(
            "enqueue was given unique_for= without unique=.", hint='Add unique="some key".'
        )
    return Plan(
        **_common(options, now),
        id=None if job_id is None else check_id(job_id),  # type: ignore[arg-type]  # it checks the type
        unique=None if unique is None else check_unique(unique),  # type: ignore[arg-type]  # too
        unique_for=_guarded_for(unique_for),
    )


def plan_many(options: BulkOptions, *, now: datetime) -> Plan:
    """Return the plan that many jobs share. Raises: BadOption."""
    for name in _unknown(options, KNOWN_OF_MANY):
        if name in KNOWN:
            raise BadOption(
                f"enqueue_many has no option {name!r}: each of its jobs gets an id of its own.",
                hint=f"Enqueue the jobs that need {name}= one by one.",
            )
    refuse_unknown(_unknown(options, KNOWN_OF_MANY), KNOWN_OF_MANY, what="enqueue_many")
    return Plan(**_common(options, now))


def _unknown(options: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in known}


def _common(options: BulkOptions, now: datetime) -> dict[str, Any]:
    headers, backoff = options.get("headers"), options.get("backoff")
    return {
        **_due(options.get("delay"), options.get("at"), now),
        "retries": _retries(options.get("retries"), options.get("attempts")),
        "backoff": None if backoff is None else to_backoff(backoff),
        "headers": check_headers(headers) if headers else {},
    }


def _retries(retries: int | None, attempts: int | None) -> int | None:
    if retries is not None and attempts is not None:
        raise BadOption(
            "enqueue was given both retries= and attempts=.",
            hint="retries counts the runs after the first, attempts counts all runs.",
        )
    if attempts is not None:
        return check_count(attempts, option="attempts", minimum=1) - 1
    return None if retries is None else check_count(retries, option="retries")


def _due(delay: Any, at: Any, now: datetime) -> dict[str, Any]:
    if delay is not None and at is not None:
        raise BadOption("enqueue was given both delay= and at=.")
    if delay is not None:
        seconds = to_seconds(delay, option="delay")
        _refuse_too_late(seconds > (LATEST - now).total_seconds())
        return {"after": seconds}
    if at is None:
        return {}
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise BadOption(
            f"at={at!r} is not an aware datetime.",
            hint="Give it a zone, such as datetime.now(UTC) + timedelta(hours=1).",
        )
    _refuse_too_late(at > LATEST)
    return {} if at <= now else {"due_at": at.astimezone(UTC)}


def _refuse_too_late(is_too_late: bool) -> None:
    if is_too_late:
        raise BadOption(f"the job would be due after {LATEST:%Y}, which can't be meant.")


def _guarded_for(unique_for: Any) -> float | None:
    if unique_for is None:
        return None
    return to_seconds(unique_for, option="unique_for", minimum=SHORTEST_GUARD)
