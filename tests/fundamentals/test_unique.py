"""`unique=` keeps a key to one job at a time; `id=` makes an enqueue safe to repeat."""

from __future__ import annotations

import pytest

from mega import App, JobContext
from mega.errors import BadOption, UnknownSubject
from mega.events import JobEnqueued


async def test_a_second_enqueue_of_a_key_gets_the_first_job() -> None:
    app, seen = App("shop"), []

    @app.job("report.build")
    async def build(customer: str) -> str:
        seen.append(customer)
        return f"report for {customer}"

    async with app.test() as t:
        first = await build.enqueue("ada", unique="ada")
        second = await build.enqueue("ada", unique="ada")
        await t.drain()
        assert "report for ada" == await second.result()

    assert (first.id, False, True) == (second.id, first.duplicate, second.duplicate)
    assert ["ada"] == seen


async def test_other_keys_and_other_jobs_are_free() -> None:
    app = App("shop")

    @app.job("report.build")
    async def build() -> None: ...

    @app.job("report.send")
    async def send() -> None: ...

    async with app.test():
        jobs = [
            await build.enqueue(unique="ada"),
            await build.enqueue(unique="bob"),
            await send.enqueue(unique="ada"),
            await build.enqueue(),
        ]

    assert [False] * 4 == [job.duplicate for job in jobs]


async def test_the_key_is_free_again_when_the_job_is_done() -> None:
    app = App("shop")

    @app.job("report.build")
    async def build() -> None: ...

    async with app.test() as t:
        first = await build.enqueue(unique="ada")
        await t.drain()
        second = await build.enqueue(unique="ada")

    assert not second.duplicate
    assert first.id != second.id


async def test_the_key_is_held_while_the_job_runs_and_backs_off() -> None:
    app, told = App("shop"), []

    @app.job("report.build", retries=1, backoff=60)
    async def build(ctx: JobContext) -> None:
        told.append((await build.enqueue(unique="ada")).duplicate)
        if ctx.attempt == 1:
            raise ConnectionError("the printer is away")

    async with app.test() as t:
        await build.enqueue(unique="ada")
        await t.drain()
        told.append((await build.enqueue(unique="ada")).duplicate)
        await t.advance(60)
        assert [True, True, True] == told
        assert not (await build.enqueue(unique="ada")).duplicate


async def test_a_job_that_ends_in_a_dead_letter_frees_its_key() -> None:
    app = App("shop")

    @app.job("report.build", retries=0)
    async def build() -> None:
        raise ValueError("no such customer")

    async with app.test() as t:
        await build.enqueue(unique="ada")
        await t.drain()
        assert 1 == len(t.dead_letters("report.build"))
        assert not (await build.enqueue(unique="ada")).duplicate


async def test_a_delayed_job_holds_its_key_until_it_has_run() -> None:
    app = App("shop")

    @app.job("report.build")
    async def build() -> None: ...

    async with app.test() as t:
        await build.enqueue(unique="ada", delay=600)
        await t.advance(599)
        assert (await build.enqueue(unique="ada")).duplicate
        await t.advance(1)
        assert not (await build.enqueue(unique="ada")).duplicate


async def test_unique_for_holds_the_key_for_a_time() -> None:
    app, seen = App("shop"), []

    @app.job("report.build")
    async def build(number: int) -> None:
        seen.append(number)

    async with app.test() as t:
        await build.enqueue(1, unique="ada", unique_for=60)
        await t.advance(59)  # it is done long since
        assert (await build.enqueue(2, unique="ada", unique_for=60)).duplicate
        await t.advance(1)
        assert not (await build.enqueue(3, unique="ada", unique_for=60)).duplicate
        await t.drain()

    assert [1, 3] == seen


async def test_untracked_jobs_can_be_unique_too() -> None:
    app, seen = App("shop"), []

    @app.job("report.build", track=False)
    async def build(number: int) -> None:
        seen.append(number)

    async with app.test() as t:
        for number in (1, 2):
            await build.enqueue(number, unique="ada")
        await t.drain()
        await build.enqueue(3, unique="ada")
        await t.drain()

    assert [1, 3] == seen


async def test_a_refused_enqueue_leaves_no_key_behind() -> None:
    app = App("shop")

    @app.job("report.build")
    async def build() -> None: ...

    async with app.test() as t:
        for _ in range(2):
            with pytest.raises(UnknownSubject):
                await app.enqueue("report.send", unique="ada")
        assert [] == t.jobs


async def test_each_enqueue_is_an_event_also_one_of_a_duplicate() -> None:
    app = App("shop")

    @app.job("report.build")
    async def build() -> None: ...

    async with app.test() as t:
        for _ in range(2):
            await build.enqueue(unique="ada")
        await t.drain()
        enqueued = [event for event in t.events if isinstance(event, JobEnqueued)]

    assert [False, True] == [event.duplicate for event in enqueued]
    assert 1 == len({event.job_id for event in enqueued})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"unique": ""}, "unique='' can't be a key"),
        ({"unique": "x" * 257}, "can't be a key"),
        ({"unique": 7}, "unique=7 can't be a key"),
        ({"unique": "\ud800"}, "can't be a key"),
        ({"unique_for": 60}, "unique_for= without unique="),
        ({"unique": "a", "unique_for": 0.5}, r"unique_for=0.5 is not a duration of at least 1 s"),
        ({"unique": "a", "id": "b"}, "both id= and unique="),
        ({"unqiue": "a"}, "no option 'unqiue'"),
    ],
)
async def test_a_wrong_option_is_refused(options: dict[str, object], text: str) -> None:
    app = App("shop")

    @app.job("report.build")
    async def build() -> None: ...

    async with app.test() as t:
        with pytest.raises(BadOption, match=text):
            await build.enqueue(**options)  # type: ignore[call-overload]
        assert [] == t.jobs


async def test_an_id_makes_an_enqueue_safe_to_repeat() -> None:
    app, seen = App("shop"), []

    @app.job("invoice.send")
    async def send(number: int) -> int:
        seen.append(number)
        return number

    async with app.test() as t:
        for number in (1, 2):
            job = await send.enqueue(number, id="invoice-7")
            await t.drain()
            assert 1 == await job.result()

    assert [1] == seen


async def test_a_delayed_id_is_one_job_too() -> None:
    app, seen = App("shop"), []

    @app.job("invoice.send")
    async def send(number: int) -> None:
        seen.append(number)

    async with app.test() as t:
        jobs = [await send.enqueue(number, id="invoice-7", delay=3) for number in (1, 2, 3)]
        await t.advance(3)

    assert [False, True, True] == [job.duplicate for job in jobs]
    assert [1] == seen


async def test_an_id_that_is_used_again_has_no_old_result() -> None:
    app = App("shop")

    @app.job("invoice.send")
    async def send(number: int) -> int:
        return number

    async with app.test() as t:
        await send.enqueue(1, id="invoice-7")
        await t.advance(120)  # the broker forgets the id
        again = await send.enqueue(2, id="invoice-7", delay=60)
        assert not again.duplicate
        assert "waiting" == (await again.state()).state
        await t.advance(60)
        assert 2 == await again.result()
