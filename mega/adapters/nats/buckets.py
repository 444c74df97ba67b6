"""Reading the last message of a key, at the stream's leader."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from datetime import UTC, datetime

from mega.adapters.nats.client import ApiError, Client

__all__ = ["NOTHING", "Stored", "last_stored"]

MESSAGE_NOT_FOUND = 10037


@dataclass(frozen=True, slots=True)
class Stored:
    """What a key holds. `sequence` 0: nothing. `at` is the server's clock."""

    sequence: int
    body: bytes
    at: datetime


NOTHING = Stored(0, b"", datetime.fromtimestamp(0, UTC))


async def last_stored(client: Client, bucket: str, token: str, *, timeout: float = 5.0) -> Stored:
    """Return the last message of the key. Raises: BrokerUnavailable.

    Not by DIRECT.GET: a replica may answer that, and it may be behind.
    """
    request = {"last_by_subj": f"$KV.{bucket}.{token}"}
    try:
        answer = await client.api(f"STREAM.MSG.GET.KV_{bucket}", request, timeout=timeout)
    except ApiError as error:
        if error.code == MESSAGE_NOT_FOUND:
            return NOTHING
        raise client.unavailable(f"bucket {bucket}: {error.description}") from None
    message = answer["message"]
    at = datetime.fromisoformat(message["time"])
    return Stored(message["seq"], b64decode(message.get("data", "")), at)
