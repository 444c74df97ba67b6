"""How the parent and a worker process talk: a header, a pickle, and the pickle's buffers.

Both sides import this room. It knows nothing of either, and only the standard library.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

__all__ = [
    "HEAD",
    "Frame",
    "Kind",
    "Part",
    "Settings",
    "encode",
    "receive",
    "size_of",
    "unpack_sizes",
]

PROTOCOL = 5
HEAD = struct.Struct("<cxxxIQ")  # kind, number of buffers, length of the pickle
CHUNK = 1 << 20

Part: TypeAlias = bytes | bytearray | memoryview


class Kind:
    """What a frame is. The parent sends SETTINGS and CALL."""

    SETTINGS = b"S"
    CALL = b"C"
    READY = b"Y"
    NOT_READY = b"N"
    # Goes out before the task runs: a worker that died without it has had no effect, so its
    # call may be handed to another.
    STARTED = b"B"
    LOG = b"L"
    PROGRESS = b"P"
    RESULT = b"R"
    RAISED = b"E"
    BAD_CALL = b"A"
    BAD_RESULT = b"X"


class Settings(NamedTuple):
    """The first frame a worker process gets. It travels as a plain tuple."""

    path: list[str]
    argv: list[str]
    main: tuple[Any, ...] | None
    loops: tuple[str, ...]
    tasks: tuple[str, ...]
    log_levels: dict[str, int]
    memory_limit: int | None
    nice: int
    result_limit: int


class Frame(NamedTuple):
    kind: bytes
    data: Part
    buffers: list[bytearray]

    def load(self) -> Any:
        return pickle.loads(self.data, buffers=self.buffers)


def encode(kind: bytes, value: Any = None) -> list[Part]:
    """Return the parts of a frame. Large buffers (numpy arrays, say) are not copied."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, PROTOCOL, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    sizes = struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views))
    return [HEAD.pack(kind, len(views), len(data)) + sizes, data, *views]


def size_of(parts: Iterable[Part]) -> int:
    return sum(len(part) for part in parts)


def unpack_sizes(packed: Part) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 8}Q", packed)


def receive(connection: socket.socket) -> Frame:
    """Read one frame from a blocking socket. Raises: EOFError when the other end is gone."""
    kind, count, length = HEAD.unpack(_read(connection, HEAD.size))
    sizes = unpack_sizes(_read(connection, 8 * count))
    data = _read(connection, length)
    return Frame(kind, data, [_read(connection, size) for size in sizes])


def _read(connection: socket.socket, size: int) -> bytearray:
    content = bytearray(size)
    view = memoryview(content)
    while view:
        received = connection.recv_into(view, min(len(view), CHUNK))
        if not received:
            raise EOFError
        view = view[received:]
    return content
