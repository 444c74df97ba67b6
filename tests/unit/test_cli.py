"""The command line: what wins over what, what is refused, and with which exit code."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import anyio
import pytest

from mega import App, Group
from mega.__main__ import main
from mega.errors import LockError, UnknownRole
from tests.nats_server import NatsServer


def render() -> None: ...


@pytest.fixture(autouse=True)
def _plain_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MEGA_ROLE", "MEGA_BROKER", "MEGA_HOME", "MEGA_MAX_JOBS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["app.py"])
    monkeypatch.chdir(tmp_path)
    # It ends the process while a thread is alive, and pytest's process has threads of its own.
    monkeypatch.setattr("mega.cli._leave_stuck_threads", lambda error: None)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The URL of a real server."""
    with NatsServer() as server:
        yield f"nats://127.0.0.1:{server.port}"


def shop() -> App:
    app = App("shop", broker="memory:")

    @app.job("email.send")
    async def send_email(to: str) -> None: ...

    @app.job("email.count")
    async def count_emails() -> int:
        return 3

    return app


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def screen(app: App, capsys: pytest.CaptureFixture[str], *argv: str, **arguments: str) -> str:
    app.run(argv=["--check", *argv], **arguments)  # type: ignore[arg-type]
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], app: App, *argv: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as ended:
        app.run(argv=argv)
    output = capsys.readouterr()
    assert "" == output.out
    assert len(output.err.splitlines()) <= 6
    return ended.value.code, output.err


class TestPrecedence:
    """A flag wins over the environment, and that over the argument of `run`."""

    @pytest.mark.parametrize(
        ("flag", "environment", "argument", "role"),
        [
            ("worker", "scheduler", "web", "worker"),
            (None, "scheduler", "web", "scheduler"),
            (None, "", "web", "web"),
            (None, None, "web", "web"),
            (None, None, None, "all"),
        ],
    )
    def test_of_the_role(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        flag: str | None,
        environment: str | None,
        argument: str | None,
        role: str,
    ) -> None:
        if environment is not None:
            monkeypatch.setenv("MEGA_ROLE", environment)
        flags = ["--role", flag] if flag else []
        arguments = {"role": argument} if argument else {}
        assert f" · role {role} · " in screen(shop(), capsys, *flags, **arguments)

    @pytest.mark.parametrize(
        ("flag", "environment", "argument", "host"),
        [
            ("nats://a", "nats://b", "nats://c", "nats://a:4222"),
            (None, "nats://b", "nats://c", "nats://b:4222"),
            (None, None, "nats://c", "nats://c:4222"),
            (None, None, None, "memory:"),
        ],
    )
    def test_of_the_broker(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        flag: str | None,
        environment: str | None,
        argument: str | None,
        host: str,
    ) -> None:
        if environment is not None:
            monkeypatch.setenv("MEGA_BROKER", environment)
        flags = [f"--broker={flag}"] if flag else []
        arguments = {"broker": argument} if argument else {}
        assert f"broker    {host}" in screen(shop(), capsys, *flags, **arguments)

    def test_of_the_drain_timeout(self) -> None:
        app, ended = shop(), []

        @app.job("wait")
        async def wait() -> None:
            stop()
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(1)

        app.on_startup(wait.enqueue)
        app.run(argv=["--drain-timeout", "0"], drain_timeout=1e6)
        assert [1] == ended

    @pytest.mark.parametrize(
        ("flag", "environment", "argument", "most"),
        [(1, "2", 3, 1), (None, "2", 3, 2), (None, "", 3, 3), (None, None, 3, 3)],
    )
    def test_of_the_limit_of_runs(
        self,
        monkeypatch: pytest.MonkeyPatch,
        flag: int | None,
        environment: str | None,
        argument: int | None,
        most: int,
    ) -> None:
        app, at_once, ended = shop(), [0], []

        @app.job("wait", concurrency=10)
        async def wait() -> None:
            at_once.append(at_once[-1] + 1)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            at_once.append(at_once[-1] - 1)
            ended.append(1)
            if len(ended) == 10:
                stop()

        @app.on_startup
        async def begin() -> None:
            for _ in range(10):
                await wait.enqueue()

        if environment is not None:
            monkeypatch.setenv("MEGA_MAX_JOBS", environment)
        flags = [f"--max-jobs={flag}"] if flag else []
        app.run(argv=flags, max_jobs=argument)
        assert (most, 10) == (max(at_once), len(ended))

    def test_without_arguments_those_of_the_process_count(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["app.py", "--check", "--role", "worker"])
        shop().run()
        assert "role worker" in capsys.readouterr().out


class TestServing:
    """`app.run()` serves until a signal."""

    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_it_shows_its_screen_runs_and_returns_after_sigterm(
        self, capsys: pytest.CaptureFixture[str], backend: Literal["asyncio", "trio"]
    ) -> None:
        app, order = shop(), []

        @app.job("work")
        async def work() -> None:
            order.append("job")
            stop()

        @app.on_startup
        async def begin() -> None:
            order.append("startup")
            await work.enqueue()

        app.on_shutdown(lambda: order.append("shutdown"))
        app.run(argv=[], backend=backend)
        lines = capsys.readouterr().out.splitlines()
        assert ["startup", "job", "shutdown"] == order
        assert lines[0].startswith("mega ")
        assert lines[-1].startswith("ready in ")
        assert lines[-1].endswith(" s – Ctrl-C stops, --help lists roles")

    def test_a_host_zone_is_warned_of_once(self, caplog: pytest.LogCaptureFixture) -> None:
        app = App("shop", broker="memory:")

        @app.schedule("* * * * * *")
        async def often() -> None:
            stop()

        @app.schedule("0 3 * * *")
        async def nightly() -> None: ...

        app.run(argv=[])
        warnings = [line for line in caplog.messages if "run in the host's zone" in line]
        assert 1 == len(warnings)
        assert str(often.spec.timezone) in warnings[0]

    @pytest.mark.parametrize("argv", [[], ["--check"]])
    def test_an_app_that_declares_nothing_says_so(
        self, caplog: pytest.LogCaptureFixture, argv: list[str]
    ) -> None:
        app = App("shop", broker="memory:")
        app.on_startup(stop)
        app.run(argv=argv)
        assert 1 == caplog.text.count("no job or schedule is declared")

    def test_a_worker_runs_no_schedule(self) -> None:
        app, ran = App("shop", broker="memory:"), []

        @app.schedule(every=0.001)
        async def often() -> None:
            ran.append(1)

        @app.job("wait")
        async def wait() -> None:
            await anyio.sleep(0.05)
            stop()

        app.on_startup(wait.enqueue)
        app.run(argv=["--role", "worker"])
        assert [] == ran


class TestRefusals:
    """A mistake ends the process with 2, in at most six lines, before any I/O."""

    @pytest.mark.parametrize(
        ("argv", "message", "hint"),
        [
            (["workr"], "there is no command 'workr'", 'Did you mean "--role worker"?'),
            (["worker"], "there is no command 'worker'", 'Did you mean "--role worker"?'),
            (["enqeue"], "there is no command 'enqeue'", 'Did you mean "enqueue"?'),
            (["zzz"], "there is no command 'zzz'", "Known: "),
            (["--role", "workr"], "there is no role 'workr'", 'Did you mean "worker"?'),
            (["--rol", "worker"], "unrecognized arguments: --rol", 'Did you mean "--role"?'),
            (["--chekc"], "unrecognized arguments: --chekc", 'Did you mean "--check"?'),
            (["--role"], "argument --role: expected one argument", "--help lists"),
            (["--check", "worker"], "unrecognized arguments: worker", ""),
            (["--drain-timeout", "soon"], "--drain-timeout", "--help lists"),
            (["--max-jobs", "0"], "max_jobs=0 is not a whole number", ""),
            (["--broker", "redis://a"], "starts with 'redis'", "nats://host:4222"),
            (["enqueue"], "the following arguments are required: subject", "enqueue --help"),
            (["enqueue", "email.sent"], 'no job "email.sent"', 'Did you mean "email.send"?'),
            (["enqueue", "email.send", "5"], "takes str", ""),
            (["enqueue", "email.send", "ada"], "is not JSON", "Quote the JSON"),
            (["enqueue", "email.count", "5"], "takes no payload", ""),
            (["enqueue", "email.count", "--dely", "5"], "--dely", 'Did you mean "--delay"?'),
        ],
        ids=" ".join,
    )
    def test_a_wrong_argument(
        self, capsys: pytest.CaptureFixture[str], argv: list[str], message: str, hint: str
    ) -> None:
        code, text = refusal(capsys, shop(), *argv)
        assert 2 == code
        assert text.startswith("mega: ")
        assert message in text
        assert hint in text

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("MEGA_ROLE", "workr", "there is no role 'workr'"),
            ("MEGA_BROKER", "nope", "'nope' is not a broker URL"),
            ("MEGA_MAX_JOBS", "many", "MEGA_MAX_JOBS='many' is not a whole number"),
        ],
    )
    def test_a_wrong_environment(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        value: str,
        message: str,
    ) -> None:
        monkeypatch.setenv(name, value)
        code, text = refusal(capsys, shop())
        assert (2, True) == (code, message in text)

    def test_a_declaration_that_only_the_whole_shows(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        app = shop()
        app.cpu_task(pool="reports")(render)
        code, text = refusal(capsys, app, "--check")
        assert 2 == code
        assert 'the pool "reports", which is not declared' in text

    def test_a_schedule_over_a_job_that_no_app_includes(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        app, group = shop(), Group()

        @group.job("report.send")
        async def send_report() -> None: ...

        app.schedule(every=60)(send_report)
        code, text = refusal(capsys, app, "--check")
        assert 2 == code
        assert "app.include(group)" in text

    def test_nats_on_trio(self, capsys: pytest.CaptureFixture[str]) -> None:
        app = shop()
        with pytest.raises(SystemExit) as ended:
            app.run(argv=["--broker", "nats://a"], backend="trio")
        assert 2 == ended.value.code
        assert "runs on asyncio only" in capsys.readouterr().err

    def test_debug_shows_the_error_itself(self) -> None:
        with pytest.raises(UnknownRole):
            shop().run(argv=["--debug", "--role", "workr"])


class TestExitCodes:
    """0 is an orderly end, 1 a crash, 3 a broker that was never reached."""

    @pytest.mark.parametrize("argv", [["--help"], ["enqueue", "--help"]])
    def test_help_is_an_orderly_end(
        self, capsys: pytest.CaptureFixture[str], argv: list[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            shop().run(argv=argv)
        assert 0 == ended.value.code
        assert "--broker" in capsys.readouterr().out

    def test_another_error_of_ours_is_a_crash(self, capsys: pytest.CaptureFixture[str]) -> None:
        app = shop()

        @app.on_startup
        def fail() -> None:
            raise LockError("the archive is locked.")

        code, text = refusal(capsys, app)
        assert (1, "mega: LockError: the archive is locked.\n") == (code, text)

    def test_an_error_of_the_user_is_shown_as_python_shows_it(self) -> None:
        app = shop()

        @app.on_startup
        def fail() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            app.run(argv=[])

    def test_a_broker_that_is_not_there_is_three(self, capsys: pytest.CaptureFixture[str]) -> None:
        url = "nats://127.0.0.1:1?connect_timeout=0.2"
        code, text = refusal(capsys, shop(), "--broker", url)
        assert 3 == code
        assert "127.0.0.1:1" in text
        gc.collect()  # what was left open would be told now


class TestEnqueue:
    """`app.py enqueue SUBJECT JSON` stores one job."""

    @pytest.mark.parametrize(
        "argv",
        [
            ["email.send", '"ada"'],
            ["email.count"],
            ["email.count", "null"],
            ["email.send", '"ada"', "--delay", "60"],
        ],
        ids=" ".join,
    )
    def test_it_tells_the_id(
        self, capsys: pytest.CaptureFixture[str], url: str, argv: list[str]
    ) -> None:
        shop().run(argv=["enqueue", *argv, "--broker", url])
        words = capsys.readouterr().out.split()
        assert [argv[0], "is", "stored"] == [words[0], *words[2:]]

    def test_the_payload_arrives(self, url: str) -> None:
        app, told = shop(), []
        app.on("job.dispatch")(lambda event: told.append(event.subject))
        app.run(argv=["enqueue", "email.send", '"ada"', "--broker", url])
        assert ["email.send"] == told

    def test_a_broker_in_memory_would_lose_the_job(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        code, text = refusal(capsys, shop(), "enqueue", "email.send", '"ada"')
        assert 2 == code
        assert "nobody would get the job" in text
        assert "--broker" in text


class TestTool:
    """The command `mega`, which needs no app's file."""

    def run(self, monkeypatch: pytest.MonkeyPatch, *argv: str) -> object:
        monkeypatch.setattr(sys, "argv", ["mega", *argv])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    def test_it_tells_its_version(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert 0 == self.run(monkeypatch, "--version")
        assert capsys.readouterr().out.startswith("mega 0.")

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["enqeue"], 'Did you mean "enqueue"?'),
            ([], "the following arguments are required: command"),
            (["enqueue", "email.send"], "no broker is named"),
            (["enqueue", "email.send", "ada", "--broker", "memory:"], "Quote the JSON"),
            (["enqueue", "email.send", "--broker", "memory:"], "nobody would get the job"),
        ],
        ids=" ".join,
    )
    def test_a_mistake_ends_with_two(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        argv: list[str],
        message: str,
    ) -> None:
        assert 2 == self.run(monkeypatch, *argv)
        assert message in capsys.readouterr().err
