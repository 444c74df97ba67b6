"""The dead letters of a subject: stored whatever their size, read, and deleted one by one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from mega.ports import Broker, Delivery, Queue
from tests.contract.bench import Bench, Worker, consuming, eventually, job, message_of, new_queue
from tests.waiting import until


@asynccontextmanager
async def buried(bench: Bench, queue: Queue, letters: Sequence[bytes]) -> AsyncIterator[Broker]:
    """Yield a broker on which these are the dead letters, stored in that order."""

    async def bury(delivery: Delivery) -> None:
        number = int(message_of(delivery).id)
        await delivery.dead_letter(letters[number], letter_id=str(number))

    async with bench.broker() as broker:
        await broker.provide(queue)
        for number in range(len(letters)):
            await broker.publish(job(queue, id=str(number)))
        async with consuming(broker, queue, Worker(bury)):
            await eventually(lambda: bench.kept(broker, queue.subject), 0)
        yield broker


async def bodies(broker: Broker, queue: Queue, *, newest_first: bool = False) -> list[bytes]:
    found = await broker.letters.read(queue.subject, limit=100, newest_first=newest_first)
    return [letter.body for letter in found]


async def test_a_subject_that_never_had_any_has_none(bench: Bench) -> None:
    queue = new_queue()
    async with bench.broker() as broker:
        await broker.provide(queue)
        assert [] == await bodies(broker, queue)
        assert 0 == await broker.letters.purge(queue.subject)


async def test_they_are_read_from_either_end(bench: Bench) -> None:
    queue = new_queue()
    letters = [b'{"number": %d}' % number for number in range(40)]
    async with buried(bench, queue, letters) as broker:
        assert letters == await bodies(broker, queue)
        assert letters[::-1] == await bodies(broker, queue, newest_first=True)
        first = await broker.letters.read(queue.subject, limit=3, newest_first=False)
        last = await broker.letters.read(queue.subject, limit=3, newest_first=True)
    assert letters[:3] == [letter.body for letter in first]
    assert letters[:-4:-1] == [letter.body for letter in last]
    assert first[0].sequence < first[1].sequence < last[0].sequence


@pytest.mark.parametrize("size", [1024 * 1024, 1024 * 1024 * 4 // 3, 3_000_000])
async def test_a_letter_of_any_size_is_one_letter(bench: Bench, size: int) -> None:
    queue = new_queue()
    letters = [b"before", os.urandom(size), b"behind"]
    async with buried(bench, queue, letters) as broker:
        found = await broker.letters.read(queue.subject, limit=100, newest_first=False)
        assert letters == [letter.body for letter in found]
        assert letters[::-1] == await bodies(broker, queue, newest_first=True)
        assert await broker.letters.delete(queue.subject, found[1])
        assert [b"before", b"behind"] == await bodies(broker, queue)
        assert 2 == await broker.letters.purge(queue.subject)


async def test_one_is_deleted_and_the_others_stay(bench: Bench) -> None:
    queue = new_queue()
    async with buried(bench, queue, [b"a", b"b", b"c"]) as broker:
        _, middle, _ = await broker.letters.read(queue.subject, limit=9, newest_first=False)
        assert await broker.letters.holds(queue.subject, middle)
        assert await broker.letters.delete(queue.subject, middle)
        assert not await broker.letters.delete(queue.subject, middle)
        assert not await broker.letters.holds(queue.subject, middle)
        assert [b"a", b"c"] == await bodies(broker, queue)


async def test_a_purge_leaves_none(bench: Bench) -> None:
    queue = new_queue()
    async with buried(bench, queue, [b"a", b"b"]) as broker:
        assert 2 == await broker.letters.purge(queue.subject)
        assert [] == await bodies(broker, queue)


async def test_a_letter_that_is_stored_twice_is_there_once(bench: Bench) -> None:
    queue = new_queue()

    async def bury_twice(delivery: Delivery) -> None:
        for _ in range(2):
            await delivery.dead_letter(b"letter" * 300_000, letter_id="report")

    worker = Worker(bury_twice)
    async with bench.broker() as broker:
        await broker.provide(queue)
        await broker.publish(job(queue, id="report"))
        async with consuming(broker, queue, worker):
            await until(lambda: worker.deliveries, what="the delivery")
            await eventually(lambda: bench.kept(broker, queue.subject), 0)
        assert 1 == len(await bodies(broker, queue))
