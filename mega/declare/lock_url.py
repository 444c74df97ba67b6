"""The URLs of `App(locks=...)`, taken apart: `redis://user:pass@a/0`, a list of them, `memory:`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from mega.declare.naming import check_name
from mega.errors import BadOption, did_you_mean
from mega.options import DEFAULT_LOCK
from mega.urls import LockUrl

__all__ = ["LockStores", "parse_locks"]

#: What `locks=` takes: a URL for each name, or the URLs of a Redlock's servers.
LockStores: TypeAlias = Mapping[str, str | Sequence[str]]

EXAMPLE = 'Write "redis://host:6379", a list of such URLs, or "memory:".'
DEFAULT_PORT = 6379
SCHEMES = ("redis", "rediss", "memory")
FEWEST_FOR_REDLOCK = 3
CHOICES = {
    "cluster": ("true", "false"),
    "ssl_check_hostname": ("true", "false"),
    "ssl_cert_reqs": ("required", "optional", "none"),
}
OPTIONS = (*CHOICES, "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def parse_locks(locks: LockStores | None) -> dict[str, tuple[LockUrl, ...]]:
    """Return the servers of each lock store. Raises: BadOption."""
    if locks is None:
        return {}
    if not isinstance(locks, Mapping):
        raise BadOption(
            f"locks={locks!r} is not a dict.", hint='Write locks={"main": "redis://host:6379"}.'
        )
    return {_name(name): _servers(urls) for name, urls in locks.items()}


def _name(name: str) -> str:
    if name == DEFAULT_LOCK:
        raise BadOption(
            f"a lock store can't be called {name!r}: that is the one of the broker.",
            hint='Write locks={"main": "redis://host:6379"}, and lock="main".',
        )
    return check_name(name, what="a lock store")


def _servers(urls: Any) -> tuple[LockUrl, ...]:
    if isinstance(urls, str):
        return (_parse(urls),)
    if not isinstance(urls, Sequence) or not urls:
        raise BadOption("a lock store has no URL.", hint=EXAMPLE)
    # One order in every process, whoever wrote the list: contenders meet on the first server.
    servers = tuple(sorted(map(_parse, urls), key=lambda server: server.text))
    if len(servers) > 1:
        _check_redlock(servers)
    return servers


def _check_redlock(servers: tuple[LockUrl, ...]) -> None:
    if any(server.kind == "memory" or server.is_cluster for server in servers):
        raise BadOption("a list of lock servers holds single Redis servers only.", hint=EXAMPLE)
    (text, count), *_ = Counter(_place(server) for server in servers).most_common()
    if count > 1:
        raise BadOption(f"the lock server {text} is listed twice, and would vote twice.")
    if len(servers) < FEWEST_FOR_REDLOCK:
        raise BadOption(
            "two lock servers are less than one: the majority of two is both.",
            hint="Name one server, or three or five that have nothing in common.",
        )


def _place(server: LockUrl) -> str:
    """Return the URL without the database: those of one server are no servers of their own."""
    return server.text.rpartition("/")[0]


def _parse(url: Any) -> LockUrl:
    if not isinstance(url, str) or ":" not in url:
        raise BadOption(f"{url!r} is not the URL of a lock store.", hint=EXAMPLE)
    scheme = url.split(":", 1)[0].lower()
    if scheme not in SCHEMES:
        hint = f"{did_you_mean(scheme, SCHEMES)} {EXAMPLE}"
        raise BadOption(f"the URL of a lock store starts with {scheme!r}.", hint=hint)
    if scheme == "memory":
        return LockUrl(text="memory:", kind="memory")
    return _redis(url)


def _redis(url: str) -> LockUrl:
    if "," in url.rpartition("@")[2]:
        raise BadOption(
            "the URL of a lock store names several servers.",
            hint='Write a list of URLs: ["redis://a", "redis://b", "redis://c"].',
        )
    if any(sign in url.rpartition("@")[0] for sign in "?#"):
        hint = 'Write "?" as "%3F" there, and "#" as "%23".'
        raise BadOption('the login in the URL of a lock store holds a "?" or "#".', hint=hint)
    parts = urlsplit(url)
    options = _options(parts.query)
    if parts.scheme == "redis" and any(name.startswith("ssl_") for name in options):
        raise BadOption("the URL of a lock store has options for TLS.", hint='Write "rediss://".')
    is_cluster = options.pop("cluster", "") == "true"
    text = f"{parts.scheme}://{_address(parts)}/{_database(parts, is_cluster=is_cluster)}"
    address = parts._replace(query=urlencode(options)).geturl()
    return LockUrl(text=text, kind="redis", address=address, is_cluster=is_cluster)


def _address(parts: SplitResult) -> str:
    try:
        host, port = parts.hostname, parts.port or DEFAULT_PORT
    except ValueError:
        host, port = None, 0
    if not host:
        # What stands there may be a login whose host was forgotten, so it isn't shown.
        raise BadOption("the URL of a lock store has no valid host and port.", hint=EXAMPLE)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _database(parts: SplitResult, *, is_cluster: bool) -> int:
    database = parts.path.strip("/") or "0"
    if not (database.isascii() and database.isdigit()) or parts.fragment:
        raise BadOption(
            "the URL of a lock store ends in something else than the number of a database.",
            hint='Write "redis://host:6379/0".',
        )
    if is_cluster and int(database):
        raise BadOption(f"a Redis cluster has no database {database}, only 0.")
    return int(database)


def _options(query: str) -> dict[str, str]:
    options = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS:
            hint = did_you_mean(name, OPTIONS)
            raise BadOption(f"the URL of a lock store has no option {name!r}.", hint=hint)
        choices = CHOICES.get(name, (value,))
        if value not in choices:
            raise BadOption(
                f"{name}={value} in the URL of a lock store is none of {', '.join(choices)}."
            )
        options[name] = value
    return options
