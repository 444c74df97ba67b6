"""Storing many messages: in atomic batches, of which only the last message is answered.

A batch is stored whole or not at all. Where the server takes none, each message is stored on
its own, many at once; so is a batch whose answer is lost, for the ids tell what is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from secrets import token_hex
from typing import TypeAlias

from mega.adapters.nats.client import Client
from mega.adapters.nats.publisher import STORED, WITHIN, Outgoing, PubAck, Publisher, decode_ack
from mega.adapters.nats.replies import Answer, Lost, is_no_responders
from mega.adapters.nats.transport import frame, header_block
from mega.errors import BrokerError, BrokerFull, BrokerUnavailable, PayloadTooLarge
from mega.ports import NotBegun, Outcome, Receipt

__all__ = ["Bulk"]

Batch: TypeAlias = Sequence[Outgoing]
Begin: TypeAlias = Callable[[slice], Awaitable[None]]

NOT_BEGUN = NotBegun()

BATCH_ID, BATCH_NUMBER = "Nats-Batch-Id", "Nats-Batch-Sequence"
BATCH_COMMIT = "Nats-Batch-Commit"

#: What the headers of a batch add to a message, in bytes, at most.
BATCH_HEADERS = 128
#: The server takes 1,000 at most; with 500 one batch is sent while another is stored.
MOST_MESSAGES = 500
MOST_BYTES = 1024 * 1024
IN_FLIGHT = 2
DISABLED = 10174


class Bulk:
    """The way into streams for many messages of one subject."""

    def __init__(self, client: Client, publisher: Publisher) -> None:
        self._client = client
        self._publisher = publisher
        self._takes_no_batch: set[str] = set()
        self._sending = asyncio.Lock()

    async def store(self, outgoings: Batch, begin: Begin) -> list[Outcome]:
        """Store all, in their order; see `ports.Broker.publish_many`.

        `begin` is awaited with the part of them that is about to be sent.
        """
        for subject, body, headers in outgoings:
            self._publisher.check_size(subject, body, headers, more=BATCH_HEADERS)
        parts = list(cut(outgoings))
        outcomes: list[Outcome] = [NOT_BEGUN] * len(outgoings)
        todo, has_failed = iter(parts), False

        async def work() -> None:
            nonlocal has_failed
            for part in todo:
                if has_failed:
                    return
                outcomes[part] = await self._store_part(outgoings[part], begin(part))
                has_failed = has_failed or not are_stored(outcomes[part])

        await asyncio.gather(*[work() for _ in parts[:IN_FLIGHT]])
        return outcomes

    async def _store_part(self, batch: Batch, beginning: Awaitable[None]) -> list[Outcome]:
        try:
            await beginning
        except BrokerError as error:
            return [error] * len(batch)
        return await self._store(batch)

    async def _store(self, batch: Batch) -> list[Outcome]:
        subject = batch[0].subject
        if len(batch) == 1 or subject in self._takes_no_batch:
            return await self._store_each(batch)
        ack = await self._commit(batch)
        if ack is None:
            return await self._store_each(batch)
        if ack.error is None:
            return [STORED] * len(batch)
        refusal = self._publisher.refused(subject, ack.error)
        if isinstance(refusal, BrokerFull):
            return [refusal] * len(batch)
        if ack.error.err_code == DISABLED:
            self._takes_no_batch.add(subject)
        return await self._store_each(batch)

    async def _store_each(self, batch: Batch) -> list[Outcome]:
        outcomes = await asyncio.gather(*[self._store_one(outgoing) for outgoing in batch])
        return list(outcomes)

    async def _store_one(self, outgoing: Outgoing) -> Outcome:
        try:
            ack = await self._publisher.store(*outgoing)
        except (BrokerError, PayloadTooLarge) as error:
            return error
        return Receipt(duplicate=ack.duplicate)

    async def _commit(self, batch: Batch) -> PubAck | None:
        """Send a batch and return the answer to it, or None when there is none to rely on."""
        try:
            async with self._sending:
                answer = await self._send(batch)
            reply = await answer
        except (Lost, BrokerUnavailable):
            return None
        return None if is_no_responders(reply) else decode_ack(reply.data)

    async def _send(self, batch: Batch) -> Answer:
        batch_id = token_hex(4)  # short: the headers stay with each message
        frames = [
            in_batch(outgoing, f"{BATCH_ID}: {batch_id}\r\n{BATCH_NUMBER}: {number}\r\n")
            for number, outgoing in enumerate(batch[:-1], 1)
        ]
        await self._client.send(b"".join(frames))
        subject, body, headers = batch[-1]
        headers = {**headers, BATCH_ID: batch_id, BATCH_NUMBER: str(len(batch)), BATCH_COMMIT: "1"}
        return await self._client.replies.post(subject, body, headers=headers, timeout=WITHIN)


def in_batch(outgoing: Outgoing, more: str) -> bytes:
    """Return a message of a batch, with `more` headers, as it goes over the wire."""
    head = header_block(outgoing.headers, more).encode()
    return frame(outgoing.subject, "", head, outgoing.body)


def cut(outgoings: Batch) -> Iterator[slice]:
    """Yield parts of a size that the server takes as one batch."""
    first = size = 0
    for number, outgoing in enumerate(outgoings):
        size += len(outgoing.body)
        if number - first == MOST_MESSAGES or (size > MOST_BYTES and number > first):
            yield slice(first, number)
            first, size = number, len(outgoing.body)
    if outgoings:
        yield slice(first, len(outgoings))


def are_stored(outcomes: list[Outcome]) -> bool:
    return all(isinstance(outcome, Receipt) for outcome in outcomes)
