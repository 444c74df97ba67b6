"""The URLs of brokers and lock servers, taken apart: what adapters are opened with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["BrokerUrl", "LockUrl"]


@dataclass(frozen=True, kw_only=True)
class BrokerUrl:
    """A broker URL, taken apart. `text` is what may be shown: it holds no secret.

    `kind` is `embedded`, `nats` or `memory`; `servers` are plain `nats://host:port`.
    """

    text: str
    kind: Literal["embedded", "nats", "memory"]
    servers: tuple[str, ...] = ()
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: str | None = None
    is_tls: bool = False
    home: str | None = None
    replicas: int = 1
    ack_wait: float = 10.0
    connect_timeout: float = 5.0
    sync: str = "1s"


@dataclass(frozen=True, kw_only=True)
class LockUrl:
    """The URL of one lock server. `text` is what may be shown; `address` may hold a password."""

    text: str
    kind: Literal["redis", "memory"]
    address: str = field(default="", repr=False)
    is_cluster: bool = False
