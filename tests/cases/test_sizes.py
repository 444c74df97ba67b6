"""What is too large: a payload is refused before it is sent, an error's text is cut."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from mega import App
from mega.errors import JobFailedError, PayloadTooLarge
from mega.runtime.room import RESERVE
from tests.apps.program import Program, run_to_end, write_app
from tests.cases.onlooker import Onlooker, body_in
from tests.cases.served import serving

MAX_PAYLOAD = 1024 * 1024
ROOM = MAX_PAYLOAD - RESERVE
#: What one line of a log, and a letter without its payload, may have at most: 8 KiB of text and
#: of traceback, with four bytes for each character, and the rest.
LINE = 66 * 1024


def text_of_size(size: int) -> str:
    """Return a text that has that many bytes as JSON."""
    return "x" * (size - 2)


@pytest.mark.parametrize(
    ("size", "headers"),
    [
        pytest.param(ROOM + 1, None, id="one byte over"),
        pytest.param(ROOM, {"Tenant": "acme"}, id="over with its headers"),
        pytest.param(MAX_PAYLOAD - 100, None, id="the server's limit without headers"),
        pytest.param(MAX_PAYLOAD + 1, None, id="one byte over the server's limit"),
        pytest.param(20 * MAX_PAYLOAD, None, id="20 MB"),
    ],
)
async def test_a_payload_that_is_too_large(
    broker: str,
    subject: str,
    onlooker: Onlooker,
    caplog: pytest.LogCaptureFixture,
    size: int,
    headers: dict[str, str] | None,
) -> None:
    """size-01, size-02: it is refused with size, limit and job; the connection stays up.

    The limit is the server's max_payload less 40 KiB, which a dead letter adds at most. The
    refusal is an error of its own, PayloadTooLarge, and nothing was sent that could be retried.
    """
    app, seen = App("cases", broker=broker), []

    @app.job(subject)
    async def take(text: str) -> None:
        seen.append(text)

    async def enqueue_large() -> None:
        with pytest.raises(PayloadTooLarge) as caught:
            await take.enqueue(text_of_size(size), headers=headers)
        refused.append(str(caught.value))

    refused: list[str] = []
    with caplog.at_level(logging.INFO, "mega.broker"):
        async with serving(app) as served:
            async with anyio.create_task_group() as group:
                group.start_soon(enqueue_large)
                job = await take.enqueue("small")
            await job.wait(timeout=10)
            assert [] == await onlooker.jobs(subject)
            assert served.session.around.broker.max_size == MAX_PAYLOAD

    (error,) = refused
    total = size + sum(len(name) + len(value) for name, value in (headers or {}).items())
    assert f'"{subject}" has {total:,} bytes, the broker takes {ROOM:,}' in error
    assert ["small"] == seen
    assert [] == [line.getMessage() for line in caplog.records if "away" in line.getMessage()]


@pytest.mark.parametrize("letters", ["x", "\x00", '"', "\n", "é", "\ud800", "😀"])
async def test_the_largest_payload(
    broker: str, subject: str, onlooker: Onlooker, letters: str
) -> None:
    """size-01, tb-03: the largest payload is run, retried and buried with a very long error."""
    app, text = App("cases", broker=broker), text_of_size(ROOM)

    @app.job(subject, retries=1, backoff=0)
    async def fail(payload: str) -> None:
        raise ValueError(letters * 1_000_000)

    async with serving(app):
        await fail.enqueue(text)
        (letter,) = await onlooker.wait_for_dead_letters(subject)
        await onlooker.wait_until_empty(subject)

    assert ("retries", 2) == (letter["reason"], letter["attempts"])
    assert text == letter["payload"]


@pytest.mark.parametrize("size", [MAX_PAYLOAD - 200, MAX_PAYLOAD])
async def test_the_largest_payload_of_another_tool(
    broker: str, subject: str, onlooker: Onlooker, size: int
) -> None:
    """tb-03: a foreign job that fills the server's limit leaves the queue, whole, when it fails."""
    app = App("cases", broker=broker)

    @app.job(subject, retries=0)
    async def fail(payload: str) -> None:
        raise ValueError

    body = json.dumps(text_of_size(size)).encode()
    async with serving(app):
        await onlooker.publish(subject, body)
        await onlooker.wait_until_empty(subject)
        assert [body] == [body_in(letter) for letter in await onlooker.letters(subject)]


@pytest.mark.parametrize("retries", [1, 3])
async def test_a_job_of_another_tool_that_has_no_room_for_its_next_copy(
    broker: str, subject: str, onlooker: Onlooker, retries: int
) -> None:
    """tb-03: the headers of a retry are too much for it; it ends, and comes back no more."""
    app, runs = App("cases", broker=broker), []

    @app.job(subject, retries=retries)
    async def fail(payload: str) -> None:
        runs.append(len(payload))
        raise ValueError("no such customer")

    body = json.dumps(text_of_size(MAX_PAYLOAD)).encode()
    async with serving(app):
        await onlooker.publish(subject, body)
        await onlooker.wait_until_empty(subject)
        (letter,) = await onlooker.letters(subject)
    assert (body, 1) == (body_in(letter), len(runs))
    envelope = json.loads(letter)
    assert ("too_large", "no such customer") == (envelope["reason"], envelope["error"])


@pytest.mark.parametrize("size", [MAX_PAYLOAD - 100, MAX_PAYLOAD, 2 * MAX_PAYLOAD])
async def test_a_result_that_has_no_room(broker: str, subject: str, size: int) -> None:
    """size-01: a result over the limit leaves the job done, with the reason, and is run once."""
    app, runs = App("cases", broker=broker), []

    @app.job(subject)
    async def work() -> str:
        runs.append(size)
        return "x" * size

    async with serving(app):
        job = await work.enqueue()
        record = await job.wait(timeout=20)
        with pytest.raises(JobFailedError, match="its result has"):
            await job.result(timeout=20)
    assert ("done", 1) == (record.state, len(runs))
    assert 1 == len((record.error or "").splitlines())


LONG = ValueError("x" * 10_000)


class Silent(Exception):
    """An error that can't be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Endless(Exception):
    """An error whose text asks for itself."""

    def __str__(self) -> str:
        return str(self)


class Untraceable(Exception):
    """An error that `traceback` can't format."""

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise ValueError("no notes")


def broken_syntax() -> SyntaxError:
    error = SyntaxError("x")
    error.text = 3  # type: ignore[assignment]
    error.lineno = 1
    return error


def chain(length: int) -> Exception:
    error = ValueError("0")
    for number in range(length):
        above = ValueError(f"{number}")
        above.__cause__, error = error, above
    return error


def nested(depth: int) -> Exception:
    error: Exception = ValueError("inside")
    for _ in range(depth):
        error = ExceptionGroup("two", [error, ValueError("beside")])
    return error


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: ValueError("x" * 8_000_000), id="tb-01 8 MB"),
        pytest.param(lambda: ValueError("é\n" * 1_000_000), id="tb-01 lines that are no ASCII"),
        pytest.param(lambda: RuntimeError("\ud800" + "x" * 2_000_000), id="tb-03 surrogate"),
        pytest.param(lambda: RuntimeError("\x00" * 2_000_000), id="tb-03 escaped sixfold"),
        pytest.param(lambda: RuntimeError("😀" * 2_000_000), id="tb-03 four bytes each"),
        pytest.param(Silent, id="tb-03 __str__ raises"),
        pytest.param(Endless, id="tb-03 __str__ never ends"),
        pytest.param(Untraceable, id="tb-03 no traceback"),
        pytest.param(broken_syntax, id="tb-03 broken SyntaxError"),
        pytest.param(lambda: chain(2_000), id="tb-03 chain of 2,000 causes"),
        pytest.param(lambda: nested(2_000), id="tb-03 2,000 groups in each other"),
        pytest.param(
            lambda: ExceptionGroup("many", [ValueError("x" * 10_000)] * 2_000),
            id="tb-03 2,000 in one",
        ),
    ],
)
async def test_an_error_of_any_size(
    broker: str,
    subject: str,
    onlooker: Onlooker,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[], Exception],
) -> None:
    """tb-01, tb-03: an error of any size or kind is buried with a text that is cut, and logged."""
    app, payload = App("cases", broker=broker), "x" * 1_000

    @app.job(subject, retries=0)
    async def fail(text: str) -> None:
        raise make()

    with caplog.at_level(logging.DEBUG, "mega"):
        async with serving(app):
            job = await fail.enqueue(payload)
            (letter,) = await onlooker.wait_for_dead_letters(subject)
            record = await job.wait(timeout=10)

    (stored,) = await onlooker.letters(subject)
    assert LINE + len(payload) > len(stored)
    assert type(make()).__name__ == letter["error_type"].rpartition(".")[2]
    assert payload == letter["payload"]
    assert 600 > len(record.error or "")
    assert all(LINE > len(line.getMessage()) for line in caplog.records)


async def test_a_cut_is_marked(broker: str, subject: str, onlooker: Onlooker) -> None:
    """tb-01: whoever reads a text that was cut sees that, and how much is missing."""
    app = App("cases", broker=broker)

    @app.job(subject, retries=0)
    async def fail() -> None:
        raise ValueError("begin" + "x" * 8_000_000 + "end")

    async with serving(app):
        await fail.enqueue()
        (letter,) = await onlooker.wait_for_dead_letters(subject)

    assert letter["error"].startswith("begin")
    assert letter["error"].endswith("end")
    assert "\n[the middle of 8000008 characters left out]\n" in letter["error"]
    assert "characters left out]" in letter["traceback"]


HUNGRY = """
    from mega import App
    app = App("hungry")
    @app.job("fail", retries=0)
    async def fail(size: int) -> None:
        raise ValueError("x" * size)
    @app.job("measure")
    async def measure() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096 // 1_000_000
    if __name__ == "__main__":
        app.run()
"""

FEED = """
    import anyio
    from app import app, fail, measure
    async def main() -> None:
        async with app:
            for size in (1_000, 30_000_000):
                for _ in range(5):
                    await (await fail.enqueue(size)).wait(timeout=30)
                print(await (await measure.enqueue()).result(timeout=30))
    anyio.run(main)
"""


def test_large_errors_leave_no_memory_behind(tmp_path: Path, home: Path, broker: str) -> None:
    """tb-01: after errors of 150 MB together the worker is as small as it was before."""
    app, feed = write_app(tmp_path, HUNGRY), write_app(tmp_path, FEED, "feed.py")
    with Program(app, home=home, MEGA_BROKER=broker) as worker:
        worker.wait_for("ready in")
        fed = run_to_end(feed, home=home, MEGA_BROKER=broker)
    before, after = map(int, fed.output.split())

    assert 60 > after - before
