"""A large value is rebuilt while the event loop turns."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from mega.adapters.pool import loading
from mega.adapters.pool.frames import Frame, Kind, encode
from mega.adapters.pool.parent import WorkerPool
from mega.errors import CpuResultError
from tests.unit.adapters.pool.processes import call

NewPool = Callable[..., WorkerPool]

turns = 0
turns_at: list[int] = []


def note_turns() -> None:
    turns_at.append(turns)


class Marks:
    """Notes the turns of the loop when it is rebuilt."""

    def __reduce__(self) -> tuple[Any, ...]:
        return note_turns, ()


async def test_the_loop_turns_while_a_large_value_is_rebuilt() -> None:
    async def turn() -> None:
        global turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    turns_at.clear()
    frame = frame_of([Marks(), b"\x01" * 100_000_000, list(range(1_000_000)), Marks()])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(turn)
        await loading.aside_if_large(lambda task, frame: loading.load(frame), "task", frame)
        tasks.cancel_scope.cancel()
    begin, end = turns_at
    assert end - begin > 50


@pytest.mark.parametrize(
    "value",
    [
        b"\x01" * 3000,
        ["text" * 50] * 9,
        {"numbers": list(range(10**5)), "bytes": [bytearray(b"x" * 70_000), b"y" * 70_000]},
        bytes(5_000_000),
        os.urandom(2_000_000).hex(),
    ],
    ids=["bytes", "texts", "mixed", "two steps", "long text"],
)
def test_it_comes_out_as_it_went_in(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "LARGE", 0)
    assert loading.load(frame_of(value)) == value


def test_its_buffers_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "LARGE", 0)
    buffer = bytearray(b"content")
    frame = Frame(Kind.RESULT, encode(Kind.RESULT, pickle.PickleBuffer(buffer))[1], [buffer])
    assert loading.load(frame) is buffer


async def test_a_large_result_that_cannot_be_rebuilt(
    new_pool: NewPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "LARGE", 0)
    async with new_pool() as pool:
        with pytest.raises(CpuResultError, match=r"can't be rebuilt here: StopIteration\('no'\)"):
            await call(pool, "return_what_stops_the_parent")
        assert 3 == await call(pool, "add", 1, 2)


def frame_of(value: Any) -> Frame:
    return Frame(Kind.RESULT, encode(Kind.RESULT, value)[1], [])
