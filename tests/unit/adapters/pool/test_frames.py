from __future__ import annotations

import pickle
import socket
import threading

import pytest

from mega.adapters.pool.frames import HEAD, Kind, encode, receive, size_of


def test_a_frame_comes_out_as_it_went_in() -> None:
    value = {"text": "한글", "buffer": pickle.PickleBuffer(bytearray(b"xyz" * 1000)), "none": None}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        parts = encode(Kind.RESULT, value)
        threading.Thread(target=ours.sendall, args=(b"".join(parts),)).start()
        frame = receive(theirs)
    assert frame.kind == Kind.RESULT
    assert frame.load() == {**value, "buffer": bytearray(b"xyz" * 1000)}


def test_a_large_buffer_is_not_copied() -> None:
    content = bytearray(1000)
    parts = encode(Kind.CALL, pickle.PickleBuffer(content))
    content[0] = 7
    assert 7 == parts[-1][0]
    assert size_of(parts) == HEAD.size + 8 + len(parts[1]) + 1000


@pytest.mark.parametrize("sent", [b"", b"R", HEAD.pack(Kind.RESULT, 0, 10) + b"short"])
def test_a_frame_that_is_cut_off(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(sent)
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            receive(theirs)
