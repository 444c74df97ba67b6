"""mega itself, with job records and without."""

from __future__ import annotations

from typing import Any, ClassVar

from benchmarks.contenders import CONCURRENCY, Contender
from benchmarks.order import Body
from mega import App

__all__ = ["Mega", "MegaUntracked"]


class Mega(Contender):
    """A job as it is declared by default, apart from its concurrency."""

    has_bulk = True
    is_tracked: ClassVar[bool] = True

    def __init__(self, server: str, body: Body, *, ack_wait: float) -> None:
        super().__init__(server, body, ack_wait=ack_wait)
        self.app = App("bench", broker=f"{server}?ack_wait={ack_wait:g}")
        declare = self.app.job("bench", concurrency=CONCURRENCY, track=self.is_tracked)
        self.job: Any = declare(body)

    async def __aenter__(self) -> Mega:
        await self.app.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.app.__aexit__(*exc_info)

    async def enqueue(self, payload: dict[str, Any]) -> None:
        await self.job.enqueue(payload)

    async def enqueue_many(self, payloads: list[dict[str, Any]]) -> None:
        await self.app.enqueue_many(self.job, payloads)

    async def work(self) -> None:
        await self.app.serve(role="worker")


class MegaUntracked(Mega):
    """The same without records."""

    is_tracked = False
