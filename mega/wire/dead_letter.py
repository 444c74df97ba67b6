"""The envelope in which a job lies among the dead letters of its subject."""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import datetime
from typing import Any

import msgspec

from mega.errors import capped_traceback, text_of
from mega.options import Backoff
from mega.wire.history import Crash, Death, with_latest
from mega.wire.message import Message

__all__ = ["Envelope", "revive", "seal", "unseal"]


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job that will not be run again by itself, with the reason.

    `payload` is the JSON that was enqueued; a body that isn't JSON is kept in `raw`, as
    Base64, so that nothing is lost. `attempts` counts the runs that were begun, `crashes`
    are those whose worker died. `earlier_deaths` are the dead letters from which the job
    came back, oldest first. `retries` and `backoff` are those of the enqueue.
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
    retries: int | None = None
    backoff: Backoff | None = None
    attempts: int
    crashes: tuple[Crash, ...] = ()
    earlier_deaths: tuple[Death, ...] = ()
    enqueued_at: datetime
    failed_at: datetime
    worker: str

    @property
    def deaths(self) -> tuple[Death, ...]:
        """Each time that the job became a dead letter, this one last."""
        return with_latest(
            self.earlier_deaths,
            Death(
                reason=self.reason,
                error_type=self.error_type,
                attempts=self.attempts,
                crashes=len(self.crashes),
                failed_at=self.failed_at,
                worker=self.worker,
            ),
        )

    @property
    def body(self) -> bytes:
        """The job's body, as it was enqueued."""
        if self.raw is not None:
            return b64decode(self.raw)
        return b"" if self.payload is msgspec.UNSET else bytes(self.payload)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Envelope)


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
            retries=message.retries,
            backoff=message.backoff,
            attempts=attempts,
            crashes=message.crashes,
            earlier_deaths=message.deaths,
            enqueued_at=enqueued_at,
            failed_at=failed_at,
            worker=worker,
            **_body(message.body),
        )
    )


def unseal(letter: bytes) -> Envelope:
    """Return the envelope in a dead letter. Raises: ValueError."""
    try:
        return _decoder.decode(letter)
    except RecursionError:
        raise ValueError("its payload is nested too deeply") from None


def revive(envelope: Envelope) -> Message:
    """Return the job in an envelope as it begins anew: all its retries, and its history."""
    return Message(
        id=envelope.id,
        subject=envelope.subject,
        body=envelope.body,
        enqueued_at=envelope.enqueued_at,
        retries=envelope.retries,
        backoff=envelope.backoff,
        headers=envelope.headers,
        deaths=envelope.deaths,
    )


def _body(body: bytes) -> dict[str, Any]:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {"raw": b64encode(body).decode("ascii")}
    return {"payload": msgspec.Raw(body)}
