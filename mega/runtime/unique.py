"""`unique=`: one job of a key at a time, held by a guard beside the queue.

The guard is taken before the job is stored, and confirmed after. So there are three cases
when somebody else has the key:

- It is confirmed: its job waits, runs or backs off, and is the answer. When its record says
  that it has ended, the worker could not free the key, and the guard is void.
- It is not confirmed and younger than the duplicate window: its producer is at it, or died
  between the two steps. The job is stored once more under the id in the guard, which the
  broker takes for a duplicate if it has it.
- It is not confirmed and older: storing under its id could double the job. Unless its record
  says that it ran, there is no job, and the guard is void.

A void guard is replaced by compare-and-set. What remains:

- A job without a record whose worker dies between the ack and the freeing keeps the key for
  the guard's time to live.
- A producer that dies between storing and confirming, and a job that then waits for longer
  than the window without being run: a later enqueue of its key is a second job.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from mega.context import NAMED
from mega.errors import BrokerError
from mega.ports import Broker, Guard
from mega.wire.message import Message

__all__ = ["free_key", "hold_key"]

logger = logging.getLogger("mega.job")

#: How long it may take to store a job again; by then its id must still be known.
MARGIN = 10.0


async def hold_key(broker: Broker, own: Guard, *, is_tracked: bool) -> Guard:
    """Return who has the key: `own`, or the guard of another job.

    Of that job, `is_stored` says whether it is there; else it is to be stored under its id.
    Raises: BrokerUnavailable.
    """
    holder = await broker.guards.take(own)
    while holder.job_id != own.job_id:
        known = await _verified(broker, holder, is_tracked=is_tracked)
        if known is not None:
            return known
        holder = await broker.guards.take(own, over=holder)
    return holder


async def free_key(broker: Broker, message: Message) -> None:
    """Give up the unique key of a job that has ended; what can't be given up runs out."""
    if message.unique is None:
        return
    try:
        await broker.guards.free(message.subject, message.unique, job_id=message.id)
    except BrokerError as error:
        logger.warning(
            "the unique key of %s %s stays: %s", message.subject, message.id, error, extra=NAMED
        )


async def _verified(broker: Broker, holder: Guard, *, is_tracked: bool) -> Guard | None:
    """Return the guard, set right by the record of its job, or None when it is void."""
    record = (await broker.state.look(holder.job_id)).record if is_tracked else None
    has_run = record is not None and record.state != "waiting"
    has_ended = record is not None and record.is_final
    if has_ended and not holder.is_timed:
        return None
    if holder.is_stored or has_run:
        return replace(holder, is_stored=True)
    return holder if holder.age < broker.duplicate_window - MARGIN else None
