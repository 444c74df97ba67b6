"""What the transport sends is what nats-py itself would send."""

from __future__ import annotations

import pytest
from nats.aio.client import Client as NatsClient

from mega.adapters.nats.transport import Transport, written
from mega.wire.message import Message, pack

PLAIN = pack(Message(id="7", subject="a", body=b"", attempt=3, headers={"Tenant": "acme"}))


async def sent_by(client: NatsClient, headers: dict[str, str] | None) -> bytes:
    """Return what an unconnected client would write for one publish."""
    await client._send_publish("email.send", "reply.1", b"body", 4, headers)
    return b"".join(client._pending)


@pytest.mark.parametrize(
    "headers",
    [
        None,
        {},
        PLAIN,
        {"Name": "two\r\nlines"},
        {"Name": "a line end\n"},
        {"Name": "a bare \r return"},
        {"Name": "größer"},
        {"Name": ""},
    ],
)
async def test_it_sends_what_nats_py_would(headers: dict[str, str] | None) -> None:
    usual = await sent_by(NatsClient(), headers)
    assert b"body" in usual
    assert usual == await sent_by(Transport(), headers)


def test_plain_headers_go_the_short_way() -> None:
    assert written(PLAIN) is not None
    assert written({"Name": "two\r\nlines"}) is None
