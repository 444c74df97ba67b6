"""A job as headers and bytes, in and out.

The format is documented, so that any NATS client can enqueue: a bare JSON message
without headers is a job. Headers are few, because parsing them costs more than the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec

from mega.errors import BadOption, PayloadInvalid
from mega.options import Backoff
from mega.wire.history import Crash, Death, decode_crashes, decode_deaths, encode_history

__all__ = [
    "Message",
    "as_it_came",
    "check_headers",
    "check_id",
    "check_unique",
    "life_id",
    "new_id",
    "pack",
    "server_id",
    "stream_name",
    "subject_token",
    "unique_token",
    "unpack",
]

T = TypeVar("T")

ID = "Mega-Id"
ATTEMPT = "Mega-Attempt"
ENQUEUED_AT = "Mega-Enqueued-At"
RETRIES = "Mega-Retries"
BACKOFF = "Mega-Backoff"
UNIQUE = "Mega-Unique"
FORMAT = "Mega-Format"
COPIES = "Mega-Copies"
CRASHES, DEATHS = "Mega-Crashes", "Mega-Deaths"
SERVER_ID = "Nats-Msg-Id"
RESERVED = ("mega-", "nats-")
PLAIN = frozenset((ID, SERVER_ID, "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"))
SUPPORTED_FORMAT = "1"

MAX_ID_LENGTH = 128
MAX_UNIQUE_LENGTH = 256
MAX_DIGITS = 9
MAX_SHOWN = 40
#: What can't stand in one token of a subject.
NO_TOKEN = re.compile(r"[%.*>\s]")
#: What a client may send as the name of a header; others could not be stored again.
HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One job on its way. `attempt` counts from 1.

    `retries` and `backoff` are set when the enqueue overrides the declaration;
    `enqueued_at` is None until the broker has stamped the first copy. `unique` is the key that
    is freed when the job has ended. `crashes` and `deaths` are what became of it before.

    A job is a chain of copies: each retry, snooze and giving back stores the next one, and
    `copies` counts those before this one.
    """

    id: str
    subject: str
    body: bytes
    attempt: int = 1
    enqueued_at: datetime | None = None
    retries: int | None = None
    backoff: Backoff | None = None
    unique: str | None = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    copies: int = 0
    crashes: tuple[Crash, ...] = ()
    deaths: tuple[Death, ...] = ()

    def but(self, **changes: Any) -> Message:
        """Return the same job with those fields changed."""
        return msgspec.structs.replace(self, **changes)

    def next_copy(self, *, attempt: int, enqueued_at: datetime) -> Message:
        """Return the copy that follows this one in the job's chain."""
        return self.but(attempt=attempt, enqueued_at=enqueued_at, copies=self.copies + 1)


def new_id() -> str:
    """Return a fresh job id: 24 hexadecimal digits, one token of a NATS subject."""
    return token_hex(12)


def check_id(job_id: str) -> str:
    """Return `job_id` if it can be a job's id. Raises: BadOption."""
    if not isinstance(job_id, str) or not _can_be_id(job_id):
        raise BadOption(
            f"id={job_id!r} can't be a job id.",
            hint=f"An id is 1 to {MAX_ID_LENGTH} printable ASCII characters without blanks.",
        )
    return job_id


def _can_be_id(text: str) -> bool:
    is_plain = text.isascii() and text.isprintable() and " " not in text
    return is_plain and 1 <= len(text) <= MAX_ID_LENGTH


def check_unique(key: str) -> str:
    """Return `key` if it can be a unique key. Raises: BadOption."""
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_UNIQUE_LENGTH or not _is_unicode(key):
        raise BadOption(
            f"unique={key!r} can't be a key.",
            hint=f"A key is a text of 1 to {MAX_UNIQUE_LENGTH} characters.",
        )
    return key


def check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return `headers` if a job can carry them. Raises: BadOption."""
    if not isinstance(headers, Mapping):
        raise BadOption(f"headers={headers!r} is not a mapping of names to texts.")
    for name, value in headers.items():
        is_text = isinstance(name, str) and isinstance(value, str)
        is_plain = is_text and value.isascii() and value.isprintable()
        if not is_plain or not HEADER_NAME.fullmatch(name):
            raise BadOption(
                f"the header {name!r}: {value!r} can't be sent.",
                hint="A name is of the characters that HTTP allows, a value is printable ASCII "
                "text; put the rest into the payload.",
            )
        if name.lower().startswith(RESERVED):
            raise BadOption(f"the header name {name!r} is reserved: it starts like our own.")
    return headers


def stream_name(subject: str) -> str:
    """Return the name that the subject's stream is built from: `a.b` becomes `a_b`."""
    return subject.replace(".", "_")


def subject_token(text: str) -> str:
    """Return `text` as one token of a NATS subject."""
    return NO_TOKEN.sub(lambda found: f"%{ord(found[0]):02X}", text)


def unique_token(key: str) -> str:
    """Return a unique key as one token of a NATS subject, and as the value of a header."""
    return quote(key, safe="").replace(".", "%2E")


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
    if message.unique is not None:
        headers[UNIQUE] = unique_token(message.unique)
    if message.copies:
        headers[COPIES] = str(message.copies)
    if message.crashes:
        headers[CRASHES] = encode_history(message.crashes)
    if message.deaths:
        headers[DEATHS] = encode_history(message.deaths)
    return headers


def server_id(message: Message) -> str:
    """Return by what a broker tells duplicates of a message.

    It names the copy's place in the chain of its job, and not the attempt: when an ack was
    lost and a copy is run a second time, what that run stores is a duplicate of what the
    first one had stored, so the chain never forks.
    """
    if message.copies:
        return f"{life_id(message, message.enqueued_at)}.{message.copies}"
    return life_id(message, message.enqueued_at) if message.deaths else message.id


def life_id(message: Message, enqueued_at: datetime | None) -> str:
    """Return what names a job from its enqueue, or its return from the dead letters, on.

    The time is in it, because an id may be used again after a while.
    """
    if message.deaths:
        return f"{message.id}.again.{len(message.deaths)}.{_stamp(message.deaths[-1].failed_at)}"
    return message.id if enqueued_at is None else f"{message.id}.{_stamp(enqueued_at)}"


def _stamp(instant: datetime) -> str:
    return f"{instant.timestamp():.6f}"


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
    except (ValueError, TypeError, AttributeError) as error:
        raise PayloadInvalid(f'a job on "{subject}" has unreadable headers: {error}') from None


def as_it_came(
    subject: str, headers: Mapping[str, str] | None, body: bytes, *, fallback_id: str
) -> Message:
    """Return a message that `unpack` refuses, with all its headers but those of the server.

    Ours among them are kept too: a newer release, or a person, may understand them.
    """
    texts = {str(name): str(value) for name, value in (headers or {}).items()}
    kept = {name: texts[name] for name in texts if not name.lower().startswith("nats-")}
    job_id = texts.get(ID, "")
    return Message(
        id=job_id if _can_be_id(job_id) else fallback_id, subject=subject, body=body, headers=kept
    )


def _unpack(subject: str, headers: Mapping[str, str], body: bytes, fallback_id: str) -> Message:
    if PLAIN.issuperset(headers):  # as most jobs', and reading each header costs more
        return Message(id=_id(headers) or fallback_id, subject=subject, body=body)
    if headers.get(FORMAT, SUPPORTED_FORMAT) != SUPPORTED_FORMAT:
        raise ValueError(f"{FORMAT} {headers[FORMAT]!r} is newer than this mega understands")
    return Message(
        id=_id(headers) or fallback_id,
        subject=subject,
        body=body,
        attempt=_read(headers, ATTEMPT, _attempt) or 1,
        enqueued_at=_read(headers, ENQUEUED_AT, _instant),
        retries=_read(headers, RETRIES, _count),
        backoff=_read(headers, BACKOFF, _backoff),
        unique=_read(headers, UNIQUE, unquote),
        headers=_users_own(headers),
        copies=_read(headers, COPIES, _count) or 0,
        crashes=_read(headers, CRASHES, decode_crashes) or (),
        deaths=_read(headers, DEATHS, decode_deaths) or (),
    )


def _id(headers: Mapping[str, str]) -> str | None:
    if job_id := headers.get(ID):
        if not _can_be_id(job_id):
            raise ValueError(f"{ID} {job_id[:MAX_SHOWN]!r} can't be a job's id")
        return job_id
    given = headers.get(SERVER_ID)
    return given if given and _can_be_id(given) else None


def _users_own(headers: Mapping[str, str]) -> dict[str, str]:
    own = {k: v for k, v in headers.items() if not k.lower().startswith(RESERVED)}
    for name in own:
        if not HEADER_NAME.fullmatch(name):
            raise ValueError(f"the header name {name[:MAX_SHOWN]!r} can't be sent again")
    return own


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


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can carry the text: one from the name of a file may hold half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
