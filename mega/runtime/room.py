"""How much a job may bring, so that all that is stored of it later fits too."""

from __future__ import annotations

from mega.errors import PayloadTooLarge
from mega.ports import Broker

__all__ = ["check_room"]

#: What a dead letter or a record adds at most: 8 KiB each of traceback and text, and the rest.
RESERVE = 40 * 1024


def check_room(broker: Broker, size: int, called: str, *, hint: str) -> None:
    """Refuse what would leave no room for the rest. Raises: PayloadTooLarge."""
    room = broker.max_size - RESERVE
    if size > room:
        raise PayloadTooLarge(f"{called} has {size:,} bytes, the broker takes {room:,}.", hint=hint)
