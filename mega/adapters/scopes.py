"""Cancel scopes that a handler entered and never left, in the task of its slot.

An async generator does that which holds a task group and is left by an error: anyio then takes
the slot's task for one inside that group, cancels it for ever, and with it every later job.
"""

from __future__ import annotations

import asyncio

import anyio
from anyio._backends._asyncio import _task_states  # anyio has no public way to ask for it

__all__ = ["leave_to"]


def leave_to(outer: anyio.CancelScope) -> None:
    """Leave all scopes of this task inside `outer`, as their blocks should have.

    On trio it does nothing: there a scope that is not left ends the task by itself.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return
    state = _task_states.get(task) if task is not None else None
    while state is not None and state.cancel_scope not in (outer, None):
        state.cancel_scope.__exit__(None, None, None)
