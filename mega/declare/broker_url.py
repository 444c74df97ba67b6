"""Broker URLs, taken apart: `nats://user:pass@a,b?replicas=3`, `embedded:DIR`, `memory:`."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from mega.errors import BadOption, did_you_mean
from mega.options import check_count, to_seconds
from mega.urls import BrokerUrl

__all__ = ["EMBEDDED", "parse_broker_url"]

EMBEDDED = "embedded:"
EXAMPLE = 'Write "nats://host:4222", "embedded:" or "memory:".'
DEFAULT_PORT = 4222
SYNC = ("always", "1s")
SCHEMES = ("nats", "tls", "embedded", "memory")


def parse_broker_url(url: str) -> BrokerUrl:
    """Return the parts of a broker URL. Raises: BadOption."""
    if not isinstance(url, str) or ":" not in url:
        raise BadOption(f"{url!r} is not a broker URL.", hint=EXAMPLE)
    scheme = url.split(":", 1)[0].lower()
    if scheme not in SCHEMES:
        hint = f"{did_you_mean(scheme, SCHEMES)} {EXAMPLE}"
        raise BadOption(f"the broker URL starts with {scheme!r}.", hint=hint)
    if "?" in url.rpartition("@")[0]:
        raise BadOption('the login in the broker URL holds a "?".', hint='Write it as "%3F" there.')
    address, _, query = url.partition("?")
    options = _options(query)
    if scheme == "memory":
        return BrokerUrl(text="memory: nothing is kept after the end", kind="memory", **options)
    if scheme == "embedded":
        home = address.partition(":")[2].removeprefix("//") or None
        return BrokerUrl(text="embedded", kind="embedded", home=home, **options)
    return _nats(address, options, is_tls=scheme == "tls")


def _nats(address: str, options: dict[str, Any], *, is_tls: bool) -> BrokerUrl:
    """Parse `nats://[user[:password]@]host[:port][,host[:port]…]`; a lone user is a token."""
    login, at, hosts = address.partition("://")[2].rstrip("/").rpartition("@")
    servers = tuple(_server(host) for host in hosts.split(",") if host)
    if not servers:
        raise BadOption("the broker URL names no host.", hint=EXAMPLE)
    user, colon, password = login.partition(":")
    has_password = bool(colon)
    return BrokerUrl(
        text=",".join(servers),
        kind="nats",
        servers=servers,
        user=unquote(user) if has_password else None,
        password=unquote(password) if has_password else None,
        token=unquote(user) if at and not has_password else None,
        is_tls=is_tls,
        **options,
    )


def _server(host: str) -> str:
    try:
        parts = urlsplit(f"nats://{host}")
        port = parts.port or DEFAULT_PORT
    except ValueError:
        # What stands there may be a login whose host was forgotten, so it isn't shown.
        raise BadOption("the broker URL has no valid host and port.", hint=EXAMPLE) from None
    if not parts.hostname or parts.path:
        raise BadOption("the broker URL has no valid host and port.", hint=EXAMPLE)
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"nats://{name}:{port}"


def _options(query: str) -> dict[str, Any]:
    """Check the options of the query, which are the same for every form."""
    checks: dict[str, tuple[str, Any]] = {
        "replicas": ("replicas", lambda text: check_count(int(text), option="replicas", minimum=1)),
        "ack_wait": ("ack_wait", lambda text: _seconds(text, "ack_wait", 1.0)),
        "connect_timeout": ("connect_timeout", lambda text: _seconds(text, "connect_timeout", 0.1)),
        "sync": ("sync", _sync),
        "creds": ("credentials", str),
    }
    options = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in checks:
            hint = did_you_mean(name, checks)
            raise BadOption(f"a broker URL has no option {name!r}.", hint=hint)
        field, check = checks[name]
        try:
            options[field] = check(text)
        except ValueError as error:
            reason = error.args[0] if isinstance(error, BadOption) else "it is not a number."
            raise BadOption(f"{name}={text} in the broker URL: {reason}") from None
    return options


def _seconds(text: str, option: str, minimum: float) -> float:
    return to_seconds(float(text), option=option, minimum=minimum)


def _sync(text: str) -> str:
    if text not in SYNC:
        raise BadOption(f"sync is one of {', '.join(SYNC)}.")
    return text
