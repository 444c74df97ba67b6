"""The types of the decorators: which functions they take, and which handles they leave."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, overload

from typing_extensions import TypeVar

from mega.context import JobContext, ScheduleContext
from mega.handles import JobHandle, ScheduleHandle

__all__ = ["JobDecorator", "ScheduleDecorator"]

P = ParamSpec("P")
T = TypeVar("T")
Ret = TypeVar("Ret", covariant=True)
R = TypeVar("R", covariant=True)


class Anything:
    """No value is of this type, so a parameter that takes it takes anything: Any or object."""


class JobDecorator(Protocol):
    """The type of `@app.job(...)`: any of the handler shapes, sync or async."""

    # What takes anything also takes the context, and a function of the context alone also looks
    # like one of a payload; the first match wins.
    @overload
    def __call__(
        self, fn: Callable[[Anything], Coroutine[Any, Any, R]], /
    ) -> JobHandle[Any, [Any], Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[[JobContext[Any]], Coroutine[Any, Any, R]], /
    ) -> JobHandle[None, [JobContext[Any]], Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(
        self, fn: Callable[[T, JobContext[Any]], Coroutine[Any, Any, R]], /
    ) -> JobHandle[T, [T, JobContext[Any]], Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(
        self, fn: Callable[[T], Coroutine[Any, Any, R]], /
    ) -> JobHandle[T, [T], Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(
        self, fn: Callable[[], Coroutine[Any, Any, R]], /
    ) -> JobHandle[None, [], Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, fn: Callable[[Anything], R], /) -> JobHandle[Any, [Any], R, R]: ...
    @overload
    def __call__(
        self, fn: Callable[[JobContext[Any]], R], /
    ) -> JobHandle[None, [JobContext[Any]], R, R]: ...
    @overload
    def __call__(
        self, fn: Callable[[T, JobContext[Any]], R], /
    ) -> JobHandle[T, [T, JobContext[Any]], R, R]: ...
    @overload
    def __call__(self, fn: Callable[[T], R], /) -> JobHandle[T, [T], R, R]: ...
    @overload
    def __call__(self, fn: Callable[[], R], /) -> JobHandle[None, [], R, R]: ...


class ScheduleDecorator(Protocol):
    """The type of `@app.schedule(...)`: a function, or a job without a payload."""

    # A handle can be called too; the first match wins.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: JobHandle[None, P, Ret, Any], /
    ) -> ScheduleHandle[P, Ret]: ...
    @overload
    def __call__(
        self, fn: Callable[[ScheduleContext[Any]], Ret], /
    ) -> ScheduleHandle[[ScheduleContext[Any]], Ret]: ...
    @overload
    def __call__(self, fn: Callable[[], Ret], /) -> ScheduleHandle[[], Ret]: ...
