"""The ten commonest mistakes: what the terminal shows, to the letter, and the exit code."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.apps.program import Program, run_to_end, write_app

ENQUEUE = """
    import anyio
    from mega import App
    app = App("shop", broker="{broker}")
    @app.job("email.send")
    async def send_email(to: str) -> None: ...
    async def main() -> None:
        async with app:
            {line}
    anyio.run(main)
"""


def producer(line: str, *, broker: str = "memory:") -> str:
    return ENQUEUE.format(line=line, broker=broker)


MISTAKES = {
    "1 the broker is down, in a producer": (
        producer(
            'await send_email.enqueue("a@b.c")', broker="nats://127.0.0.1:1?connect_timeout=1"
        ),
        3,
        """
        nats://127.0.0.1:1 refused the connection; trying again in 0.5 s
        mega: BrokerUnavailable: nats://127.0.0.1:1 can't be used.
          Cause: refused the connection.
          Start `nats-server -js` there, or name another broker (--broker, MEGA_BROKER).
        """,
    ),
    "2 a function that is no job is enqueued": (
        producer('await app.enqueue(main, "a@b.c")'),
        2,
        """
        mega: BadHandler: 'main' is not a job.
          app.py:6 main
          Decorate the function with @app.job("…") and enqueue what that leaves.
        """,
    ),
    "3 a bad cron expression": (
        """
        from mega import App
        app = App("shop")
        @app.schedule("61 3 * * *", timezone="Asia/Seoul")
        async def nightly() -> None: ...
        app.run()
        """,
        2,
        """
        mega: BadCron: cron expression '61 3 * * *': minute '61' is outside 0-59.
          app.py:3
          Example: "*/15 * * * *" runs every 15 minutes.
        """,
    ),
    "3 a misspelled option": (
        """
        from mega import App
        app = App("shop")
        @app.job("email.send", retrys=3)
        async def send_email() -> None: ...
        """,
        2,
        """
        mega: BadOption: a job has no option 'retrys'.
          app.py:3 email.send
          Did you mean "retries"?
        """,
    ),
    "3 an option of a lock": (
        """
        from mega import App, Lock
        app = App("shop")
        @app.schedule(every=60, lock=Lock(ttl=0))
        async def nightly() -> None: ...
        """,
        2,
        """
        mega: BadOption: Lock.ttl=0 is not a duration of at least 1 s.
          app.py:3 <module>
          Durations are seconds, such as 1.5, or a timedelta.
        """,
    ),
    "3 a decorator without parentheses": (
        """
        from mega import App
        app = App("shop")
        @app.cpu_task
        def render() -> None: ...
        """,
        2,
        """
        mega: BadOption: the decorator lacks its parentheses.
          app.py:3
          Write @app.cpu_task().
        """,
    ),
    "4 a payload that can't be sent": (
        """
        import anyio
        from mega import App
        app = App("shop", broker="memory:")
        @app.job("order.place")
        async def place(order: dict) -> None: ...
        async def main() -> None:
            async with app:
                await place.enqueue({"items": [{"tag": 1}, {"tag": {1, 2}}]})
        anyio.run(main)
        """,
        1,
        """
        mega: PayloadNotSerializable: "order.place" can't send this payload: payload.items[1].tag \
is a set, and would arrive as a list.
          app.py:8 main
          Declare its type in the handler's annotation, or send plain JSON values.
        """,
    ),
    "7 a role that does not exist": (
        """
        from mega import App
        app = App("shop")
        app.run(role="workr")
        """,
        2,
        """
        mega: UnknownRole: there is no role 'workr'.
          Did you mean "worker"?
        """,
    ),
    "8 two jobs with one subject": (
        """
        from mega import App
        app = App("shop")
        @app.job("email.send")
        async def send_email(to: str) -> None: ...
        @app.job("email.send")
        async def send_mail(to: str) -> None: ...
        app.run()
        """,
        2,
        """
        mega: DuplicateName: two jobs use the subject "email.send".
          app.py:3 send_email    app.py:5 send_mail
          Give one of them another subject.
        """,
    ),
    "9 a lambda as a CPU task": (
        """
        from mega import App
        app = App("shop")
        double = app.cpu_task()(lambda number: 2 * number)
        app.run()
        """,
        2,
        """
        mega: BadHandler: '<lambda>' can't be a CPU task: it is a lambda, and a worker process \
finds a task by its name in the module.
          app.py:3 <lambda>
          Move it to the top level of the module with def.
        """,
    ),
}


@pytest.mark.parametrize(("source", "code", "shown"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_shows_as_a_few_lines(
    tmp_path: Path, home: Path, source: str, code: int, shown: str
) -> None:
    program = run_to_end(write_app(tmp_path, source), home=home)
    assert dedent(shown).lstrip() == program.errors
    assert code == program.code
    assert len(program.errors.splitlines()) <= 6


def test_mistake_1_a_worker_tries_for_a_while_and_exits_with_3(tmp_path: Path, home: Path) -> None:
    source = """
        from mega import App
        app = App("shop", broker="nats://127.0.0.1:1")
        app.run()
    """
    program = run_to_end(write_app(tmp_path, source), home=home)
    lines = [line.split(maxsplit=1)[-1] for line in program.errors.splitlines()]
    expected = [
        "WARNING mega.broker  nats://127.0.0.1:1 refused the connection; trying again in 0.5 s",
        "WARNING mega.broker  nats://127.0.0.1:1 refused the connection; trying again in 1 s",
        "WARNING mega.broker  nats://127.0.0.1:1 refused the connection; trying again in 2 s",
        "BrokerUnavailable: nats://127.0.0.1:1 can't be used.",
    ]
    assert expected == lines[:4]
    assert len(lines) <= 6
    assert 3 == program.code


ORDER = """
    import anyio
    {hook}
    from app import app, send_email
    anyio.run(send_email.enqueue, "ada")
"""


@pytest.mark.parametrize(
    ("hook", "arguments", "is_plain"),
    [
        ("", [], True),
        ("", ["--debug"], False),
        ("import sys; sys.excepthook = lambda *error: print('theirs', file=sys.stderr)", [], False),
    ],
)
def test_an_error_that_ends_a_program_which_imports_the_app(
    tmp_path: Path, home: Path, hook: str, arguments: list[str], is_plain: bool
) -> None:
    write_app(
        tmp_path,
        """
        from mega import App
        app = App("shop")
        @app.job("email.send")
        async def send_email(to: str) -> None: ...
        """,
    )
    order = write_app(tmp_path, ORDER.format(hook=hook), "order.py")
    program = run_to_end(order, *arguments, home=home)
    expected = """
    mega: NotConnected: enqueue needs a connection, and the app 'shop' has none.
      order.py:4 <module>
      Call it inside `async with app:`, or from a handler under app.run(). Code without an event \
loop calls enqueue_sync.
    """
    assert is_plain is (dedent(expected).lstrip() == program.errors)
    assert 1 == program.code
    assert bool(hook) is (program.errors == "theirs\n")


def test_a_mistake_does_not_end_a_shell(tmp_path: Path, home: Path) -> None:
    lines = 'from mega import App\napp = App("shop")\napp.job("a b")\nprint("it goes on")\n'
    (tmp_path / "typed.txt").write_text(lines)
    source = """
        import subprocess, sys
        shell = [sys.executable, "-i", "-q"]
        with open("typed.txt") as typed:
            sys.exit(subprocess.run(shell, stdin=typed).returncode)
    """
    program = run_to_end(write_app(tmp_path, source), home=home)
    assert "BadSubject: 'a b' is not a subject." in program.errors
    assert "it goes on" in program.output


def test_mistake_5_a_plain_function_is_a_job_like_any_other(tmp_path: Path, home: Path) -> None:
    source = """
        import anyio, threading
        from mega import App
        app = App("shop")
        @app.job("add")
        def add(number: int) -> bool:
            return threading.current_thread() is threading.main_thread()
        @app.schedule(every=0.2)
        async def once() -> None:
            print("in the main thread:", await (await add.enqueue(1)).result(), flush=True)
        app.run()
    """
    program_ends_after(tmp_path, home, source, "in the main thread: False")


def test_mistake_6_a_forgotten_await_is_warned_of(tmp_path: Path, home: Path) -> None:
    program = run_to_end(write_app(tmp_path, producer('send_email.enqueue("a@b.c")')), home=home)
    assert "coroutine 'JobHandle.enqueue' was never awaited" in program.errors


def test_mistake_7_a_command_that_does_not_exist(tmp_path: Path, home: Path) -> None:
    app = write_app(tmp_path, 'from mega import App\napp = App("shop")\napp.run()\n')
    program = run_to_end(app, "workr", home=home)
    expected = """
    mega: BadOption: there is no command 'workr'.
      Did you mean "--role worker"?
    """
    assert dedent(expected).lstrip() == program.errors
    assert 2 == program.code


def test_mistake_9_a_closure_as_a_cpu_task(tmp_path: Path, home: Path) -> None:
    source = """
        from mega import App
        app = App("shop")
        def declare() -> None:
            @app.cpu_task()
            def double(number: int) -> int:
                return 2 * number
        declare()
    """
    program = run_to_end(write_app(tmp_path, source), home=home)
    assert "app.py:4 double" in program.errors
    assert 2 == program.code


def test_mistake_10_a_module_that_imports_the_main_file_finds_the_same_app(
    tmp_path: Path, home: Path
) -> None:
    write_app(
        tmp_path,
        """
        from app import app
        @app.job("email.send")
        async def send_email(to: str) -> str:
            return to
        @app.cpu_task()
        def double(number: int) -> int:
            return 2 * number
        """,
        "tasks.py",
    )
    source = """
        from mega import App
        app = App("shop")
        import tasks
        @app.schedule(every=0.2)
        async def use() -> None:
            job = await tasks.send_email.enqueue("ada")
            print(await job.result(), await tasks.double.run(21), flush=True)
        app.run()
    """
    program_ends_after(tmp_path, home, source, "ada 42")


def test_mistake_10_a_file_that_is_loaded_twice_is_refused(tmp_path: Path, home: Path) -> None:
    write_app(
        tmp_path,
        """
        import importlib.util, sys
        from mega import App
        app = App("shop")
        if __name__ == "__main__":
            spec = importlib.util.spec_from_file_location("other", __file__)
            sys.modules["other"] = other = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(other)
            app.run()
        """,
    )
    program = run_to_end(tmp_path / "app.py", home=home)
    expected = """
    mega: AppLoadedTwice: app.py was loaded twice, as 'other' and as '__main__', so each App \
holds a part of the handlers.
      Import it by one name, or run it as python -m other.
    """
    assert dedent(expected).lstrip() == program.errors
    assert 2 == program.code


def program_ends_after(tmp_path: Path, home: Path, source: str, line: str) -> None:
    """Run an app until it prints `line`, press Ctrl-C, and see that it ends well."""
    with Program(write_app(tmp_path, source), home=home) as program:
        program.wait_for(line)
        program.interrupt_group()
        assert 0 == program.wait()
