"""A job as headers and bytes, in and out.

The format is documented, so that any NATS client can enqueue: a bare JSON message
without headers is a job. Headers are few, because parsing them costs more than the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from secrets import token_hex
from typing import TypeVar

from mega.errors import BadOption, PayloadInvalid
from mega.options import Backoff

__all__ = [
    "Message",
    "check_headers",
    "check_id",
    "new_id",
    "pack",
    "stream_name",
    "subject_token",
    "unpack",
]

T = TypeVar("T")

ID = "Mega-Id"
ATTEMPT = "Mega-Attempt"
ENQUEUED_AT = "Mega-Enqueued-At"
RETRIES = "Mega-Retries"
BACKOFF = "Mega-Backoff"
FORMAT = "Mega-Format"
SERVER_ID = "Nats-Msg-Id"
RESERVED = ("mega-", "nats-")
SUPPORTED_FORMAT = "1"

MAX_ID_LENGTH = 128
MAX_DIGITS = 9
MAX_SHOWN = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One job on its way. `attempt` counts from 1.

    `retries` and `backoff` are set when the enqueue overrides the declaration;
    `enqueued_at` is None until the broker has stamped the first copy.
    """

    id: str
    subject: str
    body: bytes
    attempt: int = 1
    enqueued_at: datetime | None = None
    retries: int | None = None
    backoff: Backoff | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def new_id() -> str:
    """Return a fresh job id: 24 hexadecimal digits, one token of a NATS subject."""
    return token_hex(12)


def check_id(job_id: str) -> str:
    """Return `job_id` if it can be a job's id. Raises: BadOption."""
    is_text = isinstance(job_id, str) and job_id.isascii() and job_id.isprintable()
    if not is_text or " " in job_id or not 1 <= len(job_id) <= MAX_ID_LENGTH:
        raise BadOption(
            f"id={job_id!r} can't be a job id.",
            hint=f"An id is 1 to {MAX_ID_LENGTH} printable ASCII characters without blanks.",
        )
    return job_id


def check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return `headers` if a job can carry them. Raises: BadOption."""
    if not isinstance(headers, Mapping):
        raise BadOption(f"headers={headers!r} is not a mapping of names to texts.")
    for name, value in headers.items():
        text = f"{name}{value}" if isinstance(name, str) and isinstance(value, str) else "\n"
        if not text.isascii() or not text.isprintable() or ":" in name or " " in name or not name:
            raise BadOption(
                f"the header {name!r}: {value!r} can't be sent.",
                hint="Names and values are printable ASCII text; put the rest into the payload.",
            )
        if name.lower().startswith(RESERVED):
            raise BadOption(f"the header name {name!r} is reserved: it starts like our own.")
    return headers


def stream_name(subject: str) -> str:
    """Return the name that the subject's stream is built from: `a.b` becomes `a_b`."""
    return subject.replace(".", "_")


def subject_token(text: str) -> str:
    """Return `text` as one token of a NATS subject."""
    for char, code in (("%", "%25"), (".", "%2E"), ("*", "%2A"), (">", "%3E")):
        if char in text:
            text = text.replace(char, code)
    return text


def pack(message: Message) -> dict[str, str]:
    """Return the headers that carry all but the body. Defaults are left out."""
    headers = dict(message.headers)
    headers[ID] = message.id
    if message.attempt != 1:
        headers[ATTEMPT] = str(message.attempt)
    if message.enqueued_at is not None:
        headers[ENQUEUED_AT] = message.enqueued_at.astimezone(UTC).isoformat()
    if message.retries is not None:
        headers[RETRIES] = str(message.retries)
    if message.backoff is not None:
        headers[BACKOFF] = json.dumps(asdict(message.backoff), separators=(",", ":"))
    return headers


def unpack(
    subject: str, headers: Mapping[str, str] | None, body: bytes, *, fallback_id: str
) -> Message:
    """Return the job in a stored message.

    `fallback_id` names a message of a foreign producer that gave no id.
    Raises: PayloadInvalid, when a header of ours can't be read or the format is newer.
    """
    if not headers:
        return Message(id=fallback_id, subject=subject, body=body)
    try:
        return _unpack(subject, headers, body, fallback_id)
    except ValueError as error:
        raise PayloadInvalid(f'a job on "{subject}" has unreadable headers: {error}') from None


def _unpack(subject: str, headers: Mapping[str, str], body: bytes, fallback_id: str) -> Message:
    if headers.get(FORMAT, SUPPORTED_FORMAT) != SUPPORTED_FORMAT:
        raise ValueError(f"{FORMAT} {headers[FORMAT]!r} is newer than this mega understands")
    return Message(
        id=headers.get(ID) or headers.get(SERVER_ID) or fallback_id,
        subject=subject,
        body=body,
        attempt=_read(headers, ATTEMPT, _attempt) or 1,
        enqueued_at=_read(headers, ENQUEUED_AT, _instant),
        retries=_read(headers, RETRIES, _count),
        backoff=_read(headers, BACKOFF, _backoff),
        headers={k: v for k, v in headers.items() if not k.lower().startswith(RESERVED)},
    )


def _read(headers: Mapping[str, str], name: str, parse: Callable[[str], T]) -> T | None:
    text = headers.get(name)
    if not text:
        return None
    try:
        return parse(text)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{name} {text[:MAX_SHOWN]!r}: {error}") from None


def _count(text: str) -> int:
    # Digits alone, and few: a record can't hold an integer of over 64 bits.
    if not text.isascii() or not text.isdecimal() or len(text) > MAX_DIGITS:
        raise ValueError(f"it is not a whole number of at most {MAX_DIGITS} digits.")
    return int(text)


def _attempt(text: str) -> int:
    attempt = _count(text)
    if attempt < 1:
        raise ValueError("attempts count from 1.")
    return attempt


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError("it has no time zone.")
    return instant.astimezone(UTC)


def _backoff(text: str) -> Backoff:
    return Backoff(**json.loads(text))
