"""What the log shows of a handler's error: its own frames, and as few lines as will do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio
import pytest

from mega.control import Reject
from mega.errors import NotConnected
from mega.events import ScheduleFailed
from mega.group import Group
from mega.runtime.execution import Execution
from mega.runtime.hub import Hub
from mega.runtime.traces import from_handler, place_of_error
from tests.unit.runtime.stage import AWAY, Handed, Stage, declare

HERE = Path(__file__)


class Fault(Exception):
    """An error with a text of several lines."""


def fail(*args: Any) -> None:
    raise Fault("first line\nsecond line")  # where it is


async def fails_on_the_loop() -> None:
    fail()


def fails_in_a_thread() -> None:
    fail()


async def fails_in_a_call_of_ours() -> None:
    await OTHER.enqueue()  # where it is called


OTHER: Any = Group().job("other")(fails_on_the_loop)
HANDLERS = [fails_on_the_loop, fails_in_a_thread]


def line_of(remark: str) -> int:
    lines = HERE.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"  # {remark}"))


async def run(stage: Stage, handler: Callable[..., Any], **options: Any) -> None:
    await Execution(declare(handler, **options).spec, stage.around).run(Handed())


def the(kind: str, caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    (record,) = [each for each in caplog.records if vars(each).get("event") == kind]
    return record


def text_of(record: logging.LogRecord) -> str:
    return logging.Formatter().format(record)


@pytest.mark.parametrize("handler", HANDLERS)
async def test_a_job_that_fails_shows_the_frames_from_its_handler_on(
    stage: Stage, caplog: pytest.LogCaptureFixture, handler: Callable[..., Any]
) -> None:
    await run(stage, handler, retries=0)
    line, header, *frames = text_of(the("job.fail", caplog)).splitlines()
    assert "job.fail email.send 1 attempt=1 phase=retries: Fault: first line second line" == line
    assert "Traceback (most recent call last):" == header
    files = [frame for frame in frames if frame.startswith("  File ")]
    assert 2 == len(files)
    assert files[0].endswith(f"in {handler.__name__}")
    assert f'  File "{HERE}", line {line_of("where it is")}, in fail' == files[1]
    assert f"{Fault.__module__}.Fault: first line" == frames[-2]


async def test_middleware_belongs_to_the_user_and_what_is_between_does_not(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async def stand_around(ctx: Any, call_next: Any) -> Any:
        return await call_next()

    stage.around = replace(stage.around, middleware=(stand_around,))
    await run(stage, fails_on_the_loop, retries=0)
    files = [line for line in text_of(the("job.fail", caplog)).splitlines() if "  File" in line]
    names = [line.rpartition(" ")[2] for line in files]
    assert ["stand_around", "fails_on_the_loop", "fail"] == names


async def test_a_job_that_is_retried_names_the_line_and_shows_the_rest_when_asked(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    place = f"test_traces.py:{line_of('where it is')}"
    await run(stage, fails_on_the_loop)
    assert text_of(the("job.retry", caplog)).endswith(f"Fault: first line second line ({place})")

    caplog.clear()
    caplog.set_level(logging.DEBUG, "mega.events")
    await run(stage, fails_on_the_loop)
    shown = text_of(the("job.retry", caplog))
    assert f"second line ({place})\nTraceback (most recent call last):\n" in shown


@pytest.mark.parametrize("phase", ["run", "retry", "release"])
async def test_a_schedule_does_the_same(caplog: pytest.LogCaptureFixture, phase: str) -> None:
    try:
        fail()
    except Fault as error:
        Hub([]).emit(ScheduleFailed(name="nightly", due_at=None, error=error, phase=phase))
    first, *more = text_of(the("schedule.fail", caplog)).splitlines()
    has_place = first.endswith(f" (test_traces.py:{line_of('where it is')})")
    assert (phase == "retry", phase == "run") == (has_place, bool(more))


async def test_an_error_of_ours_is_told_by_the_line_that_called_us(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await run(stage, fails_in_a_call_of_ours, retries=0)
    _, *trace = text_of(the("job.fail", caplog)).splitlines()
    files = [line for line in trace if line.startswith("  File ")]
    line = line_of("where it is called")
    assert [f'  File "{HERE}", line {line}, in fails_in_a_call_of_ours'] == files
    assert trace[-2].startswith(f"{NotConnected.__module__}.NotConnected: ")


async def test_a_dead_letter_is_one_line(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    await run(stage, fails_on_the_loop, retries=0)
    expected = "job.dlq email.send 1 attempt=1: Fault: first line second line"
    assert expected == text_of(the("job.dlq", caplog))


async def test_what_the_handler_meant_needs_no_traceback(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async def reject() -> None:
        raise Reject("no such order")  # where it is rejected

    await run(stage, reject)
    place = f"test_traces.py:{line_of('where it is rejected')}"
    what, _, why = text_of(the("job.fail", caplog)).partition(": ")
    assert "job.fail email.send 1 attempt=1 phase=rejected" == what
    assert f"Reject: no such order ({place})" == why


async def test_what_no_handler_raised_has_none(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async def send(to: int) -> None: ...

    await Execution(declare(send).spec, stage.around).run(Handed(body=b'"ada"'))
    execution = Execution(declare(fails_on_the_loop, retries=0).spec, stage.around)
    draining = anyio.Event()
    draining.set()
    execution.heed(draining)
    await execution.run(Handed(refusal=AWAY))
    shown = [text_of(each) for each in caplog.records if vars(each).get("event") == "job.fail"]
    assert ["payload", "dead_letter"] == [line.split("phase=")[1].split(":")[0] for line in shown]
    assert not any("Traceback" in line for line in shown)


async def test_an_error_of_any_size_is_cut(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async def boast() -> None:
        raise ValueError("x" * 1_000_000)

    await run(stage, boast, retries=0)
    assert len(text_of(the("job.fail", caplog))) < 10_000


def raised_below(module: str) -> BaseException:
    """Return what a library raised that a module of that name had called."""
    names: dict[str, Any] = {"__name__": module, "call": fail}
    exec("def use(): call()", names)
    try:
        names["use"]()
    except Fault as error:
        return error.with_traceback(rest_of(error.__traceback__))
    raise AssertionError


def rest_of(trace: TracebackType | None) -> TracebackType | None:
    assert trace is not None
    return trace.tb_next  # without the frame of this file


@pytest.mark.parametrize(
    ("module", "is_shown"), [("mega.runtime.execution", True), ("mega.adapters.nats.client", False)]
)
def test_what_an_adapter_calls_is_no_handler(module: str, is_shown: bool) -> None:
    error = raised_below(module)
    assert is_shown == (from_handler(error) is not None)
    assert is_shown == bool(place_of_error(error))


def test_an_error_without_a_traceback_has_no_place() -> None:
    assert (None, "") == (from_handler(Fault()), place_of_error(Fault()))
