"""What a stack says of who holds the event loop."""

from __future__ import annotations

import traceback
from types import FrameType

from mega.context import JobContext, RunContext, ScheduleContext

__all__ = ["accuse"]

#: Inside of these frames begins what the loop was asked to do.
LOOPS = {"asyncio.runners", "asyncio.base_events", "asyncio.events", "trio._core._run"}
MACHINERY = {"asyncio", "trio", "anyio", "mega"}
MOST_FRAMES = 10
REMEDY = "Await in it, or write def instead of async def: then it runs in a thread."


def accuse(innermost: FrameType | None) -> str:
    """Return which run the stack belongs to, and its frames from the handler inwards."""
    frames = [frame for frame, _ in traceback.walk_stack(innermost)][::-1]
    run, begin = _find_run(frames)
    shown = [frame for frame in frames[begin:] if _root(frame) not in MACHINERY]
    shown = (shown or frames)[-MOST_FRAMES:]
    lines = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in shown).format()
    who = f"{run} holds it" if run else "what holds it is no job"
    return "".join([f"{who}, and all else waits\n", *lines, f"  {REMEDY}"])


def _find_run(frames: list[FrameType]) -> tuple[RunContext | None, int]:
    """Return the run, and where in the stack its handler begins.

    The context variable of another thread can't be read, but its frames hold the context too.
    """
    begin = 0
    for place, frame in enumerate(frames):
        if _module(frame) in LOOPS:
            begin = place + 1
        elif _root(frame) == "mega":
            for value in frame.f_locals.values():
                if type(value) is JobContext or type(value) is ScheduleContext:
                    return value, place + 1
    return None, begin


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _root(frame: FrameType) -> str:
    return _module(frame).partition(".")[0]
