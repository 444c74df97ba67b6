"""Results that cross processes: whoever waits learns of the end, however close the race."""

from __future__ import annotations

from pathlib import Path

from tests.apps.program import Program, run_to_end, write_app

ECHO = """
    from mega import App
    app = App("echo")
    @app.job("echo")
    async def echo(number: int) -> int:
        return number
    if __name__ == "__main__":
        app.run()
"""

#: A connection for each job, so that the wait begins at about the time when the job ends:
#: 9 of 1,200 such waits never ended when the follower did not wait for the store.
ASK = """
    import anyio
    from app import app, echo
    async def main() -> None:
        for number in range(300):
            async with app:
                job = await echo.enqueue(number)
                assert number == await job.result(timeout=20)
        print("all", flush=True)
    anyio.run(main)
"""


def test_no_wait_misses_the_end_of_its_job(tmp_path: Path, home: Path) -> None:
    app, ask = write_app(tmp_path, ECHO), write_app(tmp_path, ASK, "ask.py")
    with Program(app, home=home) as worker:
        worker.wait_for("ready in")
        asking = run_to_end(ask, home=home)
        assert "all\n" == asking.output, asking.errors
