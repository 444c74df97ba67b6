"""A call whose progress somebody hears: what it ends with, and when."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import anyio
import pytest

from mega.cpu import Report
from mega.runtime.cpu_calls import Outcome, listened

WITHIN = 10.0


async def test_an_error_does_not_wait_for_a_listener_that_hangs() -> None:
    is_heard = anyio.Event()

    async def hang(fraction: float, note: str) -> None:
        is_heard.set()
        await anyio.sleep_forever()

    async def fail(report: Report) -> None:
        report(0.5, "half")
        await is_heard.wait()
        raise ValueError("no")

    with anyio.fail_after(WITHIN), pytest.raises(ValueError, match="no"):
        await listened(fail, hang)


async def test_a_result_waits_for_the_last_report() -> None:
    heard: list[float] = []

    async def hear(fraction: float, note: str) -> None:
        await anyio.lowlevel.checkpoint()
        heard.append(fraction)

    async def work(report: Report) -> str:
        report(1.0, "done")
        return "result"

    assert "result" == await listened(work, hear)
    assert [1.0] == heard


class Interrupt(BaseException):
    """As KeyboardInterrupt, which would end the tests."""


async def test_what_ends_the_program_comes_out_as_itself() -> None:
    async def interrupt(report: Report) -> None:
        raise Interrupt

    with pytest.raises(Interrupt):
        await listened(interrupt, print)


async def test_an_error_that_was_raised_is_not_held() -> None:
    class Argument: ...

    async def fail(argument: Any) -> None:
        raise ValueError

    async def call() -> weakref.ref[Argument]:
        argument, outcome = Argument(), Outcome()
        await outcome.keep(lambda: fail(argument))
        with pytest.raises(ValueError):  # noqa: PT011 - it is raised above
            outcome.get()
        return weakref.ref(argument)

    gc.collect()
    gc.disable()
    try:
        argument = await call()
        assert argument() is None
    finally:
        gc.enable()
