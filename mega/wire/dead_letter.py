"""The envelope in which a job lies among the dead letters of its subject."""

from __future__ import annotations

from base64 import b64encode
from datetime import datetime
from typing import Any

import msgspec

from mega.errors import capped_traceback, text_of
from mega.wire.message import Message

__all__ = ["Envelope", "seal"]


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job that will not be run again by itself, with the reason.

    `payload` is the JSON that was enqueued; a body that isn't JSON is kept in `raw`, as
    Base64, so that nothing is lost. `attempts` counts the runs that were begun.
    """

    id: str
    subject: str
    reason: str
    error_type: str
    error: str
    traceback: str = ""
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    raw: str | None = None
    headers: dict[str, str] = {}
    attempts: int
    enqueued_at: datetime
    failed_at: datetime
    worker: str


_encoder = msgspec.json.Encoder()


def seal(
    message: Message,
    error: BaseException,
    *,
    reason: str,
    attempts: int,
    enqueued_at: datetime,
    failed_at: datetime,
    worker: str,
) -> bytes:
    """Return the envelope of a job as JSON."""
    return _encoder.encode(
        Envelope(
            id=message.id,
            subject=message.subject,
            reason=reason,
            error_type=f"{type(error).__module__}.{type(error).__qualname__}",
            error=text_of(error),
            traceback=capped_traceback(error) if error.__traceback__ else "",
            headers=dict(message.headers),
            attempts=attempts,
            enqueued_at=enqueued_at,
            failed_at=failed_at,
            worker=worker,
            **_body(message.body),
        )
    )


def _body(body: bytes) -> dict[str, Any]:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {"raw": b64encode(body).decode("ascii")}
    return {"payload": msgspec.Raw(body)}
