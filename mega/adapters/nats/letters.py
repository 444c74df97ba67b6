"""Dead letters on their streams: stored, read, deleted.

A letter that does not fit into one message lies in several. All parts but the last name the
letter that they belong to, and the last one names the sequences of the others: a letter is
there once its last part is.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mega.adapters.nats.client import ApiError, Client
from mega.adapters.nats.layout import dead_letter_stream_name, dead_letter_subject
from mega.adapters.nats.publisher import Publisher
from mega.adapters.nats.streams import Streams
from mega.errors import UnknownSubject
from mega.ports import Queue, StoredLetter
from mega.wire.message import SERVER_ID

__all__ = ["NatsLetters"]

PART_OF, PARTS = "Mega-Part-Of", "Mega-Parts"
#: What the headers of one part take at most.
HEADERS = 2048
READ_AT_ONCE = 32
# No stream, no message of that sequence, and the same as a deletion says it.
ABSENT = (10059, 10037, 10043)


@dataclass(frozen=True, slots=True)
class Part:
    """One message of a dead letter's stream."""

    sequence: int
    body: bytes
    headers: dict[str, str]

    @property
    def others(self) -> list[int]:
        """The sequences of the parts before this one, which is the last."""
        return [int(number) for number in self.headers.get(PARTS, "").split()]


class NatsLetters:
    """Implements `ports.LetterStore`."""

    def __init__(self, client: Client, publisher: Publisher, streams: Streams) -> None:
        self._client = client
        self._publisher = publisher
        self._streams = streams

    async def store(self, queue: Queue, letter: bytes, *, letter_id: str) -> None:
        """Store a letter of any size, once for each id. Raises: BrokerError, PayloadTooLarge."""
        await self._streams.provide_dead_letters(queue)
        try:
            await self._store(queue.subject, letter, letter_id)
        except UnknownSubject:  # someone deleted the stream since
            self._streams.forget_dead_letters(queue)
            await self._streams.provide_dead_letters(queue)
            await self._store(queue.subject, letter, letter_id)

    async def read(self, subject: str, *, limit: int, newest_first: bool) -> list[StoredLetter]:
        found: list[StoredLetter] = []
        sequences = await self._sequences(subject)
        for chunk in chunks(sequences[::-1] if newest_first else sequences):
            parts = await asyncio.gather(*(self._part(subject, each) for each in chunk))
            for part in parts:
                if part is not None and (letter := await self._whole(subject, part)):
                    found.append(letter)
            if len(found) >= limit:
                break
        return found[:limit]

    async def holds(self, subject: str, letter: StoredLetter) -> bool:
        # A stream that was deleted and made again counts from 1 again.
        last = await self._part(subject, letter.sequence)
        return last is not None and letter.body.endswith(last.body)

    async def delete(self, subject: str, letter: StoredLetter) -> bool:
        if not await self.holds(subject, letter):
            return False
        answers = [await self._delete(subject, sequence) for sequence in letter.sequences]
        return answers[-1]

    async def purge(self, subject: str) -> int:
        answer = await self._ask(f"STREAM.PURGE.{dead_letter_stream_name(subject)}", {})
        return int(answer["purged"]) if answer else 0

    async def _store(self, subject: str, letter: bytes, letter_id: str) -> None:
        subject, room = dead_letter_subject(subject), self._client.nc.max_payload - HEADERS
        sequences: list[int] = []
        while len(letter) > room:
            part, letter = letter[:room], letter[room:]
            headers = {SERVER_ID: f"{letter_id}.{len(sequences) + 1}", PART_OF: letter_id}
            sequences.append((await self._publisher.store(subject, part, headers)).seq)
        headers = {PARTS: " ".join(map(str, sequences))} if sequences else {}
        await self._publisher.store(subject, letter, {SERVER_ID: letter_id, **headers})

    async def _sequences(self, subject: str) -> list[int]:
        """Return the sequences of all parts, oldest first."""
        stream = dead_letter_stream_name(subject)
        answer = await self._ask(f"STREAM.INFO.{stream}", {"deleted_details": True})
        if answer is None:
            return []
        state = answer["state"]
        gone = set(state.get("deleted") or ())
        every = range(state["first_seq"], state["last_seq"] + 1)
        return [sequence for sequence in every if sequence not in gone]

    async def _whole(self, subject: str, last: Part) -> StoredLetter | None:
        """Return the letter that ends with that part, or None when it ends none."""
        if PART_OF in last.headers:
            return None
        others = [await self._part(subject, sequence) for sequence in last.others]
        parts = [part for part in (*others, last) if part is not None]
        return StoredLetter(
            sequences=tuple(part.sequence for part in parts),
            body=b"".join(part.body for part in parts),
        )

    async def _part(self, subject: str, sequence: int) -> Part | None:
        stream = dead_letter_stream_name(subject)
        answer = await self._ask(f"STREAM.MSG.GET.{stream}", {"seq": sequence})
        if answer is None:
            return None
        stored = answer["message"]
        headers = read_headers(b64decode(stored.get("hdrs", "")))
        return Part(sequence, b64decode(stored.get("data", "")), headers)

    async def _delete(self, subject: str, sequence: int) -> bool:
        stream = dead_letter_stream_name(subject)
        return await self._ask(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence}) is not None

    async def _ask(self, call: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer, or None when there is no such stream or message."""
        try:
            return await self._client.api(call, body)
        except ApiError as error:
            if error.code in ABSENT:
                return None
            raise self._client.unavailable(f"{call}: {error.description}") from None


def chunks(sequences: list[int]) -> Iterator[list[int]]:
    """Yield the sequences in lists that are short enough to be asked for at once."""
    for start in range(0, len(sequences), READ_AT_ONCE):
        yield sequences[start : start + READ_AT_ONCE]


def read_headers(block: bytes) -> dict[str, str]:
    """Return the headers of a stored message."""
    lines = block.decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}
