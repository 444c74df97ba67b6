"""What an app calls when a process starts to serve and when it ends."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Any

import anyio

from mega.declare.naming import place_of
from mega.declare.registry import Registry, StartUp
from mega.errors import LockBackendError
from mega.ports import Claim
from mega.runtime.surroundings import Surroundings

__all__ = ["Hooks"]

logger = logging.getLogger("mega")

#: Processes that start within so many seconds of each other start together.
TOGETHER_WITHIN = 30.0


class Hooks:
    """The start-up and shutdown hooks of one serving process, called one after the other."""

    def __init__(self, registry: Registry, around: Surroundings) -> None:
        self._startup: Sequence[StartUp] = registry.startup
        self._shutdown: Sequence[Callable[[], Any]] = registry.shutdown
        self._around = around
        self._owner = f"{around.worker}/{token_hex(4)}"
        self._claims: list[Claim] = []

    async def start(self) -> None:
        """Call the start-up hooks. Raises: what one of them raises, LockBackendError."""
        for hook in self._startup:
            if not hook.once or await self._is_first(hook):
                try:
                    await _call(hook.fn)
                except Exception as error:
                    error.add_note(f"It was raised by the start-up hook {hook.place}.")
                    raise

    async def end(self) -> None:
        """Call all shutdown hooks; what one raises is logged. Raises nothing but cancellation."""
        for fn in self._shutdown:
            try:
                await _call(fn)
            except GeneratorExit:
                raise
            except BaseException as error:
                # A cancellation that nobody asked for is an error of the hook's own.
                is_cancelled = anyio.get_current_task().has_pending_cancellation()
                if is_cancelled and not isinstance(error, Exception):
                    raise
                logger.exception("the shutdown hook %s raised", place_of(fn))
        await self._release()

    async def _is_first(self, hook: StartUp) -> bool:
        """Take the hook's lease, unless a process that started shortly before has it.

        Nobody renews it: it runs out, or goes when its process ends, for a later boot.
        """
        answer = await self._around.broker.claims.claim(
            f"mega:startup:{self._around.app.name}:{hook.name}",
            tick=None,
            owner=self._owner,
            lease=TOGETHER_WITHIN,
        )
        if isinstance(answer, Claim):
            self._claims.append(answer)
            return True
        logger.info("%s is called by %s, which starts too", hook.name, answer.by)
        return False

    async def _release(self) -> None:
        for claim in self._claims:
            try:
                await self._around.broker.claims.release(claim)
            except LockBackendError as error:
                logger.debug("%s runs out by itself: %s", claim.key, error)


async def _call(fn: Callable[[], Any]) -> None:
    answer = fn()
    if inspect.isawaitable(answer):
        await answer
