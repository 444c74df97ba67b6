"""Which run a line belongs to, how the console shows it, and what becomes of repeated lines."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mega.context import FIELDS, RunContext, RunFilter, ScheduleContext, current_run
from mega.ops.log import REPEAT_AFTER, Console, RepeatedLines, log_to_console
from mega.testing import job_context

JOB = job_context(subject="email.send", id="7", attempt=2)
NIGHTLY: ScheduleContext[Any] = ScheduleContext(
    name="nightly",
    due_at=None,
    lateness=0.0,
    fence=0,
    app=None,  # type: ignore[arg-type]
)


@pytest.fixture
def run() -> Iterator[Any]:
    """Put this code into a run."""
    tokens = []

    def enter(context: RunContext) -> None:
        tokens.append(current_run.set(context))

    yield enter
    for token in reversed(tokens):
        current_run.reset(token)


def record(text: str = "hello", name: str = "shop", **fields: Any) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": name, "msg": text, "levelno": logging.WARNING, "levelname": "WARNING", **fields}
    )


def seen(record: logging.LogRecord) -> dict[str, Any]:
    assert RunFilter().filter(record)
    return {name: value for name, value in vars(record).items() if name in (*FIELDS, "run")}


NOTHING: dict[str, Any] = dict.fromkeys(FIELDS)


def test_a_line_of_a_job_carries_its_id_subject_and_attempt(run: Any) -> None:
    run(JOB)
    facts = {"job_id": "7", "subject": "email.send", "attempt": 2}
    assert {**NOTHING, **facts, "run": "email.send 7 attempt 2"} == seen(record())


def test_a_line_of_a_schedule_carries_its_name(run: Any) -> None:
    run(NIGHTLY)
    assert {**NOTHING, "schedule": "nightly", "run": "schedule nightly"} == seen(record())


def test_a_line_outside_of_a_run_carries_nothing_and_can_be_formatted_all_the_same() -> None:
    line = record()
    assert {**NOTHING, "run": ""} == seen(line)
    assert "None  hello" == logging.Formatter("%(job_id)s %(run)s %(message)s").format(line)


def test_a_line_that_names_its_own_run_keeps_it(run: Any) -> None:
    run(NIGHTLY)
    own = {"job_id": "8", "subject": "email.read", "attempt": 1}
    assert {**NOTHING, **own, "run": "email.read 8 attempt 1"} == seen(record(**own))


def test_a_field_of_the_users_own_stays(run: Any) -> None:
    run(JOB)
    assert "Your order" == seen(record(subject="Your order"))["subject"]


@pytest.fixture
def console() -> Iterator[tuple[Console, io.StringIO]]:
    console, stream = Console(), io.StringIO()
    console.setStream(stream)
    yield console, stream
    console.close()


def shown(stream: io.StringIO) -> list[str]:
    """Return the lines without their times."""
    return [line.partition(" ")[2] for line in stream.getvalue().splitlines()]


def test_the_console_shows_the_run_before_the_text(
    console: tuple[Console, io.StringIO], run: Any
) -> None:
    handler, stream = console
    handler.handle(record())
    run(JOB)
    handler.handle(record("100 % done"))
    assert [
        "WARNING shop  hello",
        "WARNING shop  [email.send 7 attempt 2] 100 % done",
    ] == shown(stream)


def test_the_console_does_not_name_the_run_twice(
    console: tuple[Console, io.StringIO], run: Any
) -> None:
    handler, stream = console
    run(JOB)
    handler.handle(record("job.retry email.send 7", name="mega.events", run="", job_id="7"))
    assert ["WARNING mega.events  job.retry email.send 7"] == shown(stream)


def test_an_error_keeps_its_traceback(console: tuple[Console, io.StringIO], run: Any) -> None:
    handler, stream = console
    run(JOB)
    try:
        raise ValueError("no")
    except ValueError as error:
        handler.handle(record(exc_info=(type(error), error, error.__traceback__)))
    assert "[email.send 7 attempt 2] hello" in stream.getvalue()
    assert stream.getvalue().endswith("ValueError: no\n")


def test_a_complaint_that_comes_again_is_counted() -> None:
    repeats, complaint = RepeatedLines(), record("the server is away", name="mega.broker")
    news = [repeats.is_news(complaint, 100.0 + second) for second in range(25)]
    assert [True, *[False] * 24] == news
    assert [] == list(repeats.overdue(100.0 + REPEAT_AFTER - 1))
    (summary,) = repeats.overdue(100.0 + REPEAT_AFTER)
    assert "the server is away (24 more times since it was said)" == summary.getMessage()
    assert ("mega.broker", "WARNING") == (summary.name, summary.levelname)
    assert repeats.is_news(complaint, 100.0 + REPEAT_AFTER)


def test_a_complaint_that_came_once_is_forgotten() -> None:
    repeats = RepeatedLines()
    for second in range(1000):
        assert [] == list(repeats.overdue(float(second)))
        assert repeats.is_news(record(f"line {second}", name="mega.broker"), float(second))
    assert REPEAT_AFTER >= len(repeats._first)


@pytest.mark.parametrize(
    "line",
    [
        record(name="shop"),
        record(name="megaphone"),
        record(name="mega.broker", levelno=logging.INFO),
        record(name="mega.job", job_id="7"),
        record(name="mega.schedule", schedule="nightly"),
    ],
    ids=["not mega's", "nearly mega's", "no complaint", "a handler's", "a schedule's"],
)
def test_what_is_never_held_back(line: logging.LogRecord) -> None:
    repeats = RepeatedLines()
    assert [True, True] == [repeats.is_news(line, 1.0) for _ in range(2)]


def test_what_was_counted_is_told_at_the_end(console: tuple[Console, io.StringIO]) -> None:
    handler, stream = console
    for _ in range(3):
        handler.handle(record("the server is away", name="mega.broker"))
    handler.close()
    assert [
        "WARNING mega.broker  the server is away",
        "WARNING mega.broker  the server is away (2 more times since it was said)",
    ] == shown(stream)


@contextmanager
def bare_root() -> Iterator[logging.Logger]:
    """Give the root logger without pytest's handlers, and leave it as it was."""
    root, mega = logging.getLogger(), logging.getLogger("mega")
    before = root.handlers[:], root.level, mega.level
    root.handlers.clear()
    try:
        yield root
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        mega.setLevel(before[2])


def test_logging_that_is_set_up_already_is_left_alone() -> None:
    own = logging.NullHandler()
    with bare_root() as root:
        root.addHandler(own)
        log_to_console(logging.INFO)
        assert [own] == root.handlers


def test_mega_is_shown_from_its_level_up_and_others_from_warning() -> None:
    with bare_root() as root:
        log_to_console(logging.INFO)
        assert [Console] == [type(handler) for handler in root.handlers]
        assert logging.getLogger("mega.job").isEnabledFor(logging.INFO)
        assert not logging.getLogger("shop").isEnabledFor(logging.INFO)
