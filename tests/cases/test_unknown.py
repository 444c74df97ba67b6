"""Jobs that a worker, or nobody, knows: none is lost, and a typing error shows at once."""

from __future__ import annotations

import pytest

from mega import App
from mega.errors import BadHandler, BadSubject, DeclarationError, UnknownSubject
from tests.cases.onlooker import Onlooker
from tests.cases.served import serving
from tests.waiting import until


@pytest.mark.parametrize("suffix", [".more", "-2", "_b"])
async def test_a_job_that_running_workers_do_not_know(
    broker: str, subject: str, onlooker: Onlooker, suffix: str
) -> None:
    """unknown-01: a worker never takes a job that it doesn't know: it waits for one that does.

    mega keeps a stream for each subject, so no worker is ever handed another one's job.
    """
    old, new, new_subject = App("v1", broker=broker), App("v2", broker=broker), subject + suffix
    seen: list[str] = []

    @old.job(subject)
    async def known(number: int) -> None:
        seen.append(f"old {number}")

    @new.job(new_subject)
    async def unknown(number: int) -> None:
        seen.append(f"new {number}")

    async with serving(old):
        async with new:
            await unknown.enqueue(1)
        for number in range(3):  # the old worker is alive, and has had its chances
            await (await known.enqueue(number)).wait(timeout=10)
        assert [b"1"] == [job.data for job in await onlooker.jobs(new_subject)]
        async with serving(new):
            await until(lambda: "new 1" in seen, what="the new job")

    assert [] == await onlooker.dead_letters(new_subject)
    assert ["old 0", "old 1", "old 2", "new 1"] == seen


@pytest.mark.parametrize("delay", [None, 1])
async def test_a_handler_that_was_renamed(broker: str, subject: str, delay: float | None) -> None:
    """unknown-02: a job is known by its subject; what its function is called doesn't matter."""
    old, new, seen = App("v1", broker=broker), App("v2", broker=broker), []

    @old.job(subject)
    async def foo(number: int) -> None: ...

    @new.job(subject)
    async def bar(value: int) -> None:
        seen.append(value)

    async with old:
        await foo.enqueue(7, delay=delay)
    async with serving(new):
        await until(lambda: seen, what="the job of the old release")

    assert [7] == seen


async def test_a_subject_that_was_renamed(broker: str, subject: str) -> None:
    """unknown-02: one function under two subjects takes the jobs of both, as an alias does."""
    old, new, seen = App("v1", broker=broker), App("v2", broker=broker), []
    old_name, new_name = f"{subject}.old", f"{subject}.new"

    @old.job(old_name)
    async def send(number: int) -> None: ...

    async def send_it(number: int) -> None:
        seen.append(number)

    new.job(old_name)(send_it)
    sending = new.job(new_name)(send_it)

    async with old:
        await send.enqueue(1)
        await send.enqueue(2, delay=1)
    async with serving(new):
        await sending.enqueue(3)
        await until(lambda: len(seen) == 3, what=f"all three jobs, not only {seen}")

    assert [1, 2, 3] == sorted(seen)


async def test_a_function_that_is_no_job(broker: str, subject: str) -> None:
    """unknown-05: a function without a decorator is refused, and it is named."""
    app = App("cases", broker=broker)

    async def send_email(to: str) -> None: ...

    async with app:
        with pytest.raises(BadHandler, match="'send_email' is not a job"):
            await app.enqueue(send_email, "a@b.c")  # type: ignore[call-overload]


async def test_a_job_of_another_app(broker: str, subject: str) -> None:
    """unknown-05: a handle of an app that is not this one is refused."""
    app, other = App("cases", broker=broker), App("other", broker=broker)

    @other.job(subject)
    async def send_email(to: str) -> None: ...

    async with app:
        with pytest.raises(BadHandler, match="belongs to another app"):
            await app.enqueue(send_email, "a@b.c")


@pytest.mark.parametrize("delay", [None, 60])
async def test_a_subject_that_nobody_keeps(broker: str, subject: str, delay: float | None) -> None:
    """unknown-05: a subject that no app has declared is refused: nothing waits for ever."""
    app = App("cases", broker=broker)

    async with app:
        with pytest.raises(UnknownSubject, match=f'nothing keeps jobs on "{subject}"'):
            await app.enqueue(subject, "a@b.c", delay=delay)


async def test_a_refused_job_leaves_no_record(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """unknown-05: no record says that a job waits which was never stored."""
    app = App("cases", broker=broker)

    async with app:
        with pytest.raises(UnknownSubject):
            await app.enqueue(subject, "a@b.c", id="never-stored")

    assert await onlooker.record("never-stored") is None


@pytest.mark.parametrize("name", ["a..b", ".a", "a.*", "a b", "", "mega.x", "x.dlq"])
async def test_a_subject_that_cannot_be(broker: str, name: str) -> None:
    """unknown-05: a subject that no job can have is refused without asking the server."""
    app = App("cases", broker=broker)

    async with app:
        with pytest.raises(BadSubject):
            await app.enqueue(name, 1)


async def test_a_job_that_is_declared_too_late(broker: str, subject: str) -> None:
    """unknown-05: a job that is declared while the app runs would have no worker."""
    app = App("cases", broker=broker)

    async with app:
        with pytest.raises(DeclarationError, match="started already"):

            @app.job(subject)
            async def send_email(to: str) -> None: ...
