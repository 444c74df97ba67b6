"""Options as frozen records that are checked when they are made.

Durations are seconds (`float`) or `timedelta`, and are kept as seconds.
"""

from __future__ import annotations

import inspect
import math
import reprlib
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from random import random
from typing import Any, Literal, TypeAlias, cast, get_args

from mega.errors import BadOption, UnknownLock, UnknownRole, did_you_mean

__all__ = [
    "DEFAULT_LOCK",
    "ROLES",
    "SHORTEST",
    "Backoff",
    "CatchUp",
    "DeadLetter",
    "JobOptions",
    "Lock",
    "LockErrorPolicy",
    "Overlap",
    "RetryOn",
    "Role",
    "ScheduleOptions",
    "Scope",
    "Seconds",
    "check_choice",
    "check_count",
    "check_lock",
    "check_role",
    "kept_seconds",
    "refuse_unknown",
    "to_backoff",
    "to_lock",
    "to_retry_on",
    "to_seconds",
    "to_timeout",
]

Seconds: TypeAlias = float | timedelta
RetryOn: TypeAlias = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]
Role = Literal["all", "worker", "scheduler", "web"]
CatchUp: TypeAlias = Literal["one", "skip", "all"]
Overlap: TypeAlias = Literal["skip", "allow", "queue"]
Scope: TypeAlias = Literal["cluster", "replica"]
LockErrorPolicy: TypeAlias = Literal["skip", "run"]

ROLES: tuple[Role, ...] = get_args(Role)
#: The lock store of the broker, which every app has.
DEFAULT_LOCK = "default"
SUSPICIOUS_TTL = 1000
MAX_KEY_LENGTH = 256
#: A limit of less than this, zero above all, can only be a mistake.
SHORTEST = 0.001


def to_seconds(value: Any, *, option: str, minimum: float = 0.0) -> float:
    """Return a duration as seconds. Raises: BadOption."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < minimum:
        raise BadOption(
            f"{option}={value!r} is not a duration of at least {minimum:g} s.",
            hint="Durations are seconds, such as 1.5, or a timedelta.",
        )
    return float(value)


def kept_seconds(value: Seconds) -> float:
    """Return a duration that an options record took in by `to_seconds`, and keeps as seconds."""
    assert not isinstance(value, timedelta)
    return value


def to_timeout(value: Any) -> float | None:
    """Return a `timeout` as seconds; None is no limit. Raises: BadOption."""
    return None if value is None else to_seconds(value, option="timeout", minimum=SHORTEST)


def check_count(value: Any, *, option: str, minimum: int = 0) -> int:
    """Return `value` if it is a whole number of at least `minimum`. Raises: BadOption."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise BadOption(f"{option}={value!r} is not a whole number of at least {minimum}.")
    return value


def is_key(value: Any) -> bool:
    """Whether `value` can be the key of a lock, in every store."""
    return isinstance(value, str) and 1 <= len(value) <= MAX_KEY_LENGTH and value.isprintable()


def check_choice(value: Any, kind: Any, *, option: str, hint: str = "") -> None:
    """Refuse what is none of the values of a Literal. Raises: BadOption."""
    choices = get_args(kind)
    if value not in choices:
        known = ", ".join(map(repr, choices))
        hint = did_you_mean(value, choices) if isinstance(value, str) else hint
        raise BadOption(f"{option}={value!r} is none of {known}.", hint=hint)


def refuse_unknown(options: Mapping[str, Any], known: Iterable[str], *, what: str) -> None:
    """Refuse the first of `options`, which `what` does not have. Raises: BadOption."""
    for name in options:
        raise BadOption(f"{what} has no option {name!r}.", hint=did_you_mean(name, known))


def check_role(role: str) -> Role:
    """Return `role` if there is such a role. Raises: UnknownRole."""
    for known in ROLES:
        if role == known:
            return known
    raise UnknownRole(f"there is no role {role!r}.", hint=did_you_mean(role, ROLES))


@dataclass(frozen=True)
class Backoff:
    """The wait before each retry: `initial`, then `factor` times the last one, at most `max`.

    With `jitter` the wait is drawn between half and the whole of that, so that jobs
    which failed together do not come back together.
    """

    initial: Seconds = 1.0
    max: Seconds = 30.0
    factor: float = 2.0
    jitter: bool = True

    def __post_init__(self) -> None:
        initial = to_seconds(self.initial, option="Backoff.initial")
        object.__setattr__(self, "initial", initial)
        object.__setattr__(self, "max", to_seconds(self.max, option="Backoff.max"))
        if not isinstance(self.factor, int | float) or not 1 <= self.factor < math.inf:
            raise BadOption(f"Backoff.factor={self.factor!r} is not a number of at least 1.")

    def delay(self, attempt: int, draw: Callable[[], float] = random) -> float:
        """Return the seconds to wait after the attempt of that 1-based number has failed."""
        initial, longest = kept_seconds(self.initial), kept_seconds(self.max)
        try:
            # A float overflows at once; an int would grow to gigabytes first.
            wait = min(longest, initial * float(self.factor) ** (attempt - 1))
        except OverflowError:
            wait = longest if initial else 0.0
        return wait * (0.5 + draw() / 2) if self.jitter else wait

    def longest(self, attempt: int) -> float:
        """Return the most seconds to wait after that attempt: those without any jitter."""
        return self.delay(attempt, draw=lambda: 1.0)


def to_backoff(value: Any) -> Backoff:
    """Return a Backoff; a bare duration is a constant wait. Raises: BadOption."""
    if isinstance(value, Backoff):
        return value
    constant = to_seconds(value, option="backoff")
    return Backoff(initial=constant, max=constant, factor=1, jitter=False)


def to_retry_on(value: Any) -> Callable[[Exception], bool]:
    """Return a function that says whether an error is retried. Raises: BadOption."""
    kinds = value if isinstance(value, tuple) else (value,)
    if kinds and all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        return lambda error: isinstance(error, kinds)
    if callable(value) and not isinstance(value, type) and not is_async(value):
        return cast("Callable[[Exception], bool]", value)
    raise BadOption(
        f"retry_on={value!r} doesn't say which errors are retried.",
        hint="Give it exception classes, such as (OSError, TimeoutError), or a plain function "
        "of the error that returns a bool.",
    )


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine, which as a bool is always true."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


@dataclass(frozen=True)
class Lock:
    """Keep runs of one schedule apart, also across processes.

    The lease lasts `ttl` seconds and is renewed while the run lasts, so `ttl` only says
    how long a dead holder keeps others out. `store` is a name of `App(locks=...)`, or the
    broker's own. `key` defaults to `mega:schedule:<name>`.
    """

    ttl: Seconds = 30.0
    store: str = DEFAULT_LOCK
    key: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.store, str):
            raise BadOption(f"Lock.store={self.store!r} is not the name of a lock store.")
        if self.key is not None and not is_key(self.key):
            raise BadOption(
                f"Lock.key={reprlib.repr(self.key)} can't be a key.",
                hint=f"A key is a text of 1 to {MAX_KEY_LENGTH} printable characters.",
            )
        ttl = to_seconds(self.ttl, option="Lock.ttl", minimum=1.0)
        if not isinstance(self.ttl, timedelta) and ttl >= SUSPICIOUS_TTL:
            warnings.warn(
                f"Lock(ttl={self.ttl!r}) is {ttl:g} seconds: were milliseconds meant? "
                "A timedelta says it without a doubt.",
                stacklevel=3,
            )
        object.__setattr__(self, "ttl", ttl)


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """What `@app.schedule` says beside the times and the lock; durations are kept as seconds."""

    jitter: Seconds = 0.0
    overlap: Overlap = "skip"
    catch_up: CatchUp = "one"
    grace: Seconds | None = None
    retries: int = 0
    scope: Scope = "cluster"
    on_lock_error: LockErrorPolicy = "skip"
    timeout: Seconds | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "jitter", to_seconds(self.jitter, option="jitter"))
        if self.grace is not None:
            object.__setattr__(self, "grace", to_seconds(self.grace, option="grace"))
        object.__setattr__(self, "timeout", to_timeout(self.timeout))
        check_count(self.retries, option="retries")
        check_choice(self.overlap, Overlap, option="overlap")
        check_choice(
            self.catch_up,
            CatchUp,
            option="catch_up",
            hint='"one" runs the latest missed tick, "all" each of them, "skip" none that is late.',
        )
        check_choice(self.scope, Scope, option="scope")
        check_choice(self.on_lock_error, LockErrorPolicy, option="on_lock_error")


def to_lock(value: bool | str | Lock | None, *, stores: Collection[str] | None) -> Lock | None:
    """Return the Lock that `lock=` stands for. Raises: BadOption, UnknownLock.

    `stores` None: which ones there are isn't known yet.
    """
    if value is None or value is False:
        return None
    lock = Lock() if value is True else Lock(store=value) if isinstance(value, str) else value
    if not isinstance(lock, Lock):
        raise BadOption(
            f"lock={value!r} is not True, the name of a lock store, or a Lock.",
            hint=f"Write Lock(ttl={value!r})."
            if isinstance(value, int | float | timedelta)
            else "",
        )
    return check_lock(lock, stores=stores)


def check_lock(lock: Lock, *, stores: Collection[str] | None, where: str = "") -> Lock:
    """Return the lock if its store is among them. Raises: UnknownLock."""
    if stores is not None and lock.store not in stores:
        raise UnknownLock(
            f"there is no lock store {lock.store!r}.",
            where=where,
            hint=f"{did_you_mean(lock.store, stores)} "
            'Others are declared with App(locks={"main": "redis://host:6379"}).',
        )
    return lock


@dataclass(frozen=True)
class DeadLetter:
    """How long dead letters are kept: `max_age` (0 = for ever) and at most `max_bytes`."""

    max_age: Seconds = timedelta(days=7)
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_age", to_seconds(self.max_age, option="DeadLetter.max_age"))
        if self.max_bytes is not None:
            check_count(self.max_bytes, option="DeadLetter.max_bytes", minimum=1)


def _every_error(error: Exception) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What a job declares beside its subject and handler."""

    retries: int = 3
    backoff: Backoff = Backoff()
    concurrency: int = 1
    per_worker: int | None = None
    timeout: float | None = None
    retry_on: Callable[[Exception], bool] = field(default=_every_error, compare=False)
    dead_letter: DeadLetter = DeadLetter()
    result_ttl: float = 3600.0
    track: bool = True

    def __post_init__(self) -> None:
        check_count(self.retries, option="retries")
        check_count(self.concurrency, option="concurrency", minimum=1)
        if self.per_worker is not None:
            check_count(self.per_worker, option="per_worker", minimum=1)
        if not isinstance(self.dead_letter, DeadLetter):
            raise BadOption(f"dead_letter={self.dead_letter!r} is not a DeadLetter.")

    @property
    def retry_delays(self) -> tuple[float, ...]:
        """The longest wait before each retry, in seconds."""
        return tuple(self.backoff.longest(attempt) for attempt in range(1, self.retries + 1))

    @property
    def slots(self) -> int:
        """How many jobs one worker runs at once."""
        return min(self.concurrency, self.per_worker or self.concurrency)
