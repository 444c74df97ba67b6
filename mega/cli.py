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
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType, TracebackType
from typing import Any, NoReturn, Protocol

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
from mega.ops.log import log_to_console
from mega.handles import EnqueueOptions
from mega.options import Role, check_role
from mega.runtime.banner import screen
from mega.version import __version__

__all__ = ["Defaults", "run_app", "show_errors_plainly"]

logger = logging.getLogger("mega")

CRASHED, MISUSED, UNREACHED, INTERRUPTED = 1, 2, 3, 130
ROLES: tuple[Role, ...] = ("all", "worker", "scheduler", "web")


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """The arguments of `run`, which flags and the environment override."""

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
    """Run what the arguments ask for; an error ends the process with its exit code."""
    is_debugging = "--debug" in arguments
    try:
        _run(app, arguments, defaults)
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


def _run(app: Served, arguments: Sequence[str], defaults: Defaults) -> None:
    commands = {"enqueue": _enqueue}
    word = arguments[0] if arguments else ""
    if not word or word.startswith("-"):
        _serve(app, arguments, defaults)
    elif word in commands:
        commands[word](app, arguments[1:], defaults)
    else:
        raise BadOption(f"there is no command {word!r}.", hint=_hint_for_command(word, commands))


def _hint_for_command(word: str, commands: dict[str, Any]) -> str:
    hint = did_you_mean(word, [*commands, *ROLES])
    return hint.replace('"', '"--role ', 1) if any(f'"{role}"' in hint for role in ROLES) else hint


def _serve(app: Served, arguments: Sequence[str], defaults: Defaults) -> None:
    parser = _parser("")
    parser.add_argument("--role", metavar="ROLE", help="all (the default), worker or scheduler")
    parser.add_argument("--drain-timeout", type=float, metavar="S", help="seconds for the end")
    parser.add_argument("--check", action="store_true", help="show what is declared, and stop")
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    role = check_role(options.role or os.environ.get("MEGA_ROLE") or defaults.role or "all")
    _prepare(app, options, defaults)
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


def _enqueue(app: Served, arguments: Sequence[str], defaults: Defaults) -> None:
    parser = _parser("enqueue")
    parser.add_argument("subject", help="the subject of a job")
    parser.add_argument("payload", nargs="?", default="null", help="its payload, as JSON")
    parser.add_argument("--delay", type=float, metavar="S", help="seconds before the first run")
    parser.add_argument("--wait", action="store_true", help="wait for the end, show the result")
    options = parser.parse_args(arguments)
    _prepare(app, options, defaults)
    spec = app.registry.jobs.get(options.subject)
    if spec is None:
        hint = did_you_mean(options.subject, app.registry.jobs)
        raise BadOption(f'this app has no job "{options.subject}".', hint=hint)
    try:
        payload = spec.codec.decode(options.payload.encode())
    except PayloadInvalid as error:
        raise BadOption(str(error)) from None

    async def enqueue() -> None:
        async with app:
            job = await app.enqueue(options.subject, payload, delay=options.delay)
            _say(f"{job.subject} {job.id} is stored", sys.stdout)
            if options.wait:
                _say(json.dumps(await job.result(), default=str), sys.stdout)

    anyio.run(enqueue, backend=defaults.backend)


def _parser(command: str) -> Parser:
    program = f"python {os.path.basename(sys.argv[0])} {command}".strip()
    parser = Parser(prog=program, allow_abbrev=False)
    parser.add_argument("--broker", metavar="URL", help="nats://…, embedded: or memory:")
    parser.add_argument("--debug", action="store_true", help="show tracebacks and debug lines")
    return parser


def _prepare(app: Served, options: argparse.Namespace, defaults: Defaults) -> None:
    app.configure(broker=options.broker or os.environ.get("MEGA_BROKER") or defaults.broker)
    app.check(defaults.backend)
    log_to_console(is_debugging=options.debug)


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


def _say(text: str, stream: Any) -> None:
    stream.write(f"{text}\n")
    stream.flush()
