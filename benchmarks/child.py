"""One process of a trial: `python -m benchmarks.child ORDER` is a worker or a producer."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from benchmarks.contenders import Contender, at_once, load
from benchmarks.order import BATCH, Order, make_body, payload
from benchmarks.processes import own_memory
from tests.waiting import until

__all__ = ["main"]

PER_SECOND = 50.0
WORKER_WITHIN = 60.0


def main() -> None:
    """Do what the order says; a producer prints what it measured as the last line."""
    order = Order.from_text(sys.argv[1])
    body = make_body(order.open_record())
    contender = load(order.contender)(order.server, body, ack_wait=order.ack_wait)
    with asyncio.Runner(loop_factory=loop_factory(order.loop)) as runner:
        if order.how is None:
            runner.run(contender.work())
        else:
            print(json.dumps(runner.run(produce(contender, order))))


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes an event loop of that kind."""
    if name == "uvloop":
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
        return factory
    return asyncio.new_event_loop


async def produce(contender: Contender, order: Order) -> dict[str, Any]:
    """Enqueue all jobs. The first one, which makes streams too, goes before the clock starts."""
    payloads = (payload(number, pause=order.pause) for number in range(order.jobs))
    answer: dict[str, Any] = {"has_bulk": contender.has_bulk}
    async with contender:
        await contender.enqueue(next(payloads))
        if order.how == "paced":
            record = order.open_record()
            await until(record.done, within=WORKER_WITHIN, what="a worker that runs the first job")
        begun, cpu = time.monotonic(), time.process_time()
        notes = [note async for note in enqueue_all(contender, order, payloads)]
        answer |= {
            "seconds": time.monotonic() - begun,
            "cpu": time.process_time() - cpu,
            "notes": notes,
        }
    return answer


async def enqueue_all(
    contender: Contender, order: Order, payloads: Iterator[dict[str, Any]]
) -> AsyncIterator[float]:
    """Enqueue in the ordered way; yield when each job was sent, or the MB held after a batch."""
    match order.how:
        case "paced":
            async for sent in paced(contender, payloads):
                yield sent
        case "in bulk":
            while batch := list(islice(payloads, BATCH)):
                await contender.enqueue_many(batch)
                yield own_memory()
        case "64 at once":
            await at_once(contender, payloads)
        case _:
            for one in payloads:
                await contender.enqueue(one)


async def paced(contender: Contender, payloads: Iterable[dict[str, Any]]) -> AsyncIterator[float]:
    """Enqueue at a steady rate, whatever the system takes for each."""
    begun = time.monotonic()
    for number, one in enumerate(payloads):
        await asyncio.sleep(max(0.0, begun + number / PER_SECOND - time.monotonic()))
        yield time.monotonic()
        await contender.enqueue(one)


if __name__ == "__main__":
    main()
