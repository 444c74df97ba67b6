"""Streams and consumers on the server: created if absent, compared, never altered.

One exception: the limits of a consumer that a new release declares otherwise are updated,
because the old ones would stay in force in silence (ragflow#18942).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from mega.adapters.nats import layout
from mega.adapters.nats.client import ApiError, Client
from mega.adapters.nats.layout import Config
from mega.errors import BrokerError, BrokerUnavailable, StreamMismatch
from mega.ports import Queue

__all__ = ["Streams"]

logger = logging.getLogger("mega.broker")

BAD_REQUEST = 400
CONSUMER_NOT_FOUND, STREAM_NOT_FOUND, NAME_IN_USE = 10014, 10059, 10058
ABSENT = (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND)
NANOSECONDS = 1_000_000_000
# With these otherwise, jobs or their delayed copies would be lost or run at once.
VITAL = ("subjects", "retention", "allow_msg_schedules", "ack_policy", "filter_subject")


@dataclass(frozen=True, slots=True)
class Limits:
    """How many messages the server lets be in hand, and the seconds of a lease."""

    in_hand: int
    ack_wait: float


class Streams:
    """What this process has made sure of."""

    def __init__(self, client: Client, *, is_provisioning: bool) -> None:
        self.is_provisioning = is_provisioning
        self._client = client
        self._url = client.url
        self._told: set[str] = set()
        self._letters: set[str] = set()

    async def provide_buckets(self) -> None:
        """Make sure of the buckets for state and claims."""
        await self._stream(layout.state_stream(self._url))
        await self._stream(layout.claims_stream(self._url))

    async def provide(self, queue: Queue, *, is_tuning: bool = False) -> Limits:
        """Make sure of the stream and the consumer; return the consumer's limits.

        Only a worker's start tunes them: while an old and a new release run side by side, the
        old one would set them back at its next reconnect. `ack_wait` is shortened by a worker
        that finds no other: those who renew their leases by the old one would lose them.
        Raises: BrokerUnavailable, StreamMismatch.
        """
        wanted = layout.job_stream(queue, self._url)
        await self._stream(wanted)
        consumer = layout.consumer(queue, self._url)
        return await self._consumer(wanted["name"], consumer, is_tuning=is_tuning)

    async def provide_dead_letters(self, queue: Queue) -> None:
        """Make sure of the stream of the subject's dead letters, once."""
        if queue.subject not in self._letters:
            await self._stream(layout.dead_letter_stream(queue, self._url))
            self._letters.add(queue.subject)

    def forget_dead_letters(self, queue: Queue) -> None:
        """Look again before the next dead letter."""
        self._letters.discard(queue.subject)

    async def _stream(self, wanted: Config) -> Config:
        name = wanted["name"]
        actual = await self._find(f"STREAM.INFO.{name}")
        if actual is None:
            self._require_provisioning(f"stream {name}")
            logger.info("creating stream %s", name)
            actual = await self._create_stream(name, wanted)
        self._compare("stream", wanted, actual)
        return actual

    async def _create_stream(self, name: str, wanted: Config) -> Config:
        try:
            return config_of(await self._client.api(f"STREAM.CREATE.{name}", wanted))
        except ApiError as error:
            # Another process was faster, with another config: its one holds.
            found = await self._find(f"STREAM.INFO.{name}") if error.code == NAME_IN_USE else None
            if found is None:
                raise self._refused(f"stream {name}", error) from None
            return found

    async def _consumer(self, stream: str, wanted: Config, *, is_tuning: bool) -> Limits:
        where = f"{stream}.{layout.CONSUMER}"
        found = await self._ask(f"CONSUMER.INFO.{where}")
        if found is None:
            self._require_provisioning(f"consumer {where}")
            actual = await self._put_consumer(where, wanted)
        elif self.is_provisioning and is_tuning:
            actual = await self._tune(where, wanted, found)
        else:
            actual = found["config"]
        self._compare(f"consumer of stream {stream}:", wanted, actual)
        in_hand, ack_wait = actual.get("max_ack_pending", -1), actual["ack_wait"]
        return Limits(int(in_hand), int(ack_wait) / NANOSECONDS)

    async def _tune(self, where: str, wanted: Config, found: dict[str, Any]) -> Config:
        actual: Config = found["config"]
        has_workers = found.get("num_waiting", 0) + found.get("num_ack_pending", 0) > 0
        tunable = {"max_ack_pending"}
        if wanted["ack_wait"] > actual["ack_wait"] or not has_workers:
            tunable.add("ack_wait")
        changed = [d for d in layout.drift(wanted, actual) if d[0] in tunable]
        if not changed:
            return actual
        for name, value, was in changed:
            now, before = layout.shown(name, value), layout.shown(name, was)
            logger.warning("consumer %s: %s is now %s, it was %s", where, name, now, before)
        tuned = actual | {name: value for name, value, _ in changed}
        await self._put_consumer(where, tuned)
        # After a restart of the server its answer shows the old values, which hold no more.
        return tuned

    async def _put_consumer(self, where: str, config: Config) -> Config:
        stream = where.partition(".")[0]
        body = {"stream_name": stream, "config": config}
        try:
            return config_of(await self._client.api(f"CONSUMER.CREATE.{where}", body))
        except ApiError as error:
            raise self._refused(f"consumer {where}", error) from None

    async def _find(self, subject: str) -> Config | None:
        answer = await self._ask(subject)
        return None if answer is None else config_of(answer)

    async def _ask(self, subject: str) -> dict[str, Any] | None:
        try:
            return await self._client.api(subject)
        except ApiError as error:
            if error.code in ABSENT:
                return None
            raise self._refused(subject, error) from None

    def _compare(self, kind: str, wanted: Config, actual: Config) -> None:
        for field, value, found in layout.drift(wanted, actual):
            is_, should_be = layout.shown(field, found), layout.shown(field, value)
            text = f"{kind} {wanted['name']}: {field} is {is_}, wanted {should_be}"
            if field in VITAL:
                raise StreamMismatch(
                    f"{text}.", hint="Jobs could be lost. Change it, or delete it when it is empty."
                )
            if text not in self._told:
                self._told.add(text)
                logger.warning("%s; left as it is", text)

    def _require_provisioning(self, what: str) -> None:
        if not self.is_provisioning:
            raise BrokerUnavailable(
                f"{what} doesn't exist, and provision=False creates nothing.",
                hint="Start once with provision=True, or create it by hand.",
            )

    def _refused(self, what: str, error: ApiError) -> BrokerError:
        if error.status == BAD_REQUEST:
            return StreamMismatch(f"{what} was refused: {error.description} ({error.code}).")
        return self._client.unavailable(f"{what}: {error.description} ({error.code})")


def config_of(answer: dict[str, Any]) -> Config:
    """Return the config in the answer of an API call."""
    config: Config = answer["config"]
    return config
