"""What was sent without an answer, kept until the server has surely got it.

A connection that breaks takes with it what lay in its buffers: acks, so that jobs that were
done would run again, and records, so that such jobs would be said to run for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeAlias, TypeVar

__all__ = ["Outbox", "Sent"]

T = TypeVar("T")
Sent: TypeAlias = tuple[str, bytes, dict[str, str] | None]

MOST = 4096
GENERATIONS = 3


class Outbox(Generic[T]):
    """Items in the order in which they were sent, the oldest of them dropped beyond a limit.

    A PONG may have overtaken what was sent right before its PING, so it proves that all is
    there from before the PING before that: one generation later.
    """

    def __init__(self) -> None:
        self._generations = deque([deque[T](maxlen=MOST) for _ in range(GENERATIONS)])
        self.keep = self._generations[-1].append

    def confirm(self) -> None:
        """Let go of the oldest generation: a PONG came, and another PING goes out."""
        self._generations.popleft()
        self._generations.append(deque(maxlen=MOST))
        self.keep = self._generations[-1].append

    def latest(self) -> list[T]:
        """Return what was sent since the last answer; another thread may ask."""
        while True:
            try:
                return list(self._generations[-1])
            except RuntimeError:  # it has grown meanwhile
                continue

    def unconfirmed(self) -> Iterator[T]:
        """Yield what may not have arrived, oldest first."""
        for generation in self._generations:
            yield from list(generation)
