"""Dead letters in memory."""

from __future__ import annotations

from collections import defaultdict
from itertools import count, islice

from mega.ports import StoredLetter

__all__ = ["MemoryLetters"]


class MemoryLetters:
    """Implements `ports.LetterStore`."""

    def __init__(self) -> None:
        self._kept: defaultdict[str, dict[int, bytes]] = defaultdict(dict)
        self._sequences = count(1)

    def store(self, subject: str, body: bytes) -> None:
        """Keep a letter."""
        self._kept[subject][next(self._sequences)] = bytes(body)

    def bodies(self, subject: str) -> list[bytes]:
        """Return the subject's letters, oldest first."""
        return list(self._kept[subject].values())

    async def read(self, subject: str, *, limit: int, newest_first: bool) -> list[StoredLetter]:
        kept = self._kept[subject]
        sequences = reversed(kept) if newest_first else iter(kept)
        return [StoredLetter((each,), kept[each]) for each in islice(sequences, limit)]

    async def holds(self, subject: str, letter: StoredLetter) -> bool:
        return letter.sequence in self._kept[subject]

    async def delete(self, subject: str, letter: StoredLetter) -> bool:
        return self._kept[subject].pop(letter.sequence, None) is not None

    async def purge(self, subject: str) -> int:
        return len(self._kept.pop(subject, {}))
