"""What may be the lifespan of an app, and what is refused where the app is made."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any

import pytest

from mega import App
from mega.errors import BadHandler


class Database:
    """An async context manager of its own."""

    def __init__(self, url: str = "sqlite:") -> None: ...
    async def __aenter__(self) -> Database:
        return self

    async def __aexit__(self, *exc_info: Any) -> None: ...


class Pool(Database):
    def __init__(self, url: str) -> None: ...


@asynccontextmanager
async def opened() -> AsyncIterator[int]:
    yield 1


@asynccontextmanager
async def for_fastapi(app: Any) -> AsyncIterator[int]:
    yield 1


async def without_decorator() -> AsyncIterator[int]:
    yield 1


def plain_generator() -> Iterator[int]:
    yield 1


@contextmanager
def plain() -> Iterator[int]:
    yield 1


async def coroutine() -> int:
    return 1


@pytest.mark.parametrize(
    "lifespan",
    [
        opened,
        functools.partial(for_fastapi, None),
        Database,
        functools.partial(Pool, "sqlite:"),
        lambda: Database(),
        nullcontext,
        None,
    ],
)
async def test_what_returns_an_async_context_manager_is_entered(lifespan: Any) -> None:
    async with App("shop", lifespan=lifespan).test():
        pass


@pytest.mark.parametrize(
    ("lifespan", "why", "hint"),
    [
        (for_fastapi, "its parameter 'app' needs one", "the app can be used by its name"),
        (Pool, "its parameter 'url' needs one", "Leave it out"),
        (int, "it is a class without __aenter__", "Put @asynccontextmanager over `async def"),
        (without_decorator, "it is an async generator", "Put @asynccontextmanager over it."),
        (plain_generator, "it is a plain generator", "Write async def, under"),
        (plain, "it is a plain generator", "Write async def, under"),
        (coroutine, "it is a coroutine function", "Yield once"),
        (Database(), "it is not a function", "Leave out its parentheses"),
        ("sqlite:", "it is not a function", "Put @asynccontextmanager over `async def"),
    ],
)
def test_another_shape_is_refused_where_the_app_is_made(lifespan: Any, why: str, hint: str) -> None:
    with pytest.raises(BadHandler, match=r"^lifespan=.* can't be entered: ") as refused:
        App("shop", lifespan=lifespan)
    assert why in str(refused.value)
    assert hint in refused.value.hint
    assert refused.value.where.startswith("test_lifespan.py:")
