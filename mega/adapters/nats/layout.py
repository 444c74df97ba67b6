"""The streams and consumers that mega wants, as JetStream's configs. Pure."""

from __future__ import annotations

from typing import Any, TypeAlias

from mega.options import kept_seconds
from mega.ports import Queue
from mega.urls import BrokerUrl
from mega.wire.message import stream_name, subject_token

__all__ = [
    "CLAIMS",
    "CONSUMER",
    "STATE",
    "Config",
    "claims_stream",
    "consumer",
    "dead_letter_stream",
    "dead_letter_stream_name",
    "dead_letter_subject",
    "drift",
    "job_stream",
    "job_stream_name",
    "key_token",
    "schedule_subject",
    "shown",
    "state_stream",
    "window",
]

Config: TypeAlias = dict[str, Any]

CONSUMER = "workers"
STATE, CLAIMS = "MEGA_STATE", "MEGA_CLAIMS"

SECOND = 1_000_000_000
IN_NANOSECONDS = ("ack_wait", "duplicate_window", "max_age")
DUPLICATE_WINDOW = 120.0


def job_stream_name(subject: str) -> str:
    """Return the name of the stream that keeps the subject's jobs."""
    return f"MEGA_JOBS_{stream_name(subject)}"


def schedule_subject(subject: str, token: str) -> str:
    """Return where delayed copies wait; one subject holds one schedule, so the token is the id."""
    return f"mega.sched.{stream_name(subject)}.{token}"


def dead_letter_stream_name(subject: str) -> str:
    return f"{job_stream_name(subject)}_DLQ"


def dead_letter_subject(subject: str) -> str:
    return f"{subject}.dlq"


def key_token(text: str) -> str:
    """Return any text as one token of a subject."""
    return subject_token(text)


def job_stream(queue: Queue, url: BrokerUrl) -> Config:
    """Return the config of the subject's stream.

    No limit: the server refuses `discard: new` beside schedules (err 10052), and with
    `discard: old` a limit would delete jobs that wait.
    """
    return {
        "name": job_stream_name(queue.subject),
        "subjects": [queue.subject, schedule_subject(queue.subject, "*")],
        "retention": "workqueue",
        "storage": "file",
        "discard": "old",
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "num_replicas": url.replicas,
        "duplicate_window": nanoseconds(window(url)),
        "allow_msg_schedules": True,
        "allow_msg_ttl": True,
        "allow_atomic": True,
    }


def dead_letter_stream(queue: Queue, url: BrokerUrl) -> Config:
    """Return the config of the subject's dead letters."""
    kept = queue.options.dead_letter
    max_age = kept_seconds(kept.max_age)
    # The server refuses a duplicate window that is longer than max_age (err 10052).
    duplicates = min(window(url), max_age) if max_age else window(url)
    return {
        "name": dead_letter_stream_name(queue.subject),
        "subjects": [dead_letter_subject(queue.subject)],
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "max_age": nanoseconds(max_age),
        "max_bytes": -1 if kept.max_bytes is None else kept.max_bytes,
        "num_replicas": url.replicas,
        "duplicate_window": nanoseconds(duplicates),
    }


def consumer(queue: Queue, url: BrokerUrl) -> Config:
    """Return the config of the subject's one consumer.

    `max_deliver` is -1, because a message over it stays in the stream for ever, unseen.
    """
    return {
        "durable_name": CONSUMER,
        "name": CONSUMER,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "filter_subject": queue.subject,
        "ack_wait": nanoseconds(url.ack_wait),
        "max_ack_pending": queue.options.concurrency,
        "max_deliver": -1,
    }


def state_stream(url: BrokerUrl) -> Config:
    """Return the config of the bucket of job records."""
    return bucket(STATE, url) | {"allow_msg_ttl": True}


def claims_stream(url: BrokerUrl) -> Config:
    """Return the config of the bucket of schedule claims."""
    return bucket(CLAIMS, url)


def bucket(name: str, url: BrokerUrl) -> Config:
    return {
        "name": f"KV_{name}",
        "subjects": [f"$KV.{name}.>"],
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_msgs_per_subject": 1,
        "num_replicas": url.replicas,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
    }


def drift(wanted: Config, actual: Config) -> list[tuple[str, Any, Any]]:
    """Return each field that the server has otherwise than we set it: name, wanted, actual.

    An old server leaves the fields out that it doesn't know; that is drift unless unset.
    """
    return [
        (name, value, actual.get(name))
        for name, value in wanted.items()
        if not is_met(value, actual.get(name))
    ]


def is_met(value: Any, found: Any) -> bool:
    if isinstance(value, list):
        return set(value) <= set(found or ())
    return bool(value == found) or not (value or found)


def shown(name: str, value: Any) -> str:
    """Return a field's value for people."""
    if name in IN_NANOSECONDS and isinstance(value, int):
        return f"{value / SECOND:g} s"
    return repr(value)


def window(url: BrokerUrl) -> float:
    """Return for how many seconds a stream of jobs knows the ids that it stored."""
    return max(DUPLICATE_WINDOW, 2 * url.ack_wait)


def nanoseconds(seconds: float) -> int:
    return round(seconds * SECOND)
