"""The handle of a CPU task: calls of it in a pool, one or many."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypedDict, cast

from typing_extensions import Unpack

from mega.declare.registry import CpuSpec
from mega.errors import BadOption
from mega.handles import Handle, Owner, P, R, T
from mega.options import Seconds, check_count, refuse_unknown, to_timeout

__all__ = ["CallOptions", "CpuHandle", "Pools", "Results"]

OnProgress: TypeAlias = Callable[[float, str], object]


class Results(Protocol[R]):
    """An iterator over results. Closing it cancels what runs, and returns when that has ended."""

    def __aiter__(self) -> AsyncIterator[R]: ...
    async def __anext__(self) -> R: ...
    async def aclose(self) -> None: ...


class CallOptions(TypedDict, total=False):
    """What `CpuHandle.options` may say of calls.

    After `timeout` (seconds; None: no limit) a call is ended. `on_progress` is a function of
    fraction and note, async or not, that is told what the task says with `mega.cpu.progress`.
    """

    timeout: Seconds | None
    on_progress: OnProgress | None


class Pools(Protocol):
    """What a handle asks of the CPU pools of its process."""

    async def call(
        self,
        spec: CpuSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        on_progress: OnProgress | None,
    ) -> Any: ...
    def map(
        self,
        spec: CpuSpec,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        limit: int | None,
        on_progress: OnProgress | None,
    ) -> Results[Any]: ...


class CpuHandle(Handle, Generic[P, R]):
    """A declared CPU task."""

    #: A worker process finds the handle under the task's name, and runs its `fn`.
    __mega_task__: ClassVar[bool] = True

    def __init__(
        self,
        fn: Callable[P, R],
        spec: CpuSpec,
        owner: Owner | None,
        *,
        on_progress: OnProgress | None = None,
    ) -> None:
        super().__init__(fn, owner)
        self.spec: CpuSpec = spec
        self.name: str = spec.name
        self._on_progress = on_progress

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now, in this process."""
        result: R = self.fn(*args, **kwargs)
        return result

    async def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the task in a worker of its pool and return what it returned.

        Cancelling the call kills the process; a thread goes on without it.
        Raises: what the task raised, CpuError, NotConnected.
        """
        pools = self._require_owner()._cpu_pools()
        result: R = await pools.call(self.spec, args, kwargs, on_progress=self._on_progress)
        return result

    def map(
        self: Callable[[T], R],  # pyright: ignore[reportGeneralTypeIssues]
        items: Iterable[T] | AsyncIterable[T],
        *,
        limit: int | None = None,
    ) -> Results[R]:
        """Call the task with each of the items; iterate over the results in their order.

        At most `limit` calls (default: the size of the pool) are in flight. Items are taken as
        they are needed. The first error is raised in its place, and what comes behind it is
        cancelled; so is the rest when the iteration ends early. Close it by
        `contextlib.aclosing` to wait for that. An async generator of items is closed.

        Raises: BadOption, NotConnected.
        """
        if limit is not None:
            check_count(limit, option="limit", minimum=1)
        if not is_iterable(items):
            raise BadOption(
                f"map({items!r}) has nothing to iterate over.",
                hint="Give it a list or another iterable of arguments; run() takes a single one.",
            )
        # As a callable of one argument it gives the type of the items to mypy, too.
        task = cast("CpuHandle[..., R]", self)
        pools = task._require_owner()._cpu_pools()
        return pools.map(task.spec, items, limit=limit, on_progress=task._on_progress)

    def options(self, **options: Unpack[CallOptions]) -> CpuHandle[P, R]:
        """Return this task with other options for its calls; see CallOptions.

        Raises: BadOption.
        """
        known = CallOptions.__annotations__
        unknown = {name: value for name, value in options.items() if name not in known}
        refuse_unknown(unknown, known, what="a CPU call")
        spec, on_progress = self.spec, options.get("on_progress", self._on_progress)
        if on_progress is not None and not callable(on_progress):
            raise BadOption(
                f"on_progress={on_progress!r} is not a function.",
                hint="It is called with a fraction and a note.",
            )
        if "timeout" in options:
            spec = replace(spec, timeout=to_timeout(options["timeout"]))
        return CpuHandle(self.fn, spec, self._owner, on_progress=on_progress)

    def __repr__(self) -> str:
        return f"<cpu task {self.name}>"


def is_iterable(items: Any) -> bool:
    try:
        return isinstance(items, AsyncIterable) or iter(items) is not None
    except TypeError:
        return False
