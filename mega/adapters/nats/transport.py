"""nats-py's client with shorter ways for what each job needs: its own cost as much as the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nats.aio.client import Client

__all__ = ["Transport", "frame", "header_block"]

LINE_ENDS_BESIDE_HEADERS = 2
BLANKS = " \t\n\r\x0b\x0c"


class Transport(Client):
    """nats-py checks and cleans each header by itself; ours are checked where a job is made.

    What would have to be cleaned, or isn't ASCII, goes nats-py's own way, in and out.
    """

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        headers = read(raw)
        return Client._parse_header_lines(raw) if headers is None else headers

    async def acknowledge(self, reply: str) -> None:
        """Publish nothing to `reply`, as it came from the server. Only while it is connected."""
        self.stats["out_msgs"] += 1
        await self._send_command(b"PUB %b 0\r\n\r\n" % reply.encode())
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    async def _send_publish(
        self,
        subject: str,
        reply: str,
        payload: bytes,
        payload_size: int,
        headers: dict[str, Any] | None,
    ) -> None:
        head = written(headers) if headers else None
        if head is None:
            await super()._send_publish(subject, reply, payload, payload_size, headers)
            return
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += payload_size
        await self._send_command(frame(subject, reply, head, payload))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()


def read(lines: bytes) -> dict[str, str] | None:
    """Return the headers in those lines, or None if they are not as plain as `written` leaves."""
    if not lines.isascii():
        return None
    headers = {}
    for line in lines.decode().split("\r\n"):
        if line:
            name, separator, value = line.partition(": ")
            if not separator:
                return None
            headers[name] = value.strip(BLANKS)
    names = "".join(headers)
    return headers if names.isprintable() and " " not in names and ":" not in names else None


def written(headers: Mapping[str, str]) -> bytes | None:
    """Return the headers as they are sent, or None if they are not as plain as they look."""
    head = header_block(headers)
    line_ends = len(headers) + LINE_ENDS_BESIDE_HEADERS
    is_plain = head.isascii() and head.count("\n") == line_ends == head.count("\r")
    return head.encode() if is_plain else None


def header_block(headers: Mapping[str, str], more: str = "") -> str:
    """Return the headers in their block; `more` are whole lines behind them."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    return f"NATS/1.0\r\n{lines}{more}\r\n"


def frame(subject: str, reply: str, head: bytes, body: bytes) -> bytes:
    """Return a message with headers, as it goes over the wire; `reply` may be empty."""
    sizes = f"HPUB {subject} {reply} {len(head)} {len(head) + len(body)}\r\n".encode()
    return b"".join((sizes, head, body, b"\r\n"))
