"""How an app ends, and what is left: by Ctrl-C, SIGTERM, kill -9, in the middle of its work."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.apps.program import Program, processes_of, wait_until_gone, write_app

EXAMPLES = Path(__file__).parents[2] / "examples"

#: A job that says when it runs, and goes on when a file appears.
GATED = """
    import anyio, os
    from pathlib import Path
    from mega import App, JobContext
    app = App("gated", broker="embedded:?ack_wait=1")
    gate = Path("gate")
    @app.job("work", retries=3)
    async def work(name: str, ctx: JobContext) -> str:
        print(f"begun {name} attempt {ctx.attempt}", flush=True)
        while not gate.exists():
            await anyio.sleep(0.02)
        print(f"ended {name}", flush=True)
        return name
    app.run()
"""

ALL_KINDS = """
    import time
    from mega import App
    app = App("busy")
    @app.cpu_task()
    def spin() -> None:
        print("spinning", flush=True)
        while True:
            pass
    @app.schedule(every=0.5)
    async def tick() -> None:
        await spin.run()
    app.run()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_quickstart_shows_all_three_kinds_and_ends_well(
    home: Path, number: signal.Signals
) -> None:
    with Program(EXAMPLES / "quickstart.py", home=home) as program:
        program.wait_for(r"mega \S+ · quickstart · role all · pid \d+")
        program.wait_for(r"ready in \d+\.\d s – Ctrl-C stops")
        program.wait_for(r"schedule tick 2")
        program.wait_for(r"job +hello Ada, this is greeting 1 \(attempt 1\)")
        program.wait_for(r"cpu +78498 primes below a million")
        program.signal(number)
        assert 0 == program.wait()


def test_ctrl_c_in_a_terminal_reaches_all_and_still_drains(tmp_path: Path, home: Path) -> None:
    file = write_app(tmp_path, GATED)
    with Program(file, home=home) as program:
        program.wait_for("ready in")
        with Program(file, "enqueue", "work", '"one"', home=home) as producer:
            assert 0 == producer.wait()
        program.wait_for("begun one attempt 1")
        program.interrupt_group()
        program.wait_for("stopping: 1 run may finish within 25 s; a second signal exits at once")
        (tmp_path / "gate").touch()
        assert 0 == program.wait()
        assert "ended one" in program.output


def test_what_outlives_the_drain_is_given_back_without_an_attempt(
    tmp_path: Path, home: Path
) -> None:
    file = write_app(tmp_path, GATED)
    with Program(file, "--drain-timeout", "0.2", home=home) as program:
        program.wait_for("ready in")
        with Program(file, "enqueue", "work", '"one"', home=home) as producer:
            assert 0 == producer.wait()
        program.wait_for("begun one attempt 1")
        program.signal(signal.SIGTERM)
        program.wait_for(r"stopping: 1 run may finish within 0\.2 s")
        assert 0 == program.wait()
    (tmp_path / "gate").touch()
    with Program(file, home=home) as program:
        program.wait_for("begun one attempt 1")
        program.wait_for("ended one")


def test_nothing_is_said_of_runs_where_there_are_none(tmp_path: Path, home: Path) -> None:
    file = write_app(tmp_path, GATED)
    with Program(file, home=home) as program:
        program.wait_for("ready in")
        program.signal(signal.SIGTERM)
        assert 0 == program.wait()
    assert "stopping; a second signal exits at once" in program.errors


def test_a_second_signal_exits_at_once_and_leaves_nothing(tmp_path: Path, home: Path) -> None:
    file = write_app(tmp_path, ALL_KINDS)
    with Program(file, home=home) as program:
        program.wait_for("spinning")
        program.signal(signal.SIGINT)
        program.wait_for("stopping")
        program.signal(signal.SIGINT)
        assert 128 + signal.SIGINT == program.wait()
    wait_until_gone(home)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_server_and_no_pool_process_is_left(
    tmp_path: Path, home: Path, number: signal.Signals
) -> None:
    file = write_app(tmp_path, ALL_KINDS)
    with Program(file, "--drain-timeout", "0.2", home=home) as program:
        program.wait_for("spinning")
        kinds = " ".join(processes_of(home))
        assert "nats-server" in kinds
        assert "boot.py" in kinds
        program.signal(number)
        program.wait()
    wait_until_gone(home)


def test_a_job_whose_worker_is_killed_runs_again_and_finishes(tmp_path: Path, home: Path) -> None:
    file = write_app(tmp_path, GATED)
    with Program(file, home=home) as program:
        program.wait_for("ready in")
        with Program(file, "enqueue", "work", '"one"', home=home) as producer:
            assert 0 == producer.wait()
        program.wait_for("begun one attempt 1")
        program.signal(signal.SIGKILL)
        program.wait()
    wait_until_gone(home)
    (tmp_path / "gate").touch()
    with Program(file, home=home) as program:
        program.wait_for("begun one attempt 2")
        program.wait_for("ended one")
        program.signal(signal.SIGINT)
        assert 0 == program.wait()


def test_a_job_that_kills_its_worker_each_time_ends_in_the_dead_letters(
    tmp_path: Path, home: Path
) -> None:
    source = """
        import os
        from mega import App
        app = App("poison", broker="embedded:?ack_wait=1")
        @app.job("poison", retries=1)
        async def poison() -> None:
            print("begun", flush=True)
            os.kill(os.getpid(), 9)
        app.run()
    """
    file = write_app(tmp_path, source)
    with Program(file, "enqueue", "poison", home=home) as producer:
        assert 0 == producer.wait()
    for _ in range(2):
        with Program(file, home=home) as program:
            program.wait_for("begun")
            assert -signal.SIGKILL == program.wait()
        wait_until_gone(home)
    with Program(file, home=home) as program:
        program.wait_for(r"job\.dlq poison .*handed out 2 times and never ended: its worker died")
        program.signal(signal.SIGINT)
        assert 0 == program.wait()
        assert "begun" not in program.output


def test_a_thread_that_hangs_does_not_hold_the_process(tmp_path: Path, home: Path) -> None:
    source = """
        import threading
        from mega import App
        app = App("stuck")
        @app.job("hang")
        def hang() -> None:
            print("begun", flush=True)
            threading.Event().wait()
        app.run()
    """
    file = write_app(tmp_path, source)
    with Program(file, "--drain-timeout", "0.2", home=home) as program:
        program.wait_for("ready in")
        with Program(file, "enqueue", "hang", home=home) as producer:
            assert 0 == producer.wait()
        program.wait_for("begun")
        program.signal(signal.SIGTERM)
        assert 0 == program.wait()
        assert "1 threads of handlers did not end in time" in program.errors
