"""Several processes on one `.mega/`: terminals, roles, and the demo of the seeds."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from tests.apps.program import Program, run_to_end, write_app
from tests.waiting import until_sync

EXAMPLES = Path(__file__).parents[2] / "examples"
DEMO = EXAMPLES / "demo.py"

TWO_ROLES = """
    from mega import App
    app = App("roles")
    @app.job("greet")
    async def greet() -> None:
        print("greeted", flush=True)
    @app.schedule(every=0.5)
    async def tick() -> None:
        print("ticked", flush=True)
        await greet.enqueue()
    app.run()
"""


def enqueue(subject: str, *payload: str, home: Path) -> str:
    """Enqueue from a second terminal, and return what it shows."""
    program = run_to_end(DEMO, "enqueue", subject, *payload, home=home)
    assert 0 == program.code, program.errors
    return program.output


def test_the_demo_takes_jobs_from_a_second_terminal(home: Path) -> None:
    with Program(DEMO, home=home) as demo:
        demo.wait_for("ready in")
        assert '"HELLO"' in enqueue("demo.ok", '"hello"', "--wait", home=home)
        demo.wait_for("ok +hello")

        enqueue("demo.flaky", home=home)
        demo.wait_for("flaky +attempt 1 of 3")
        demo.wait_for("flaky +attempt 2 of 3")

        enqueue("demo.fail", home=home)
        demo.wait_for("fail +attempt 2 of 2")
        demo.wait_for("dead +JobDeadLettered")
        assert "flaky   attempt 3" not in demo.output

        demo.signal(signal.SIGTERM)
        assert 0 == demo.wait()


def test_the_demos_automatic_and_manual_ticks_share_one_counter(home: Path) -> None:
    with Program(DEMO, home=home) as demo:
        demo.wait_for("count +1, now automatic")
        enqueue("demo.count", home=home)
        demo.wait_for(r"count +\d+, now manual")
        demo.wait_for(r"now manual(.|\n)*now automatic")
        demo.signal(signal.SIGINT)
        assert 0 == demo.wait()
    ticks = (home / "ticks.txt").read_text().splitlines()
    counts = [int(number) for number in re.findall(r"(?m)^count +(\d+)", demo.output)]
    assert list(range(1, len(ticks) + 1)) == counts


def test_the_demos_heartbeat_goes_on_beside_a_cpu_task(home: Path) -> None:
    with Program(DEMO, "--drain-timeout", "1", home=home) as demo:
        demo.wait_for("ready in")
        enqueue("demo.hash", "1000", home=home)
        demo.wait_for(r"hash +\w+… after 1000 rounds")
        beats = demo.count("beat +the event loop is free")
        enqueue("demo.hash", "1000000000", home=home)
        until_sync(
            lambda: demo.count("beat +the event loop is free") >= beats + 2,
            within=20,
            what="two beats beside a task that takes minutes",
        )
        assert not demo.count(r"after 1000000000 rounds")
        demo.signal(signal.SIGINT)
        assert 0 == demo.wait()


def test_a_worker_and_a_scheduler_share_one_server(tmp_path: Path, home: Path) -> None:
    file = write_app(tmp_path, TWO_ROLES)
    with (
        Program(file, "--role", "worker", home=home) as worker,
        Program(file, "--role", "scheduler", home=home) as scheduler,
    ):
        scheduler.wait_for("ticked(.|\n)*ticked")
        worker.wait_for("greeted(.|\n)*greeted")
        for program in (scheduler, worker):
            program.signal(signal.SIGINT)
            assert 0 == program.wait()
        assert "ticked" not in worker.output
        assert "greeted" not in scheduler.output


def test_the_embedded_server_keeps_jobs_until_a_worker_comes(tmp_path: Path, home: Path) -> None:
    file = write_app(tmp_path, TWO_ROLES)
    assert 0 == run_to_end(file, "enqueue", "greet", home=home).code
    with Program(file, "--role", "worker", home=home) as worker:
        worker.wait_for("greeted")


def test_check_shows_the_app_and_starts_nothing(home: Path) -> None:
    program = run_to_end(DEMO, "--check", home=home)
    assert 0 == program.code
    assert "  job       demo.flaky   flaky(ctx)" in program.output
    assert not home.exists()
