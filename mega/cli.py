"""The command line of `app.run()` and of `mega`.

It is handed an app and never imports one.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn, Protocol, TypeAlias

import anyio
from typing_extensions import Unpack

from mega.declare.registry import Registry
from mega.errors import (
    BadOption,
    JobError,
    PayloadInvalid,
    did_you_mean,
)
from mega.handles import EnqueueOptions, Job
from mega.ops.log import log_to_console
from mega.ops.terminal import CRASHED, plain_errors, say
from mega.options import ROLES, Role, check_role, to_seconds
from mega.runtime.banner import screen, warn_of_nothing
from mega.runtime.scheduler import warn_of_host_zone
from mega.urls import BrokerUrl
from mega.version import __version__
from mega.wire.payload import Codec

__all__ = ["Defaults", "run_app", "run_tool"]

logger = logging.getLogger("mega")

THREADS_END_WITHIN = 1.0
EPILOG = "An app's own file serves and knows these commands too: python app.py --help"


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """The arguments of `run`, which flags and the environment override.

    `has_file` is false for `mega`, which has no app's file beside which a server could live.
    """

    has_file: bool = True
    role: Role | None
    broker: str | None
    backend: str
    drain_timeout: float
    max_jobs: int | None = None


class Served(Protocol):
    """What the command line needs of an app."""

    name: str
    registry: Registry

    @property
    def broker_url(self) -> BrokerUrl: ...
    @property
    def broker_line(self) -> str: ...
    def use_broker(self, url: str) -> None: ...
    def check(self) -> None: ...
    def serve(
        self,
        *,
        role: Role,
        drain_timeout: float,
        max_jobs: int | None,
        on_ready: Callable[[], None],
    ) -> Coroutine[Any, Any, None]: ...
    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, *exc_info: Any) -> None: ...
    async def enqueue(
        self, job: str, payload: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Any: ...


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are ours, in form and exit code."""

    def error(self, message: str) -> NoReturn:
        unknown, hint = message.partition("unrecognized arguments: ")[2], ""
        if unknown:
            flags = [flag for action in self._actions for flag in action.option_strings]
            hint = did_you_mean(unknown.split()[0].split("=")[0], flags)
        raise BadOption(f"{message}.", hint=hint or f"{self.prog} --help lists what there is.")


def run_app(app: Served, arguments: Sequence[str], defaults: Defaults) -> None:
    """Run what the arguments of an app's file ask for.

    An error ends the process with its exit code.
    """
    with plain_errors(arguments):
        word = arguments[0] if arguments else ""
        if not word or word.startswith("-"):
            _serve(app, arguments, defaults)
        else:
            _find_command(word, roles=ROLES)(app, arguments[1:], defaults)


def run_tool(app: Served, arguments: Sequence[str], defaults: Defaults) -> None:
    """Run a command of `mega`, which needs no app's file."""
    with plain_errors(arguments):
        parser = Parser(prog="mega", allow_abbrev=False, epilog=EPILOG)
        parser.add_argument("--version", action="version", version=f"mega {__version__}")
        parser.add_argument("command", help=f"one of: {', '.join(COMMANDS)}")
        parser.add_argument("arguments", nargs=argparse.REMAINDER)
        options = parser.parse_args(arguments)
        _find_command(options.command)(app, options.arguments, defaults)


def _find_command(word: str, *, roles: Sequence[str] = ()) -> Command:
    if word in COMMANDS:
        return COMMANDS[word]
    hint = did_you_mean(word, [*COMMANDS, *roles])
    if any(f'"{role}"' in hint for role in roles):
        hint = hint.replace('"', '"--role ', 1)
    raise BadOption(f"there is no command {word!r}.", hint=hint)


def _serve(app: Served, arguments: Sequence[str], defaults: Defaults) -> None:
    parser = _parser("")
    parser.epilog = f"Commands: {', '.join(COMMANDS)}. COMMAND --help tells more."
    parser.add_argument(
        "--role", metavar="ROLE", help="all (the default), worker, scheduler or web"
    )
    parser.add_argument("--drain-timeout", type=float, metavar="S", help="seconds for the end")
    parser.add_argument("--max-jobs", type=int, metavar="N", help="runs at once, of all jobs")
    parser.add_argument("--check", action="store_true", help="show what is declared, and stop")
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    role = check_role(options.role or os.environ.get("MEGA_ROLE") or defaults.role or "all")
    _prepare(app, options, defaults, logging.INFO)
    if options.check:
        say(_screen(app, role), sys.stdout)
        warn_of_nothing(app.registry, role)
        warn_of_host_zone(app.registry.schedules_for(role))
        return
    given = options.drain_timeout
    timeout = defaults.drain_timeout if given is None else given
    serve = functools.partial(
        app.serve,
        role=role,
        drain_timeout=to_seconds(timeout, option="--drain-timeout"),
        max_jobs=_max_jobs(options.max_jobs, defaults.max_jobs),
        on_ready=lambda: _say_ready(app, role, begun),
    )
    try:
        anyio.run(serve, backend=defaults.backend)
    except Exception as error:
        _leave_stuck_threads(error)
        raise
    _leave_stuck_threads(None)


def _max_jobs(flag: int | None, default: int | None) -> int | None:
    """Return the limit of the flag, else of MEGA_MAX_JOBS, else the declared one."""
    named = os.environ.get("MEGA_MAX_JOBS")
    if flag is None and named:
        try:
            flag = int(named)
        except ValueError:
            raise BadOption(f"MEGA_MAX_JOBS={named!r} is not a whole number.") from None
    return default if flag is None else flag


def _leave_stuck_threads(error: Exception | None) -> None:
    """End the process although handlers still hold threads; their jobs were given back."""
    main = threading.main_thread()
    threads = [t for t in threading.enumerate() if t is not main and not t.daemon]
    give_up_at = time.monotonic() + THREADS_END_WITHIN
    for thread in threads:
        thread.join(max(0.0, give_up_at - time.monotonic()))
    stuck = [thread for thread in threads if thread.is_alive()]
    if stuck and threading.current_thread() is main:
        logger.warning("%d threads of handlers did not end in time and are left", len(stuck))
        if error is not None:
            sys.excepthook(type(error), error, error.__traceback__)
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0 if error is None else CRASHED)


def _enqueue(app: Served, arguments: Sequence[str], defaults: Defaults) -> None:
    parser = _parser("enqueue")
    parser.add_argument("subject", help="the subject of a job")
    parser.add_argument("payload", nargs="?", default="null", help="its payload, as JSON")
    parser.add_argument("--delay", type=float, metavar="S", help="seconds before the first run")
    parser.add_argument("--wait", action="store_true", help="wait for the end, show the result")
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds to wait at most")
    options = parser.parse_args(arguments)
    _prepare(app, options, defaults)
    payload = _parse_payload(app, options.subject, options.payload)
    if app.broker_url.kind == "memory":
        raise BadOption(
            "a broker in memory ends with this command, and nobody would get the job.",
            hint="Name another one (--broker, MEGA_BROKER), or enqueue in the app's own process.",
        )

    async def enqueue() -> None:
        async with app:
            job = await app.enqueue(options.subject, payload, delay=options.delay)
            say(f"{job.subject} {job.id} is stored", sys.stdout)
            if options.wait:
                say(await _result(job, options.timeout), sys.stdout)

    anyio.run(enqueue, backend=defaults.backend)


async def _result(job: Job[Any], timeout: float | None) -> str:
    """Return the result as the JSON that is kept."""
    try:
        await job.result(timeout=timeout)
    except TimeoutError as error:
        hint = "It goes on by itself, or waits for a worker."
        raise JobError(str(error), hint=hint) from None
    return bytes((await job.state()).result).decode()


def _parse_payload(app: Served, subject: str, text: str) -> Any:
    try:
        json.loads(text)
    except ValueError as error:
        hint = "Quote the JSON for the shell: '\"text\"'."
        raise BadOption(f"the payload {text!r} is not JSON: {error}.", hint=hint) from None
    spec, jobs = app.registry.jobs.get(subject), app.registry.jobs
    if spec is None and jobs:
        raise BadOption(f'this app has no job "{subject}".', hint=did_you_mean(subject, jobs))
    codec: Codec[Any] = spec.codec if spec else Codec(Any, job=subject)
    try:
        return codec.decode(text.encode())
    except PayloadInvalid as error:
        raise BadOption(str(error)) from None


def _parser(command: str) -> Parser:
    file = os.path.basename(sys.argv[0])
    program = f"{'python ' * file.endswith('.py')}{file} {command}".strip()
    parser = Parser(prog=program, allow_abbrev=False)
    parser.add_argument("--broker", metavar="URL", help="nats://…, embedded: or memory:")
    parser.add_argument("--debug", action="store_true", help="show tracebacks and debug lines")
    return parser


def _prepare(
    app: Served, options: argparse.Namespace, defaults: Defaults, level: int = logging.WARNING
) -> None:
    broker = options.broker or os.environ.get("MEGA_BROKER") or defaults.broker
    if broker is None and not defaults.has_file:
        raise BadOption(
            "no broker is named, and there is no .mega/ in this folder.",
            hint="Add --broker URL, or run it in the folder of the app's file.",
        )
    if broker is not None:
        app.use_broker(broker)
    app.check()
    level = logging.DEBUG if options.debug else level
    log_to_console(level)


def _screen(app: Served, role: Role) -> str:
    title = f"mega {__version__} · {app.name} · role {role} · pid {os.getpid()}"
    now = datetime.now(UTC)
    return screen(app.registry, title=title, broker=app.broker_line, role=role, now=now)


def _say_ready(app: Served, role: Role, begun: float) -> None:
    say(_screen(app, role), sys.stdout)
    seconds = time.monotonic() - begun
    say(f"ready in {seconds:.1f} s – Ctrl-C stops, --help lists roles", sys.stdout)


Command: TypeAlias = Callable[[Served, Sequence[str], Defaults], None]
COMMANDS: dict[str, Command] = {"enqueue": _enqueue}
