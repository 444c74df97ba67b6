"""What a claim, a renewal and a release make of a schedule's record.

The rules for stores that decide here and write what was decided; Redis has them as scripts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from mega.ports import FAR_AHEAD, Claim, Held, LeaseAnswer, Lost, Skip

__all__ = [
    "ClaimRecord",
    "deny",
    "extended",
    "grant",
    "is_far_behind",
    "released",
    "settled",
]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """What is known of one schedule.

    `lease` are the seconds that the owner's lease lasts from the moment of the writing.
    `running` is who held the lease when the tick was decided, and so kept it from running.
    """

    tick: datetime | None = None
    claimed_by: str = ""
    running: str = ""
    owner: str = ""
    lease: float = 0.0
    fence: int = 0


def settled(known: ClaimRecord, asked: Claim, *, now: datetime | None = None) -> Skip | None:
    """Return the answer for a tick that was decided before; None when it can be claimed.

    `now` is the store's instant, which is needed where the tick `is_far_behind`.
    """
    if asked.tick is None or known.tick is None or asked.tick > known.tick:
        return None
    if now is not None and is_far_behind(known, asked) and known.tick - now > FAR_AHEAD:
        return None
    if not is_repeated(known, asked):
        return Skip("taken", by=known.claimed_by)
    return Skip("running", by=known.running) if known.running else None


def is_far_behind(known: ClaimRecord, asked: Claim) -> bool:
    """Whether the tick is hours before the last decided one, so that one of the two is wrong."""
    if asked.tick is None or known.tick is None:
        return False
    return known.tick - asked.tick > FAR_AHEAD


def grant(
    known: ClaimRecord, asked: Claim, *, above: int = 0, now: datetime | None = None
) -> tuple[ClaimRecord, Claim]:
    """Return the record that makes the claim. Its fence is higher than `above`, too.

    `now` is the store's instant, which is needed where no tick is asked for.
    """
    is_held = asked.lease is None or known.owner == asked.owner
    is_same = is_repeated(known, asked) and is_held
    fence = known.fence if is_same else next_fence(known, asked.tick or now, above)
    claim = replace(asked, fence=fence)
    record = replace(with_tick(known, claim), fence=fence)
    if claim.lease is not None:
        record = replace(record, owner=claim.owner, lease=claim.lease)
    elif known.owner != claim.owner:
        # Its lease has run out, and would begin anew with this writing.
        record = replace(record, owner="", lease=0.0)
    return record, claim


def deny(known: ClaimRecord, asked: Claim, *, left: float) -> tuple[ClaimRecord, Skip]:
    """Return the record that decides the tick without a run, for another one's lease lasts."""
    answer = Skip("running", by=known.owner)
    if asked.tick is None:
        return known, answer
    return replace(with_tick(known, asked, running=known.owner), lease=left), answer


def extended(known: ClaimRecord, claim: Claim) -> tuple[ClaimRecord, LeaseAnswer]:
    """Return the record with the lease renewed, or as it is when another owner has claimed."""
    if known.owner not in ("", claim.owner):
        return known, Lost(by=known.owner)
    if known.fence > claim.fence or is_decided_by_another(known, claim):
        return known, Lost(by="" if known.claimed_by == claim.owner else known.claimed_by)
    record = replace(known, owner=claim.owner, lease=claim.lease or 0.0, fence=claim.fence)
    if claim.tick is not None and (known.tick is None or known.tick < claim.tick):
        record = with_tick(record, claim)
    return record, Held(retaken=known.owner != claim.owner)


def released(known: ClaimRecord, claim: Claim) -> ClaimRecord:
    """Return the record without the lease of this owner."""
    return replace(known, owner="", lease=0.0) if known.owner == claim.owner else known


def with_tick(known: ClaimRecord, claim: Claim, *, running: str = "") -> ClaimRecord:
    if claim.tick is None:
        return known
    tick = claim.tick.astimezone(UTC)
    return replace(known, tick=tick, claimed_by=claim.owner, running=running)


def next_fence(known: ClaimRecord, at: datetime | None, above: int) -> int:
    """Return a fence that a later claim exceeds even if the store loses all that it knows."""
    stamp = (at - EPOCH) // MILLISECOND if at else 0
    return max(known.fence + 1, above + 1, stamp)


def is_repeated(known: ClaimRecord, asked: Claim) -> bool:
    return asked.tick is not None and (known.tick, known.claimed_by) == (asked.tick, asked.owner)


def is_decided_by_another(known: ClaimRecord, claim: Claim) -> bool:
    is_same_tick = claim.tick is not None and known.tick == claim.tick
    return is_same_tick and known.claimed_by != claim.owner
