"""What an app calls when its processes start and end, as processes of their own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.apps.program import Program, write_app
from tests.nats_server import NatsServer

HOOKS = """
    import os
    from contextlib import asynccontextmanager
    from mega import App
    def say(text: str) -> None:
        os.write(1, (text + "\\n").encode())
    @asynccontextmanager
    async def lifespan():
        say("lifespan entered")
        yield
        say("lifespan left")
    app = App("hooks", lifespan=lifespan)
    @app.on_startup
    async def first() -> None:
        say("first")
    @app.on_startup(once=True)
    async def migrate() -> None:
        say("migrated")
    @app.on_startup
    def last() -> None:
        say("last")
    @app.on_shutdown
    async def broken() -> None:
        say("broken")
        raise LookupError("nothing to close")
    @app.on_shutdown
    def close() -> None:
        say("closed")
    app.run()
"""


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


def test_of_processes_that_start_together_one_calls_what_runs_once(
    tmp_path: Path, home: Path, server: NatsServer
) -> None:
    file = write_app(tmp_path, HOOKS)

    def boot(stack: ExitStack) -> Program:
        broker = server.url().text
        return stack.enter_context(Program(file, home=home, MEGA_BROKER=broker))

    with ExitStack() as stack:
        programs = [boot(stack) for _ in range(3)]
        for program in programs:
            program.wait_for("ready in")
        assert [0, 0, 1] == sorted(program.count("migrated") for program in programs)
        assert [1] * 3 == [program.count("last") for program in programs]
        for program in programs:
            program.signal(signal.SIGTERM)
            assert 0 == program.wait()
        later = boot(stack)
        later.wait_for("ready in")
        assert 1 == later.count("migrated")
        later.signal(signal.SIGTERM)
        assert 0 == later.wait()


def test_hooks_are_called_in_order_and_a_broken_one_stops_no_other(
    tmp_path: Path, home: Path, server: NatsServer
) -> None:
    file = write_app(tmp_path, HOOKS)
    with Program(file, home=home, MEGA_BROKER=server.url().text) as program:
        program.wait_for("ready in")
        program.signal(signal.SIGTERM)
        assert 0 == program.wait()
    ours = ("lifespan", "first", "migrated", "last", "broken", "closed")
    told = [line for line in program.output.splitlines() if line.startswith(ours)]
    assert [
        "lifespan entered",
        "first",
        "migrated",
        "last",
        "broken",
        "closed",
        "lifespan left",
    ] == told
    assert "the shutdown hook app.py:" in program.errors
    assert "LookupError: nothing to close" in program.errors


def test_a_start_up_hook_that_raises_ends_the_start_and_is_named(
    tmp_path: Path, home: Path
) -> None:
    source = """
        from mega import App
        app = App("hooks", broker="memory:")
        @app.on_startup
        async def connect() -> None:
            raise LookupError("no database")
        app.run()
    """
    with Program(write_app(tmp_path, source), home=home) as program:
        assert 1 == program.wait()
    assert "LookupError: no database\n" in program.errors
    assert program.errors.endswith("It was raised by the start-up hook app.py:3 connect.\n")


def test_a_hook_that_hangs_does_not_hold_the_end(tmp_path: Path, home: Path) -> None:
    source = """
        import anyio
        from mega import App
        app = App("hooks", broker="memory:")
        @app.on_shutdown
        async def hang() -> None:
            await anyio.sleep_forever()
        app.run()
    """
    with Program(write_app(tmp_path, source), home=home) as program:
        program.wait_for("ready in")
        program.signal(signal.SIGTERM)
        assert 0 == program.wait()
    assert "the shutdown hooks did not end within 10 s" in program.errors
