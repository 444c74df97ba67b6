"""Messages that other tools put into the queue: buried at once, to the byte, and in nobody's way.

mega calls a body that can't be decoded, or does not fit, `payload`, and headers `malformed`.
"""

from __future__ import annotations

import gzip
import os
import uuid
from typing import Any

import pytest

from mega import App, JobContext
from tests.cases.onlooker import Onlooker, body_in
from tests.cases.served import serving
from tests.waiting import until

GOOD = 10
Headers = dict[str, str] | None

NO_OBJECTS = [
    pytest.param(b"", id="empty"),
    pytest.param(b"\xff\xfe", id="no UTF-8"),
    pytest.param(b"{", id="open brace"),
    pytest.param(b"null", id="null"),
    pytest.param(b"[1,2]", id="array"),
    pytest.param(b'"x"', id="text"),
    pytest.param(b"[" * 900_000, id="900 kB of ["),
    pytest.param(os.urandom(900_000), id="900 kB of noise"),
    pytest.param(gzip.compress(b'{"number": 1}')[:20], id="truncated gzip"),
]

BAD_HEADERS = [
    pytest.param({"Mega-Attempt": "two"}, id="attempt is a word"),
    pytest.param({"Mega-Attempt": "-1"}, id="attempt is negative"),
    pytest.param({"Mega-Attempt": "9" * 400}, id="attempt is huge"),
    pytest.param({"Mega-Retries": "1e3"}, id="retries is no whole number"),
    pytest.param({"Mega-Backoff": '{"wait": 1}'}, id="backoff has an unknown field"),
    pytest.param({"Mega-Backoff": "["}, id="backoff is no JSON"),
    pytest.param({"Mega-Enqueued-At": "yesterday"}, id="time is a word"),
    pytest.param({"Mega-Enqueued-At": "2026-01-01T00:00:00"}, id="time has no zone"),
    pytest.param({"Mega-Format": "2"}, id="format is newer"),
]


async def bury_between_good_jobs(
    onlooker: Onlooker, broker: str, subject: str, body: bytes, headers: Headers
) -> dict[str, Any]:
    """Run a bad message and ten good ones behind it; return the dead letter of the bad one."""
    app, seen = App("cases", broker=broker), []

    @app.job(subject, retries=3, concurrency=1)
    async def take(payload: dict[str, int]) -> None:
        seen.append(payload["number"])

    async with app:  # which creates the stream
        await take.enqueue({"number": -1})
    await onlooker.publish(subject, body, headers)
    for number in range(GOOD):
        await onlooker.publish(subject, b'{"number":%d}' % number)
    async with serving(app):
        (letter,) = await onlooker.wait_for_dead_letters(subject)
        await until(lambda: len(seen) > GOOD, what=f"the good jobs, seen {seen}")
        await onlooker.wait_until_empty(subject)

    assert [-1, *range(GOOD)] == seen
    assert [body] == [body_in(stored) for stored in await onlooker.letters(subject)]
    return letter


@pytest.mark.parametrize("body", NO_OBJECTS)
async def test_a_body_that_is_no_payload(
    broker: str, subject: str, onlooker: Onlooker, body: bytes
) -> None:
    """malformed-01: what is no payload is buried at once, and the jobs behind it run."""
    letter = await bury_between_good_jobs(onlooker, broker, subject, body, None)

    assert ("payload", 1) == (letter["reason"], letter["attempts"])
    assert letter["error"].startswith(f'"{subject}" takes dict[str, int]: payload')


@pytest.mark.parametrize("headers", BAD_HEADERS)
async def test_headers_that_cannot_be_read(
    broker: str, subject: str, onlooker: Onlooker, headers: dict[str, str]
) -> None:
    """malformed-01: headers of ours that can't be read bury the job, with the header's name."""
    body = b'{"number":0}'
    letter = await bury_between_good_jobs(onlooker, broker, subject, body, headers)

    assert ("malformed", 1) == (letter["reason"], letter["attempts"])
    (name,) = headers
    assert name in letter["error"]


async def test_a_message_without_an_id(broker: str, subject: str, onlooker: Onlooker) -> None:
    """malformed-01: a missing id is no fault; the job gets one that holds for all its runs."""
    app, ids = App("cases", broker=broker), []

    @app.job(subject, retries=1, backoff=0)
    async def take(payload: int, ctx: JobContext) -> None:
        ids.append(ctx.id)
        raise ConnectionError

    async with serving(app):
        await onlooker.publish(subject, b"1")
        (letter,) = await onlooker.wait_for_dead_letters(subject)

    assert [letter["id"], letter["id"]] == ids
    assert letter["id"].startswith(f"{subject}-")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'\xef\xbb\xbf{"a":1}', id="byte order mark"),
        pytest.param(b'{"a":"\\ud800"}', id="escaped lone surrogate"),
        pytest.param(b'{"a":NaN}', id="NaN"),
        pytest.param(b'{"a":[1,]}', id="trailing comma"),
        pytest.param(b'{"a":1e400}', id="1e400"),
        # From Python 3.12 on the decoder takes some thousands of levels.
        pytest.param(b"[" * 100_000 + b"]" * 100_000, id="nesting"),
        pytest.param(b'{"a":18446744073709551616}', id="integer of 65 bits"),
    ],
)
async def test_json_of_another_language(
    broker: str, subject: str, onlooker: Onlooker, body: bytes
) -> None:
    """malformed-04: JSON that would be altered is buried as it came; no job sees it altered.

    mega refuses an integer of over 64 bits too, at both ends.
    """
    app, seen = App("cases", broker=broker), []

    @app.job(subject)
    async def take(payload: Any) -> None:
        seen.append(payload)

    async with serving(app):
        await onlooker.publish(subject, body)
        (letter,) = await onlooker.wait_for_dead_letters(subject)
        await onlooker.wait_until_empty(subject)

    assert [] == seen
    assert ("payload", 1) == (letter["reason"], letter["attempts"])
    assert [body] == [body_in(stored) for stored in await onlooker.letters(subject)]


async def test_the_largest_integer_is_exact(broker: str, subject: str, onlooker: Onlooker) -> None:
    """malformed-04: an integer that JSON parsers like to turn into a float comes out exact."""
    app, seen = App("cases", broker=broker), []

    @app.job(subject)
    async def take(payload: Any) -> None:
        seen.append(payload)

    async with serving(app):
        await onlooker.publish(subject, b"18446744073709551615")
        await until(lambda: seen, what="the job")

    assert [18446744073709551615] == seen


async def test_a_payload_that_its_handler_changes(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """malformed-03: a handler's changes reach neither its retry, its record nor its letter."""
    app, seen = App("cases", broker=broker), []

    @app.job(subject, retries=1, backoff=0)
    async def take(payload: dict[str, Any], ctx: JobContext) -> None:
        seen.append(dict(payload))
        payload["id"], payload["set"] = uuid.uuid4(), {1}
        if ctx.attempt == 1 or payload["fails"]:
            raise ConnectionError

    async with serving(app):
        done, failed = [await take.enqueue({"fails": fails}) for fails in (False, True)]
        assert "done" == (await done.wait(timeout=10)).state
        assert "failed" == (await failed.wait(timeout=10)).state
        (letter,) = await onlooker.wait_for_dead_letters(subject)

    assert {"fails": True} == letter["payload"]
    assert [{"fails": False}] * 2 == [payload for payload in seen if not payload["fails"]]
    assert [{"fails": True}] * 2 == [payload for payload in seen if payload["fails"]]
