"""Schedule claims on one Redis. Each call is one script on one key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from mega.adapters.redis.scripts import CLAIM, EXTEND, LAST_TICK, RELEASE, TIME
from mega.adapters.redis.server import RedisServer
from mega.ports import Claim, Held, LeaseAnswer, Lost, Skip

__all__ = ["RedisClaims"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class RedisClaims:
    """Implements `ports.ClaimStore`."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server

    async def last_tick(self, key: str) -> datetime | None:
        answer = await self._server.ask(LAST_TICK, redis_key(key))
        return EPOCH + int(answer) * MICROSECOND if answer else None

    async def claim(
        self, key: str, *, tick: datetime | None, owner: str, lease: float | None
    ) -> Claim | Skip:
        arguments = owner, microseconds(tick), milliseconds(lease)
        verdict, detail = await self._server.ask(CLAIM, redis_key(key), *arguments)
        if verdict == b"claimed":
            return Claim(key=key, owner=owner, fence=detail, tick=tick, lease=lease)
        return Skip("taken" if verdict == b"taken" else "running", by=detail.decode())

    async def extend(self, claim: Claim) -> LeaseAnswer:
        arguments = microseconds(claim.tick), milliseconds(claim.lease or 0.0), claim.fence
        answer = await self._server.ask(EXTEND, redis_key(claim.key), claim.owner, *arguments)
        verdict, *by = answer
        return Lost(by[0].decode()) if by else Held(retaken=verdict == b"retaken")

    async def release(self, claim: Claim) -> None:
        await self._server.ask(RELEASE, redis_key(claim.key), claim.owner, claim.fence)

    async def time(self) -> datetime:
        seconds, fraction = await self._server.ask(TIME, redis_key("time"))
        return EPOCH + timedelta(seconds=int(seconds), microseconds=int(fraction))

    def close(self) -> None:
        """Close all connections."""
        self._server.close()


def redis_key(key: str) -> str:
    """Return the key of a record. A cluster finds its server by what stands in the braces."""
    return f"mega:sched:{{{key}}}"


def microseconds(tick: datetime | None) -> str | int:
    return "" if tick is None else (tick - EPOCH) // MICROSECOND


def milliseconds(lease: float | None) -> str | int:
    return "" if lease is None else round(lease * 1000)
