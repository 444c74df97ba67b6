"""A job that can't be done is not dropped: it lies among the dead letters, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from mega import App, JobContext
from mega.events import JobDeadLettered, JobEvent


@dataclass
class Email:
    to: str


async def test_a_job_that_keeps_failing_ends_as_a_dead_letter() -> None:
    app = App("shop")

    @app.job("email.send", retries=1, backoff=5)
    async def send_email(email: Email) -> None:
        raise ConnectionError("the mail server is away")

    async with app.test() as t:
        await send_email.enqueue(Email("ada@example.org"))
        await t.drain()
        assert [] == t.dead_letters("email.send")
        await t.advance(5)
        assert 1 == len(t.dead_letters("email.send"))


async def test_the_dead_letter_tells_what_happened() -> None:
    app = App("shop")

    @app.job("email.send", retries=1, backoff=5)
    async def send_email(email: Email) -> None:
        raise ConnectionError("the mail server is away")

    async with app.test() as t:
        enqueued_at = t.clock.now()
        job = await send_email.enqueue(Email("ada@example.org"), headers={"Tenant": "acme"})
        await t.advance(5)
        (letter,) = t.dead_letters("email.send")

    assert job.id == letter["id"]
    assert "email.send" == letter["subject"]
    assert {"to": "ada@example.org"} == letter["payload"]
    assert {"Tenant": "acme"} == letter["headers"]
    assert "retries" == letter["reason"]
    assert 2 == letter["attempts"]
    assert "builtins.ConnectionError" == letter["error_type"]
    assert "the mail server is away" == letter["error"]
    assert "in send_email" in letter["traceback"]
    assert enqueued_at.isoformat().replace("+00:00", "Z") == letter["enqueued_at"]
    assert letter["enqueued_at"] < letter["failed_at"]


async def test_the_jobs_behind_a_dead_letter_run() -> None:
    app, sent = App("shop"), []

    @app.job("email.send", retries=0)
    async def send_email(to: str) -> None:
        if to == "broken":
            raise ValueError(to)
        sent.append(to)

    async with app.test() as t:
        for to in ("broken", "ada@example.org"):
            await send_email.enqueue(to)
        await t.drain()
        assert ["broken"] == [letter["payload"] for letter in t.dead_letters("email.send")]

    assert ["ada@example.org"] == sent


async def test_the_last_attempt_is_known_to_the_handler() -> None:
    app, notes = App("shop"), []

    @app.job("email.send", retries=1, backoff=1)
    async def send_email(ctx: JobContext) -> None:
        if ctx.is_last_attempt:
            notes.append("giving up")
        raise ConnectionError

    async with app.test() as t:
        await send_email.enqueue()
        await t.drain()
        assert [] == notes
        await t.advance(1)

    assert ["giving up"] == notes


async def test_the_events_of_a_job_that_is_given_up_come_in_order() -> None:
    app = App("shop")

    @app.job("email.send", retries=1, backoff=1)
    async def send_email() -> None:
        raise ConnectionError

    async with app.test() as t:
        await send_email.enqueue()
        await t.advance(1)
        kinds = [event.kind for event in t.events if isinstance(event, JobEvent)]
        (letter,) = [event for event in t.events if isinstance(event, JobDeadLettered)]

    assert [
        "job.dispatch",
        "job.start",
        "job.retry",
        "job.start",
        "job.fail",
        "job.dlq",
    ] == kinds
    assert (2, ConnectionError) == (letter.attempt, type(letter.error))


async def test_a_dead_letter_is_sent_back_to_its_queue() -> None:
    app, is_mended = App("shop"), False

    @app.job("email.send", retries=1, backoff=1)
    async def send_email(email: Email, ctx: JobContext) -> str:
        if not is_mended:
            raise ConnectionError("the mail server is away")
        return f"sent to {email.to} in attempt {ctx.attempt}"

    async with app.test() as t:
        job = await send_email.enqueue(Email("ada@example.org"))
        await t.advance(1)
        is_mended = True
        letters = app.dead_letters(send_email)
        (letter,) = await letters.list()
        assert await letters.requeue(letter)
        assert "waiting" == (await job.state()).state
        assert [] == await letters.list()
        await t.drain()
        assert "sent to ada@example.org in attempt 1" == await job.result()
        assert not await letters.requeue(letter)


async def test_each_death_of_a_job_is_remembered() -> None:
    app = App("shop")

    @app.job("email.send", retries=0)
    async def send_email(email: Email) -> None:
        raise ConnectionError("the mail server is away")

    async with app.test() as t:
        job = await send_email.enqueue(Email("ada@example.org"))
        await t.drain()
        letters = app.dead_letters("email.send")
        for deaths in (1, 2, 3):
            (letter,) = await letters.list()
            assert deaths == len(letter.envelope.deaths)
            assert b'{"to":"ada@example.org"}' == letter.envelope.body
            await letters.requeue(letter)
            await t.drain()
        assert 3 == len((await job.state()).earlier_deaths)


async def test_dead_letters_are_thrown_away() -> None:
    app = App("shop")

    @app.job("email.send", retries=0)
    async def send_email(number: int) -> None:
        raise ConnectionError

    async with app.test() as t:
        for number in range(5):
            await send_email.enqueue(number)
        await t.drain()
        letters = app.dead_letters(send_email)
        newest, *_ = await letters.list(limit=2)
        assert b"4" == newest.envelope.body
        assert await letters.delete(newest)
        assert [b"0", b"1"] == [
            letter.envelope.body for letter in await letters.list(limit=2, newest_first=False)
        ]
        assert 4 == await letters.purge()
        assert [] == await letters.list()
