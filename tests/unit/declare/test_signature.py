"""What kind of function a handler is: its shape, its types, and whether it is async."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from mega import App, JobContext, ScheduleContext
from mega.declare.signature import check_task, inspect_job, inspect_schedule
from mega.errors import BadHandler

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass
class Email:
    to: str


def nothing() -> None: ...
def payload(email: Email) -> int: ...  # type: ignore[empty-body]
def context(ctx: JobContext) -> str: ...  # type: ignore[empty-body]
def both(email: Email, ctx: JobContext[int]) -> None: ...
def turned(ctx: JobContext, email: Email) -> None: ...
def bare(email, ctx: JobContext):  # type: ignore[no-untyped-def]
    ...


def optional(email: Email | None = None) -> None: ...
def variadic(email: Email, *args: Any, **kwargs: Any) -> None: ...
def keyword_with_default(email: Email, *, dry: bool = False) -> None: ...


async def coroutine(email: Email) -> None: ...


class Sender:
    async def __call__(self, email: Email, ctx: JobContext) -> None: ...

    def send(self, email: Email) -> bool: ...  # type: ignore[empty-body]

    @staticmethod
    def send_static(email: Email) -> None: ...

    @classmethod
    async def send_class(cls, email: Email) -> None: ...


SHAPES = [
    (nothing, "", None, False),
    (payload, "p", Email, False),
    (context, "c", None, False),
    (both, "pc", Email, False),
    (turned, "cp", Email, False),
    (bare, "pc", Any, False),
    (optional, "p", Email | None, False),
    (variadic, "p", Email, False),
    (keyword_with_default, "p", Email, False),
    (coroutine, "p", Email, True),
    (Sender(), "pc", Email, True),
    (Sender().send, "p", Email, False),
    (Sender.send_static, "p", Email, False),
    (Sender.send_class, "p", Email, True),
    (functools.partial(both, Email("ada")), "c", None, False),
    (functools.partial(coroutine), "p", Email, True),
    (functools.partial(functools.partial(coroutine)), "p", Email, True),
    (lambda: None, "", None, False),
    (lambda email: None, "p", Any, False),
]


def name_of(fn: Any) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


@pytest.mark.parametrize(("fn", "shape", "declared", "is_async"), SHAPES, ids=name_of)
def test_a_job_takes_a_payload_a_context_both_or_nothing(
    fn: Any, shape: str, declared: Any, is_async: bool
) -> None:
    handler = inspect_job(fn)
    assert (shape, declared, is_async) == (handler.shape, handler.payload, handler.is_async)


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (lambda: (), ()),
        (lambda email: (email,), ("payload",)),
        (lambda email, ctx: (email, ctx), ("payload", "context")),
    ],
)
def test_a_handler_is_called_with_what_it_takes(fn: Any, arguments: tuple[str, ...]) -> None:
    if "ctx" in fn.__code__.co_varnames:
        fn.__annotations__["ctx"] = JobContext
    assert arguments == inspect_job(fn).bind()("payload", "context")


def test_a_handler_may_take_its_context_first() -> None:
    def turned(ctx: JobContext, email: Any) -> Any:
        return ctx, email

    assert ("context", "payload") == inspect_job(turned).bind()("payload", "context")


@pytest.mark.parametrize(
    ("fn", "result"), [(payload, int), (context, str), (nothing, type(None)), (bare, Any)]
)
def test_the_result_is_what_is_declared(fn: Any, result: Any) -> None:
    assert result is inspect_job(fn).result


def test_the_context_is_found_by_its_annotation_and_not_by_its_name() -> None:
    def odd(ctx: Email, email: JobContext) -> None: ...

    handler = inspect_job(odd)
    assert ("pc", Email) == (handler.shape, handler.payload)


def test_a_class_of_the_function_around_it_can_be_an_annotation() -> None:
    @dataclass
    class Local:
        to: str

    app = App("shop")

    @app.job("email.send")
    async def send(local: Local, ctx: JobContext) -> Local:
        return local

    assert ("pc", Local) == (send.spec.handler.shape, send.spec.handler.payload)
    assert Local is send.spec.handler.result


def test_an_annotation_that_can_not_be_read_is_refused_with_the_remedy() -> None:
    def send(amount: Decimal) -> None: ...

    with pytest.raises(BadHandler, match="the annotations of 'send' can't be read") as refused:
        inspect_job(send)
    assert "Decimal" in str(refused.value)
    assert "not under TYPE_CHECKING" in refused.value.hint
    assert "test_signature.py" in refused.value.where


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("inspect", [inspect_job, inspect_schedule])
@pytest.mark.parametrize(
    "fn", [generator, async_generator, functools.partial(generator)], ids=name_of
)
def test_a_generator_is_refused_because_it_would_never_run(inspect: Any, fn: Any) -> None:
    with pytest.raises(BadHandler, match="it is a generator"):
        inspect(fn)


class GeneratorObject:
    def __call__(self) -> Iterator[int]:
        yield 1


def test_an_object_whose_call_is_a_generator_is_refused_too() -> None:
    with pytest.raises(BadHandler, match="it is a generator"):
        inspect_job(GeneratorObject())


@pytest.mark.parametrize("inspect", [inspect_job, inspect_schedule])
@pytest.mark.parametrize("thing", [None, 5, "send", Email, JobContext])
def test_what_is_no_function_is_refused(inspect: Any, thing: Any) -> None:
    with pytest.raises(BadHandler, match="it is not a function"):
        inspect(thing)


def two_payloads(one: int, two: int) -> None: ...
def two_contexts(one: JobContext, two: JobContext) -> None: ...
def three(one: int, ctx: JobContext, two: int) -> None: ...
def wrong_context(one: int, ctx: ScheduleContext) -> None: ...


@pytest.mark.parametrize("fn", [two_payloads, two_contexts, three, wrong_context])
def test_a_job_with_more_parameters_is_refused_with_what_it_may_take(fn: Any) -> None:
    with pytest.raises(BadHandler, match="parameters that nothing fills") as refused:
        inspect_job(fn)
    expected = "A handler takes (), (payload), (payload, ctx: JobContext) or (ctx: JobContext)."
    assert expected == refused.value.hint


def test_a_required_keyword_is_refused() -> None:
    def send(email: Email, *, dry: bool) -> None: ...

    with pytest.raises(BadHandler, match="'dry' is keyword-only and has no default"):
        inspect_job(send)


@pytest.mark.parametrize("default", [Email("ada"), 0, "", False])
def test_a_payload_has_no_default_because_no_run_would_get_it(default: Any) -> None:
    def send(ctx: JobContext, email: Any = default) -> None: ...

    with pytest.raises(BadHandler, match="its payload 'email' has the default") as refused:
        inspect_job(send)
    assert "Put defaults into the payload's type" in refused.value.hint
    assert "test_signature.py:" in refused.value.where


def tick(ctx: ScheduleContext[int]) -> None: ...


@pytest.mark.parametrize(("fn", "shape"), [(nothing, ""), (tick, "c")])
def test_a_schedule_takes_a_context_or_nothing(fn: Any, shape: str) -> None:
    assert shape == inspect_schedule(fn).shape


@pytest.mark.parametrize("fn", [payload, context, both])
def test_a_schedule_with_a_payload_is_refused(fn: Any) -> None:
    with pytest.raises(BadHandler, match="parameters that nothing fills") as refused:
        inspect_schedule(fn)
    assert "A handler takes (), (ctx: ScheduleContext)." == refused.value.hint


def test_a_job_with_a_payload_can_not_be_scheduled() -> None:
    app = App("shop")

    @app.job("email.send")
    async def send(email: Email) -> None: ...

    scheduled: Any = send
    with pytest.raises(BadHandler, match="a tick has no payload to give it"):
        app.schedule(every=60)(scheduled)


def test_a_cpu_task_is_found_by_its_module_and_name() -> None:
    assert f"{__name__}:nothing" == check_task(nothing)


def nested() -> Any:
    def inner() -> None: ...

    return inner


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda: None, "it is a lambda"),
        (nested(), "inside another function or class"),
        (Sender.send, "inside another function or class"),
        (Sender().send, "it is not a function"),
        (Sender(), "it is not a function"),
        (functools.partial(nothing), "it is not a function"),
        (print, "it is not a function"),
        (Email, "it is not a function"),
        (coroutine, "it must be a plain function"),
        (generator, "it must be a plain function"),
        (async_generator, "it must be a plain function"),
        (None, "it is not a function"),
    ],
)
def test_what_a_process_could_not_find_or_run_is_no_cpu_task(fn: Any, reason: str) -> None:
    with pytest.raises(BadHandler, match=reason):
        check_task(fn)
    assert issubclass(BadHandler, TypeError)
