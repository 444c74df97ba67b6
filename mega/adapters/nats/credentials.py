"""How a client proves who it is: the options of the broker URL in nats-py's words."""

from __future__ import annotations

import ssl
from importlib.util import find_spec
from typing import Any

from mega.errors import BrokerError
from mega.urls import BrokerUrl

__all__ = ["login", "require_nkeys"]


def login(url: BrokerUrl) -> dict[str, Any]:
    """Return the options for `nats.connect`."""
    options: dict[str, Any] = {}
    if url.credentials is not None:
        options["user_credentials"] = url.credentials
    if url.user is not None:
        options |= {"user": url.user, "password": url.password or ""}
    if url.token is not None:
        options["token"] = url.token
    if url.is_tls:
        options["tls"] = ssl.create_default_context()
    return options


def require_nkeys(url: BrokerUrl) -> None:
    """Refuse a creds file when its library is missing. Raises: BrokerError."""
    if url.credentials is not None and find_spec("nkeys") is None:
        raise BrokerError(
            f"{url.text} needs the package nkeys to sign with {url.credentials!r}.",
            hint="pip install nkeys",
        )
