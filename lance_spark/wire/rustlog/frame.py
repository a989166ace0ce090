"""RustLog's frame: a length, and a payload in one of two dialects.

    byte  0                4
          +----------------+---------------------------+
          | length, u32be  | payload, `length` bytes   |
          +----------------+---------------------------+

The first byte of a payload is its type (binary) or starts a JSON document. A frame is
its payload here, as a view: nothing else in it carries information.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.model import Buffer
from lance_spark.wire.assembler import PAYLOAD_BYTES_FIRST, Assembler

FRAME_BYTES_MAX = 10 * 1024 * 1024
# Smaller frames are joined: one buffer is sent faster than several.
_JOINED_BYTES_MAX = 16 * 1024
# What a JSON document starts with. A tab is not among them: 09 is a type.
_JSON_STARTS = {b"{", b'"', b" ", b"\n", b"\r"}

_LENGTH = struct.Struct(">I")


class FrameParser(Assembler[int, memoryview]):
    """Parse the frames of one direction of one connection.

    Any error ends the stream: a length of 0, and one over the limit (the
    `PayloadOverLimit` among the errors). A server answers both with code 1 and closes.

    Args:
        payload_bytes_max: the largest payload to accept.
        payload_bytes_first: how much of a payload's buffer is made at once, before
            any of it has come.
    """

    def __init__(
        self,
        *,
        payload_bytes_max: int = FRAME_BYTES_MAX,
        payload_bytes_first: int = PAYLOAD_BYTES_FIRST,
    ) -> None:
        super().__init__(
            header_bytes=_LENGTH.size,
            payload_bytes_max=min(payload_bytes_max, FRAME_BYTES_MAX),
            payload_bytes_first=payload_bytes_first,
        )
        self._first = b""

    @property
    def is_json(self) -> bool | None:
        """Whether the peer speaks JSON; None before the first byte that tells.

        The frame under way or refused tells it, and else the last one.
        """
        first = bytes(self._payload[:1]) if self._payload_filled else self._first
        return is_json(first) if first else None

    def _refuse(self, header: int, length: int) -> None:
        at = self._start + _LENGTH.size
        self._first = bytes(self._block[at : self._end][:1]) or self._first
        super()._refuse(header, length)

    def _read_header(self, view: memoryview) -> tuple[int, int]:
        (length,) = _LENGTH.unpack_from(view)
        if length == 0:
            raise RemoteProtocolError("a frame of 0 bytes")
        return length, length

    def _finish_frame(self, header: int, payload: memoryview) -> memoryview:
        self._first = bytes(payload[:1])
        return payload


def is_json(frame: Buffer) -> bool:
    """Tell the dialect of a frame, in which it is to be answered."""
    return bytes(memoryview(frame)[:1]) in _JSON_STARTS


def encode_frame(payload: Sequence[Buffer]) -> list[Buffer]:
    """Write a frame whose payload is the concatenation of some buffers.

    Raises:
        LocalProtocolError: the payload is over the limit.
    """
    size = sum(memoryview(part).nbytes for part in payload)
    if size > FRAME_BYTES_MAX:
        raise LocalProtocolError(
            f"a frame of {size} bytes is over RustLog's limit of {FRAME_BYTES_MAX}"
        )
    frame = [_LENGTH.pack(size), *payload]
    return [b"".join(frame)] if size <= _JOINED_BYTES_MAX else frame
