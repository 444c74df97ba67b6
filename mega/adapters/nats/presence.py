"""Signs of life: a key for each worker process, in the bucket of the job records.

It runs out soon after the process has died, so that nobody takes the last job of a dead worker
for a running one.
"""

from __future__ import annotations

from contextlib import suppress

from mega.adapters.nats.buckets import last_stored
from mega.adapters.nats.client import Client
from mega.adapters.nats.layout import STATE, key_token
from mega.adapters.nats.publisher import Publisher
from mega.errors import BrokerFull, BrokerUnavailable

__all__ = ["Presence", "is_present"]

SHORTEST_TTL = 2


class Presence:
    """The key of one worker. It has two tokens, so no job's key is like it."""

    def __init__(self, worker: str, *, ack_wait: float) -> None:
        self._subject = presence_subject(worker)
        self._headers = {"Nats-TTL": str(max(SHORTEST_TTL, round(ack_wait) + 1))}

    async def begin(self, publisher: Publisher) -> None:
        """Return when the first sign is stored. Raises: BrokerUnavailable.

        A server without room gets it later: only its workers can make room.
        """
        with suppress(BrokerFull):
            await publisher.store(self._subject, b"", self._headers)

    async def renew(self, client: Client) -> None:
        """Send another sign, and wait for nothing."""
        with suppress(BrokerUnavailable):
            await client.publish(self._subject, b"", headers=self._headers)


async def is_present(client: Client, worker: str) -> bool:
    """Return whether that process has given a sign of life. Raises: BrokerUnavailable."""
    stored = await last_stored(client, STATE, f"worker.{key_token(worker)}")
    return stored.sequence > 0


def presence_subject(worker: str) -> str:
    return f"$KV.{STATE}.worker.{key_token(worker)}"
