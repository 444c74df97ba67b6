"""Enqueueing as an app offers it, on both event loops, beside what runs elsewhere."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest
from anyio import to_thread

from mega import App, Group
from mega.errors import BadHandler, BadOption, BlockingCall, NotConnected, PayloadInvalid


def declared(app: App) -> list[int]:
    """Declare a job on that app, and return the list of what it takes."""
    taken: list[int] = []

    @app.job("number.take", concurrency=20)
    def take(number: int) -> None:
        taken.append(number)

    @app.job("number.send")
    def send(number: int) -> None:
        take.enqueue_sync(number)
        app.enqueue_sync("number.take", number + 1)

    return taken


async def test_a_def_handler_enqueues_from_its_thread() -> None:
    app = App("shop")
    taken = declared(app)

    async with app.test() as t:
        await app.enqueue("number.send", 1)
        await t.drain()

    assert [1, 2] == sorted(taken)


async def test_twenty_threads_enqueue_at_once() -> None:
    app = App("shop")
    taken = declared(app)

    def send_all() -> None:
        threads = [
            threading.Thread(target=app.enqueue_sync, args=("number.take", n)) for n in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    async with app.test() as t:
        await to_thread.run_sync(send_all)
        await t.drain()

    assert list(range(20)) == sorted(taken)


async def test_errors_come_back_to_the_thread() -> None:
    app = App("shop")
    declared(app)

    async with app.test():
        with pytest.raises(PayloadInvalid):
            await to_thread.run_sync(app.enqueue_sync, "number.take", "one")
        with pytest.raises(BadHandler):
            await to_thread.run_sync(app.enqueue_sync, print, 1)


async def test_a_sync_call_in_an_event_loop_is_refused() -> None:
    app = App("shop")
    declared(app)

    async with app.test():
        with pytest.raises(BlockingCall, match=r"enqueue_sync would block .*") as caught:
            app.enqueue_sync("number.take", 1)
    assert "await app.enqueue" in caught.value.hint


async def test_a_call_from_the_loop_of_another_thread_is_refused(anyio_backend: str) -> None:
    app, errors = App("shop"), []
    declared(app)

    async def call() -> None:
        try:
            await app.enqueue("number.take", 1)
        except BlockingCall as error:
            errors.append(str(error))

    async with app.test():
        await to_thread.run_sync(lambda: anyio.run(call, backend=anyio_backend))

    (text,) = errors
    assert "enqueue was awaited in another event loop" in text
    assert "'shop'" in text


def test_memory_is_no_broker_to_connect_to_from_sync_code() -> None:
    app = App("shop", broker="memory:")
    declared(app)

    for _ in range(2):
        with pytest.raises(NotConnected, match="memory") as caught:
            app.enqueue_sync("number.take", 1)
        assert "async with app" in caught.value.hint


async def test_after_its_end_an_app_says_what_to_do() -> None:
    app = App("shop")
    declared(app)

    async with app.test():
        pass
    for call in (app.enqueue("number.take", 1), app.enqueue_many("number.take", [1])):
        with pytest.raises(NotConnected) as caught:
            await call
        assert "async with app" in caught.value.hint


async def test_an_enqueue_outside_names_what_code_without_a_loop_calls() -> None:
    app = App("shop")
    declared(app)
    with pytest.raises(NotConnected) as caught:
        await app.enqueue("number.take", 1)
    assert "enqueue_sync" in caught.value.hint


def double(number: int) -> int:
    return 2 * number


def others(app: App) -> list[tuple[Any, str]]:
    """Declare what is no job on that app; return each with the hint of its refusal."""

    @app.schedule(every=60)
    async def nightly() -> None: ...

    @app.schedule(every=60)
    @app.job("report.send")
    async def send_report() -> None: ...

    return [
        (nightly, "await nightly.run_now()"),
        (send_report, 'app.enqueue("report.send")'),
        (app.cpu_task()(double), "Await double.run(…)"),
    ]


async def test_what_is_no_job_is_refused_with_what_to_do_and_its_place() -> None:
    app = App("shop")
    refused = others(app)
    async with app.test():
        for handle, hint in refused:
            with pytest.raises(BadHandler, match="is not a job") as caught:
                await app.enqueue(handle)
            assert hint in caught.value.hint
            assert caught.value.where.startswith("test_enqueue.py:")


@pytest.mark.parametrize("payloads", ["abc", b"abc", bytearray(b"abc"), {"number": 1}])
async def test_one_payload_is_not_many(payloads: Any) -> None:
    app = App("shop")
    declared(app)
    async with app.test() as t:
        with pytest.raises(BadOption, match=f"{type(payloads).__name__}, which is one payload"):
            await app.enqueue_many("number.take", payloads)
        assert [] == t.jobs


async def test_a_handle_of_another_app_is_refused() -> None:
    app, group = App("shop"), Group()
    declared(app)

    @group.job("number.other")
    async def other(number: int) -> None: ...

    async with app.test():
        with pytest.raises(BadHandler, match="another app"):
            await app.enqueue(other, 1)
        with pytest.raises(BadHandler, match="another app"):
            await app.enqueue_many(other, [1])
        with pytest.raises(NotConnected, match="no app includes"):
            await other.enqueue_many([1])
