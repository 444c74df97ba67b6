"""Nothing that an app has opened keeps its process alive once it is told to stop."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.apps.program import Program, run_to_end, write_app

#: What each worker opens, and the line that it prints when that is open.
WORKERS = {
    "idle": """
        @app.job("work")
        async def work() -> None: ...
        """,
    "idle, 100 slots": """
        @app.job("work", concurrency=100)
        async def work() -> None: ...
        """,
    "jobs that ended, in threads": """
        @app.job("work", concurrency=20)
        def work(number: int) -> None: ...
        @app.on_startup
        async def begin() -> None:
            for number in range(20):
                await work.enqueue(number)
        """,
    "a pool that has worked": """
        @app.cpu_task()
        def double(number: int) -> int:
            return 2 * number
        @app.job("work")
        async def work() -> None:
            print("doubled", await double.run(21), flush=True)
        @app.on_startup
        async def begin() -> None:
            await work.enqueue()
        """,
    "a lock that is held": """
        import anyio
        @app.schedule(every=0.5, lock=True)
        async def tick() -> None:
            print("ticked", flush=True)
            await anyio.sleep(0.3)
        """,
    "a result that is waited for": """
        import asyncio
        from contextlib import suppress
        from mega import BrokerUnavailable
        @app.job("work")
        async def work() -> None: ...
        @app.job("never", roles=["web"])
        async def never() -> None: ...
        async def wait() -> None:
            with suppress(BrokerUnavailable):  # when the connection closes while it begins
                await (await never.enqueue()).wait()
        @app.on_startup
        async def begin() -> None:
            app.waiting = asyncio.create_task(wait())
        """,
    "a second app as producer": """
        other = App("other")
        @other.job("foreign", roles=["web"])
        async def foreign() -> None: ...
        @app.job("work")
        async def work() -> None:
            async with other:
                await foreign.enqueue()
                print("enqueued", flush=True)
        @app.on_startup
        async def begin() -> None:
            await work.enqueue()
        """,
}
OPENED = {
    "a pool that has worked": "doubled 42",
    "a lock that is held": "ticked",
    "a second app as producer": "enqueued",
}

#: Far below the 25 s of a drain and the 30 s of a pull, far above what it takes.
SOON = 12.0


def worker_file(folder: Path, body: str) -> Path:
    source = f"""
        from mega import App
        app = App("ending")
        {body.strip()}
        app.run()
    """
    return write_app(folder, source)


@pytest.mark.parametrize("body", WORKERS.values(), ids=WORKERS.keys())
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_told_to_stop(
    tmp_path: Path, home: Path, broker: str, body: str, number: signal.Signals
) -> None:
    """shutdown-02, shutdown-04: it exits with 0 soon, whatever it has open, though it pulls."""
    opened = next((line for name, line in OPENED.items() if WORKERS[name] == body), "ready in")
    with Program(worker_file(tmp_path, body), home=home, MEGA_BROKER=broker) as worker:
        worker.wait_for("ready in")
        worker.wait_for(opened)
        worker.signal(number)
        assert 0 == worker.wait(within=SOON)
    assert "Traceback" not in worker.errors
    assert "never awaited" not in worker.errors
    assert "was destroyed" not in worker.errors


def test_an_embedded_server_ends_too(tmp_path: Path, home: Path) -> None:
    """shutdown-02: with the embedded server, too, nothing is left and the code is 0."""
    with Program(worker_file(tmp_path, WORKERS["idle"]), home=home) as worker:
        worker.wait_for("ready in")
        worker.signal(signal.SIGTERM)
        assert 0 == worker.wait(within=SOON)


CANCELLED = """
    import asyncio
    from mega import App
    app = App("cancelled")
    @app.job("work")
    async def work() -> None: ...
    @app.cpu_task()
    def double(number: int) -> int:
        return 2 * number
    def cancel_all() -> None:
        current = asyncio.current_task()
        for task in asyncio.all_tasks():
            if task is not current:
                task.cancel()
    {main}
    if __name__ == "__main__":
        asyncio.run(main(), debug={debug})
        print("left", flush=True)
"""

MAINS = {
    "a producer": """
    async def main() -> None:
        async with app:
            await work.enqueue()
            await asyncio.sleep(0.05)  # so that all tasks have begun
            cancel_all()
    """,
    "a pool": """
    async def main() -> None:
        async with app:
            await double.run(1)
            cancel_all()
    """,
    "a worker": """
    async def main() -> None:
        serving = asyncio.create_task(app.serve(on_ready=ready.set))
        await ready.wait()
        await asyncio.sleep(0.05)
        cancel_all()
        await asyncio.wait({serving})
        print(serving)
    """,
    "the end of asyncio.run": """
    async def main() -> None:
        asyncio.create_task(app.serve(on_ready=ready.set))
        await ready.wait()
    """,
}


@pytest.mark.parametrize("main", MAINS.values(), ids=MAINS.keys())
@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
def test_the_clients_own_tasks_are_cancelled(
    tmp_path: Path, home: Path, broker: str, main: str, debug: bool
) -> None:
    """shutdown-06: the app is left although all tasks were cancelled, the client's own too."""
    source = CANCELLED.format(main=main.strip(), debug=debug)
    if "ready" in main:
        source = source.replace("import asyncio\n", "import asyncio\n    ready = asyncio.Event()\n")

    program = run_to_end(write_app(tmp_path, source), home=home, MEGA_BROKER=broker)

    assert "left" in program.output, program.errors
    assert "was destroyed" not in program.errors
    assert "never awaited" not in program.errors
    assert 0 == program.code
