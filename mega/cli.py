"""The command line of `app.run()`, and how errors look on a terminal.

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
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType, TracebackType
from typing import Any, NoReturn, Protocol, TypeAlias, get_args

import anyio
from typing_extensions import Unpack

from mega.declare.registry import Registry
from mega.errors import (
    BadOption,
    BrokerError,
    DeclarationError,
    MegaError,
    PayloadInvalid,
    did_you_mean,
    only_mega_error,
    report,
)
from mega.handles import EnqueueOptions
from mega.ops.log import log_to_console
from mega.options import Role, check_role
from mega.runtime.banner import screen
from mega.version import __version__
from mega.wire.payload import Codec

__all__ = ["Defaults", "run_app", "run_tool", "show_errors_plainly"]

logger = logging.getLogger("mega")

CRASHED, MISUSED, UNREACHED, INTERRUPTED = 1, 2, 3, 130
ROLES: tuple[Role, ...] = get_args(Role)
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


class Served(Protocol):
    """What the command line needs of an app."""

    name: str
    registry: Registry

    @property
    def broker_line(self) -> str: ...
    def configure(self, *, broker: str | None) -> None: ...
    def check(self, backend: Any) -> None: ...
    def serve(
        self, *, role: Role, drain_timeout: float, on_ready: Callable[[], None]
    ) -> Coroutine[Any, Any, None]: ...
    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, *exc_info: Any) -> bool | None: ...
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
    with _plain_errors(arguments):
        word = arguments[0] if arguments else ""
        if not word or word.startswith("-"):
            _serve(app, arguments, defaults)
        else:
            _find_command(word, roles=ROLES)(app, arguments[1:], defaults)


def run_tool(app: Served, arguments: Sequence[str], defaults: Defaults) -> None:
    """Run a command of `mega`, which needs no app's file."""
    with _plain_errors(arguments):
        parser = Parser(prog="mega", allow_abbrev=False, epilog=EPILOG)
        parser.add_argument("--version", action="version", version=f"mega {__version__}")
        parser.add_argument("command", help=f"one of: {', '.join(COMMANDS)}")
        parser.add_argument("arguments", nargs=argparse.REMAINDER)
        options = parser.parse_args(arguments)
        _find_command(options.command)(app, options.arguments, defaults)


@contextmanager
def _plain_errors(arguments: Sequence[str]) -> Iterator[None]:
    is_debugging = "--debug" in arguments
    try:
        yield
    except BaseException as error:
        known = only_mega_error(error)
        if known is not None and not is_debugging:
            _say(report(known), sys.stderr)
            sys.exit(exit_code(known))
        if isinstance(error, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        raise


def exit_code(error: MegaError) -> int:
    """Return 2 for a mistake in a declaration or command, 3 for a broker never reached, else 1."""
    if isinstance(error, DeclarationError):
        return MISUSED
    return UNREACHED if isinstance(error, BrokerError) else CRASHED


def show_errors_plainly(frame: FrameType) -> None:
    """Let a mega error that ends the main file show as a few lines, without a traceback.

    A mistake on a decorator line never reaches `run`; this is its way to the terminal.
    """
    if frame.f_globals.get("__name__") != "__main__" or "--debug" in sys.argv:
        return
    before = sys.excepthook
    if getattr(before, "is_mega", False):
        return

    @functools.wraps(before)
    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        known = only_mega_error(error)
        if known is None:
            before(kind, error, traceback)
            return
        _say(report(known), sys.stderr)
        # The interpreter takes the exit code from a SystemExit that leaves the hook.
        raise SystemExit(exit_code(known))

    hook.is_mega = True  # type: ignore[attr-defined]
    sys.excepthook = hook


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
    parser.add_argument("--role", metavar="ROLE", help="all (the default), worker or scheduler")
    parser.add_argument("--drain-timeout", type=float, metavar="S", help="seconds for the end")
    parser.add_argument("--check", action="store_true", help="show what is declared, and stop")
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    role = check_role(options.role or os.environ.get("MEGA_ROLE") or defaults.role or "all")
    _prepare(app, options, defaults, logging.INFO)
    if options.check:
        _say(_screen(app, role), sys.stdout)
        return
    timeout = options.drain_timeout
    serve = functools.partial(
        app.serve,
        role=role,
        drain_timeout=defaults.drain_timeout if timeout is None else timeout,
        on_ready=lambda: _say_ready(app, role, begun),
    )
    anyio.run(serve, backend=defaults.backend)
    _leave_stuck_threads()


def _leave_stuck_threads() -> None:
    """End the process although handlers still hold threads; their jobs were given back."""
    main = threading.main_thread()
    stuck = [t for t in threading.enumerate() if t is not main and not t.daemon]
    if stuck and threading.current_thread() is main:
        logger.warning("%d threads of handlers did not end in time and are left", len(stuck))
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


def _enqueue(app: Served, arguments: Sequence[str], defaults: Defaults) -> None:
    parser = _parser("enqueue")
    parser.add_argument("subject", help="the subject of a job")
    parser.add_argument("payload", nargs="?", default="null", help="its payload, as JSON")
    parser.add_argument("--delay", type=float, metavar="S", help="seconds before the first run")
    parser.add_argument("--wait", action="store_true", help="wait for the end, show the result")
    options = parser.parse_args(arguments)
    _prepare(app, options, defaults)
    payload = _parse_payload(app, options.subject, options.payload)

    async def enqueue() -> None:
        async with app:
            job = await app.enqueue(options.subject, payload, delay=options.delay)
            _say(f"{job.subject} {job.id} is stored", sys.stdout)
            if options.wait:
                _say(json.dumps(await job.result(), default=str), sys.stdout)

    anyio.run(enqueue, backend=defaults.backend)


def _parse_payload(app: Served, subject: str, text: str) -> Any:
    spec, jobs = app.registry.jobs.get(subject), app.registry.jobs
    if spec is None and jobs:
        raise BadOption(f'this app has no job "{subject}".', hint=did_you_mean(subject, jobs))
    codec: Codec[Any] = spec.codec if spec else Codec(Any, job=subject)
    try:
        return codec.decode(text.encode())
    except PayloadInvalid as error:
        raise BadOption(str(error), hint="Quote the JSON for the shell: '\"text\"'.") from None


def _parser(command: str) -> Parser:
    program = f"python {os.path.basename(sys.argv[0])} {command}".strip()
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
    app.configure(broker=broker)
    app.check(defaults.backend)
    level = logging.DEBUG if options.debug else level
    log_to_console(level)


def _screen(app: Served, role: Role) -> str:
    title = f"mega {__version__} · {app.name} · role {role} · pid {os.getpid()}"
    now = datetime.now(UTC)
    return screen(app.registry, title=title, broker=app.broker_line, role=role, now=now)


def _say_ready(app: Served, role: Role, begun: float) -> None:
    _say(_screen(app, role), sys.stdout)
    seconds = time.monotonic() - begun
    _say(f"ready in {seconds:.1f} s – Ctrl-C stops, --help lists roles", sys.stdout)
    zones = {spec.timezone for spec in app.registry.schedules.values() if spec.is_host_zone}
    if zones and role in ("all", "scheduler"):
        logger.warning("schedules without timezone= run in the host's zone, %s", zones.pop())


Command: TypeAlias = Callable[[Served, Sequence[str], Defaults], None]
COMMANDS: dict[str, Command] = {"enqueue": _enqueue}


def _say(text: str, stream: Any) -> None:
    stream.write(f"{text}\n")
    stream.flush()
