"""Enqueues from code without an event loop, and at the end of an app."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path

import anyio
import pytest

from mega import App
from mega.errors import BlockingCall, NotConnected
from mega.events import JobDone
from tests.apps.program import Program, run_to_end, write_app
from tests.cases.onlooker import Onlooker
from tests.cases.served import serving
from tests.nats_server import NatsServer

SCRIPT = """
    import os, sys, threading
    from mega import App
    app = App("sync"{broker})
    @app.job("{subject}", concurrency=4)
    def take(number: int) -> None:
        print("took", number, flush=True)
    def send(*numbers: int) -> None:
        for number in numbers:
            take.enqueue_sync(number)
"""

PLAIN = """
    import asyncio
    from mega.errors import BlockingCall
    if __name__ == "__main__":
        first = take.enqueue_sync(1, id="{subject}-1")
        second = app.enqueue_sync("{subject}", 1, id="{subject}-1")
        print(first.duplicate, second.duplicate, first.id == second.id)
        try:
            asyncio.run(first.state())
        except BlockingCall as error:
            print(error.code)
"""

THREADS = """
    if __name__ == "__main__":
        threads = [threading.Thread(target=send, args=(n,)) for n in range(20)]
        for thread in threads:
            thread.start()
"""

FORKS = """
    if __name__ == "__main__":
        send(0)
        children = []
        for n in range(1, 4):
            pid = os.fork()
            if pid == 0:
                send(2 * n - 1, 2 * n)
                os._exit(0) if n == 1 else sys.exit(0)
            children.append(pid)
        send(7)
        print("codes", *(os.waitpid(pid, 0)[1] for pid in children))
"""

AT_EXIT = """
    import atexit
    if __name__ == "__main__":
        send(2)
        threading.Thread(target=lambda: (threading.main_thread().join(), send(1))).start()
        atexit.register(send, 0)
"""

AFTER_AN_OUTAGE = """
    import atexit, time
    from pathlib import Path
    from mega.errors import BrokerUnavailable
    def send_last() -> None:
        print("ends", flush=True)
        while not Path("gate").exists():
            time.sleep(0.02)
        try:
            send(2)
        except BrokerUnavailable as error:
            print(error.code)
    if __name__ == "__main__":
        send(1)
        atexit.register(send_last)
"""

CUT_OFF = """
    from mega.errors import MegaError
    def go_on() -> None:
        try:
            while True:
                send(1)
                sent.set()
        except MegaError:
            pass
    if __name__ == "__main__":
        sent = threading.Event()
        threading.Thread(target=go_on, daemon=True).start()
        sent.wait(30)
"""

SERVED = """
    if __name__ == "__main__":
        app.run()
"""


def script(broker: str, subject: str, body: str) -> str:
    return (SCRIPT + body).format(broker=f', broker="{broker}"' if broker else "", subject=subject)


async def numbers(onlooker: Onlooker, subject: str) -> list[int]:
    """Return the payloads that are stored, sorted."""
    return sorted(int(message.data or b"") for message in await onlooker.jobs(subject))


# -- from sync code


async def run(file: Path, home: Path) -> Program:
    """Run a program to its end beside this event loop."""
    return await asyncio.to_thread(run_to_end, file, home=home)


async def test_a_script_without_a_loop(
    tmp_path: Path, home: Path, broker: str, subject: str, onlooker: Onlooker
) -> None:
    """enq-03: the first call connects, and the program ends by itself."""
    program = await run(write_app(tmp_path, script(broker, subject, PLAIN)), home)

    assert ("False True True\napp.blocking_call\n", "") == (program.output, program.errors)
    assert 0 == program.code
    assert [1] == await numbers(onlooker, subject)


async def test_twenty_threads_at_once(
    tmp_path: Path, home: Path, broker: str, subject: str, onlooker: Onlooker
) -> None:
    """enq-03: threads share one connection, whoever is first."""
    program = await run(write_app(tmp_path, script(broker, subject, THREADS)), home)

    assert ("", 0) == (program.errors, program.code)
    assert list(range(20)) == await numbers(onlooker, subject)


async def test_processes_that_were_forked(
    tmp_path: Path, home: Path, broker: str, subject: str, onlooker: Onlooker
) -> None:
    """enq-03: a child of a process that was connected gets a connection of its own."""
    program = await run(write_app(tmp_path, script(broker, subject, FORKS)), home)

    assert ("codes 0 0 0\n", 0) == (program.output, program.code)
    assert list(range(8)) == await numbers(onlooker, subject)


async def test_while_the_interpreter_ends(
    tmp_path: Path, home: Path, broker: str, subject: str, onlooker: Onlooker
) -> None:
    """enq-03, enq-07: threads that outlive the main one, and functions at exit, enqueue."""
    program = await run(write_app(tmp_path, script(broker, subject, AT_EXIT)), home)

    assert ("", 0) == (program.errors, program.code)
    assert [0, 1, 2] == await numbers(onlooker, subject)


def by_name(broker: str) -> str:
    """Return the URL with the server's host as a name, which has to be looked up."""
    named = broker.replace("127.0.0.1", "localhost")
    assert named != broker
    return named


@pytest.mark.parametrize("body", [THREADS, AT_EXIT, CUT_OFF], ids=["threads", "at exit", "cut off"])
async def test_a_script_that_names_the_host_of_its_server_ends_quietly(
    tmp_path: Path, home: Path, broker: str, subject: str, body: str
) -> None:
    """enq-03: asyncio looks names up in threads, and none can be started at the end any more."""
    program = await run(write_app(tmp_path, script(by_name(broker), subject, body)), home)

    assert ("", 0) == (program.errors, program.code)


@pytest.mark.parametrize("comes_back", [True, False], ids=["comes back", "stays away"])
def test_a_server_that_goes_away_while_the_interpreter_ends(
    tmp_path: Path, home: Path, subject: str, comes_back: bool
) -> None:
    """enq-03: its name is looked up once more. If it stays away the call says so, and no other."""
    with NatsServer() as server:
        named = by_name(server.url().text)
        file = write_app(tmp_path, script(named, subject, AFTER_AN_OUTAGE))
        with Program(file, home=home) as program:
            program.wait_for("ends")
            server.restart() if comes_back else server.kill()
            (tmp_path / "gate").touch()
            assert 0 == program.wait()

    assert ["ends"] + ["broker.unavailable"] * (not comes_back) == program.output.split()
    assert "Traceback" not in program.errors


def test_a_script_with_an_embedded_server(tmp_path: Path, home: Path, subject: str) -> None:
    """enq-03: without a broker's name the script runs the server itself; a worker finds the job."""
    sending = write_app(tmp_path, script("", subject, PLAIN))
    program = run_to_end(sending, home=home)
    assert ("False True True\napp.blocking_call\n", 0) == (program.output, program.code)

    with Program(write_app(tmp_path, script("", subject, SERVED)), home=home) as worker:
        worker.wait_for("took 1")
        worker.signal(signal.SIGTERM)
        assert 0 == worker.wait()


def test_a_server_that_is_not_there(tmp_path: Path, home: Path, subject: str) -> None:
    """enq-03: the error names the server, each call tries anew, and nothing hangs at the end."""
    with NatsServer() as server:
        broker = server.url().text
    body = """
    if __name__ == "__main__":
        for _ in range(2):
            try:
                send(1)
            except ConnectionError as error:
                print(error.args[0])
    """
    program = run_to_end(
        write_app(tmp_path, script(f"{broker}?connect_timeout=0.5", subject, body)), home=home
    )
    assert 0 == program.code
    assert 2 == program.count(broker)


async def test_threads_beside_a_running_app(broker: str, subject: str, onlooker: Onlooker) -> None:
    """enq-03: a `def` handler, and a thread that mega knows nothing of, use the app's own link."""
    app = App("cases", broker=broker)

    @app.job(f"{subject}.first")
    def first() -> None:
        second.enqueue_sync(1)
        thread = threading.Thread(target=second.enqueue_sync, args=(2,))
        thread.start()
        thread.join()

    @app.job(subject)
    def second(number: int) -> None: ...

    async with serving(app) as served:
        await first.enqueue()
        await served.wait_for(JobDone, 3)
        assert app._background._line is None


@pytest.mark.parametrize("is_entered", [True, False])
async def test_a_sync_call_in_an_event_loop(broker: str, subject: str, is_entered: bool) -> None:
    """enq-03: where it would block the loop it is refused, and the error says what to write."""
    app = App("cases", broker=broker)

    @app.job(subject)
    async def take(number: int) -> None: ...

    with pytest.raises(BlockingCall, match=r"await app\.enqueue"):
        take.enqueue_sync(1)
    async with app:
        with pytest.raises(BlockingCall, match=r"await app\.enqueue"):
            app.enqueue_sync(take, 1)


def test_an_app_that_was_entered_in_another_loop(broker: str, subject: str) -> None:
    """enq-03: an await in a second event loop is a clear error, in the same thread and another."""
    app, errors = App("cases", broker=broker), []

    @app.job(subject)
    async def take(number: int) -> None: ...

    async def fail() -> None:
        with pytest.raises(BlockingCall, match="another event loop") as caught:
            await take.enqueue(1)
        errors.append(caught.value.hint)

    async def stay(entered: asyncio.Event, leave: asyncio.Event) -> None:
        async with app:
            await take.enqueue(0)
            entered.set()
            await leave.wait()

    entered, leave = asyncio.Event(), asyncio.Event()
    with asyncio.Runner() as runner:
        staying = runner.get_loop().create_task(stay(entered, leave))
        runner.run(entered.wait())
        thread = threading.Thread(target=asyncio.run, args=(fail(),))
        thread.start()
        thread.join()
        asyncio.run(fail())
        leave.set()
        runner.get_loop().run_until_complete(staying)

    assert 2 == len(errors)
    assert all("enqueue_sync" in hint for hint in errors)


# -- at the end


async def test_handlers_and_hooks_at_shutdown(
    broker: str, subject: str, onlooker: Onlooker
) -> None:
    """enq-07: until the last handler and hook has ended, an enqueue works; after that it raises."""
    app, started = App("cases", broker=broker), anyio.Event()

    @app.job(f"{subject}.slow")
    async def slow() -> None:
        started.set()
        await anyio.sleep(1)
        await later.enqueue(1)

    @app.job(subject, roles=("web",))
    async def later(number: int) -> None: ...

    @app.on(JobDone)
    async def note(event: JobDone) -> None:
        await later.enqueue(2)

    @app.on_shutdown
    async def last() -> None:
        await later.enqueue(3)

    async with serving(app):
        await slow.enqueue()
        await started.wait()
    with pytest.raises(NotConnected):
        await later.enqueue(4)

    assert [1, 2, 3] == await numbers(onlooker, subject)


async def test_a_worker_that_is_told_to_stop(
    tmp_path: Path, home: Path, broker: str, subject: str, onlooker: Onlooker
) -> None:
    """enq-07: what a running job enqueues after SIGTERM is stored when the process has ended."""
    body = """
    import time
    @app.job("{subject}.slow")
    def slow() -> None:
        print("begun", flush=True)
        time.sleep(1)
        take.enqueue_sync(7)
    if __name__ == "__main__":
        app.run()
    """
    source = script(broker, subject, body).replace("concurrency=4", 'roles=("web",)')
    file = write_app(tmp_path, source)
    with Program(file, "--role", "worker", home=home) as worker:
        await asyncio.to_thread(worker.wait_for, "ready in")
        await onlooker.publish(f"{subject}.slow", b"null")
        await asyncio.to_thread(worker.wait_for, "begun")
        worker.signal(signal.SIGTERM)
        assert 0 == await asyncio.to_thread(worker.wait)

    # No worker served that job, so the enqueue itself made its stream.
    assert [7] == await numbers(onlooker, subject)


async def test_a_block_that_raises(broker: str, subject: str, onlooker: Onlooker) -> None:
    """enq-07: an error in the block takes back nothing that was confirmed before it."""
    app = App("cases", broker=broker)

    @app.job(subject)
    async def take(number: int) -> None: ...

    async def send_and_fail() -> None:
        async with app:
            await take.enqueue(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await send_and_fail()
    with pytest.raises(NotConnected, match="async with app"):
        await take.enqueue(2)

    assert [1] == await numbers(onlooker, subject)
