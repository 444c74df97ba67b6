"""A limit on how many runs go on at once in one process, over all of its jobs."""

from __future__ import annotations

from collections import deque

import anyio

__all__ = ["Turns"]


class Turns:
    """At most `limit` at once, in the order in which they asked, until `close`."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: deque[Turn] = deque()
        self._is_closed = False

    async def take(self) -> bool:
        """Wait for a turn, which `give` ends. False: it is closed, and there are none."""
        if self._is_closed:
            return False
        if self._free:
            self._free -= 1
            return True
        turn = Turn()
        self._waiting.append(turn)
        try:
            await turn.is_settled.wait()
        except BaseException:
            self._withdraw(turn)
            raise
        return turn.is_mine

    def give(self) -> None:
        """End a turn; the one that has waited longest gets it."""
        if self._waiting:
            self._waiting.popleft().settle(is_mine=True)
        else:
            self._free += 1

    def close(self) -> None:
        """Let nobody begin any more, and send away who waits."""
        self._is_closed = True
        while self._waiting:
            self._waiting.popleft().settle(is_mine=False)

    def _withdraw(self, turn: Turn) -> None:
        if turn.is_mine:  # it came together with the cancellation
            self.give()
        elif turn in self._waiting:
            self._waiting.remove(turn)


class Turn:
    """Somebody's place in the row."""

    def __init__(self) -> None:
        self.is_settled = anyio.Event()
        self.is_mine = False

    def settle(self, *, is_mine: bool) -> None:
        self.is_mine = is_mine
        self.is_settled.set()
