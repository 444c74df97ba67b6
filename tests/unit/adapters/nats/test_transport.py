"""What the transport sends and reads is what nats-py itself would send and read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client as NatsClient

from mega.adapters.nats.transport import Transport, read, written
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


async def test_an_ack_is_an_empty_publish() -> None:
    usual, ours = NatsClient(), Transport()
    await usual._send_publish("$JS.ACK.a.1", "", b"", 0, None)
    await ours.acknowledge("$JS.ACK.a.1")

    assert b"".join(usual._pending).split() == b"".join(ours._pending).split()
    assert usual.stats == ours.stats


LINE_ENDS = st.sampled_from(["\r\n", "\n", "\r"])
COLONS = st.sampled_from([": ", ":", " :\t", ""])
LINES = st.tuples(st.text(max_size=4), COLONS, st.text(max_size=6))


@given(st.lists(LINES), LINE_ENDS)
def test_it_reads_what_nats_py_would(lines: list[tuple[str, str, str]], end: str) -> None:
    raw = "".join("".join(line) + end for line in lines).encode()

    assert NatsClient._parse_header_lines(raw) == Transport._parse_header_lines(raw)


def test_our_own_headers_are_read_the_short_way() -> None:
    head = written(PLAIN)
    assert head is not None
    assert PLAIN == read(head.removeprefix(b"NATS/1.0\r\n"))
    assert read(b"a b: 1\r\n") is read("a: \u00fc\r\n".encode()) is read(b"a:1\r\n") is None
