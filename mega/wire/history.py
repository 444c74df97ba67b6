"""What a job has been through: runs that never ended, and its earlier dead letters.

It travels with the job, in headers, because records run out and untracked jobs have none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

__all__ = [
    "Crash",
    "Death",
    "decode_crashes",
    "decode_deaths",
    "encode_history",
    "with_latest",
]

#: How many of each are kept, the latest ones: headers must stay small.
KEPT = 20
MAX_NAME = 100
MOST_ATTEMPTS = 2**31

T = TypeVar("T")


class Crash(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run whose worker died. `number` is that of the attempt."""

    number: Annotated[int, Meta(ge=1, le=MOST_ATTEMPTS)]
    worker: str | None = None
    started_at: datetime | None = None


class Death(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One time that the job became a dead letter. `crashes` counts those of that life.

    The error's text is not in it, as it must not stand in a header.
    """

    reason: str
    error_type: str
    attempts: Annotated[int, Meta(ge=0, le=MOST_ATTEMPTS)]
    crashes: Annotated[int, Meta(ge=0, le=MOST_ATTEMPTS)] = 0
    failed_at: datetime
    worker: str

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "error_type", self.error_type[-MAX_NAME:])
        msgspec.structs.force_setattr(self, "worker", self.worker[-MAX_NAME:])


def with_latest(history: tuple[T, ...], latest: T) -> tuple[T, ...]:
    """Return the history with one more, the oldest left out above twenty."""
    return (*history, latest)[-KEPT:]


def encode_history(history: Sequence[Crash] | Sequence[Death]) -> str:
    """Return the history as JSON in ASCII, as it may stand in a header."""
    return json.dumps(msgspec.to_builtins(history), separators=(",", ":"))


def decode_crashes(text: str) -> tuple[Crash, ...]:
    """Return the crashes in a header. Raises: ValueError."""
    return msgspec.json.decode(text, type=tuple[Crash, ...])[-KEPT:]


def decode_deaths(text: str) -> tuple[Death, ...]:
    """Return the deaths in a header. Raises: ValueError."""
    return msgspec.json.decode(text, type=tuple[Death, ...])[-KEPT:]
