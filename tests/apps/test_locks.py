"""Locks in Redis, in processes as a user runs them."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.apps.program import Program, run_to_end, write_app
from tests.redis_server import RedisServer
from tests.waiting import until_sync

APP = """
    import os
    import anyio
    from mega import App, Lock, ScheduleContext
    app = App("shop", locks={{"main": "{url}"}})
    @app.schedule(every=1, lock=Lock(ttl=1, store="main"))
    async def tick(ctx: ScheduleContext) -> None:
        print("begins", int(ctx.due_at.timestamp()), flush=True)
        await anyio.sleep(0.1)
        print("ends", flush=True)
    app.run()
"""
BEGINS = re.compile(r"begins (\d+)")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def ticks(*programs: Program) -> list[int]:
    return sorted(int(tick) for program in programs for tick in BEGINS.findall(program.output))


def test_two_schedulers_share_a_lock_and_one_of_them_is_killed(
    tmp_path: Path, home: Path, server: RedisServer
) -> None:
    file = write_app(tmp_path, APP.format(url=server.url))
    with (
        Program(file, "--role", "scheduler", home=home) as one,
        Program(file, "--role", "scheduler", home=home) as other,
    ):
        for program in (one, other):
            program.wait_for("ready in")
        until_sync(lambda: len(ticks(one, other)) >= 3, within=30, what="three ticks")
        one.signal(signal.SIGKILL)
        one.wait()
        seen = other.count("ends")
        until_sync(lambda: other.count("ends") >= seen + 3, within=30, what="three ticks more")
        other.signal(signal.SIGTERM)
        assert 0 == other.wait()
    assert sorted(set(ticks(one, other))) == ticks(one, other)


def test_a_client_that_is_not_installed_is_named_before_anything_is_done(
    tmp_path: Path, home: Path
) -> None:
    write_app(tmp_path, "raise ModuleNotFoundError('none', name='redis')", "redis.py")
    file = write_app(tmp_path, APP.format(url="redis://ada:s3cret@shop.example"))
    program = run_to_end(file, home=home)
    expected = """
    mega: BadOption: the locks in redis://shop.example:6379/0 need the package redis, which is \
not installed.
      Run `pip install 'mega-framework[redis]'`.
    """
    assert dedent(expected).lstrip() in program.errors
    assert "Traceback" not in program.errors
    assert "ready in" not in program.output
    assert 2 == program.code


def test_a_store_that_is_down_stops_nobody_from_starting(
    tmp_path: Path, home: Path, server: RedisServer
) -> None:
    server.kill()
    file = write_app(tmp_path, APP.format(url=server.url))
    with Program(file, home=home) as program:
        program.wait_for("ready in")
        program.wait_for(rf"lock\.down tick .*{server.port}")
        server.start()
        program.wait_for("ends")
        program.signal(signal.SIGTERM)
        assert 0 == program.wait()
