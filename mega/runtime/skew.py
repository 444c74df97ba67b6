"""Whether this machine's clock agrees with those of the stores that decide its ticks.

A clock that is ahead starts ticks early, and for all schedulers: no claim can prevent that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import anyio

from mega.errors import LockBackendError
from mega.ports import ClaimStore, Clock

__all__ = ["SkewWatch"]

logger = logging.getLogger("mega.schedule")

BETWEEN_LOOKS = 300.0
WORTH_A_LINE = 0.5


class SkewWatch:
    """Warns of each store, by its name, whose clock differs by more than half a second."""

    def __init__(self, stores: Mapping[str, ClaimStore], clock: Clock) -> None:
        self._stores = stores
        self._clock = clock
        self._told: dict[str, float] = {}

    async def run(self) -> None:
        """Compare the clocks now and every few minutes, for ever."""
        while True:
            async with anyio.create_task_group() as group:
                for name, store in self._stores.items():
                    group.start_soon(self._compare, name, store)
            await self._clock.sleep(BETWEEN_LOOKS)

    async def _compare(self, name: str, store: ClaimStore) -> None:
        begun, before = self._clock.monotonic(), self._clock.now()
        try:
            theirs = await store.time()
        except LockBackendError as error:
            logger.debug("the clock of the lock store %r can't be read: %s", name, error)
            return
        # It looked at its clock at some moment of the call, so either half may be wrong.
        uncertain = (self._clock.monotonic() - begun) / 2
        ahead = (before - theirs).total_seconds() + uncertain
        if abs(ahead - self._told.get(name, 0.0)) - uncertain > WORTH_A_LINE:
            self._told[name] = ahead
            self._tell(name, ahead)

    def _tell(self, name: str, ahead: float) -> None:
        if abs(ahead) <= WORTH_A_LINE:
            logger.warning("the clock of this machine agrees with the lock store %r again", name)
            return
        logger.warning(
            "the clock of this machine is %.1f s %s that of the lock store %r: "
            "its ticks start that much %s",
            abs(ahead),
            *(("ahead of", name, "early") if ahead > 0 else ("behind", name, "late")),
        )
