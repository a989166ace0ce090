"""The Fluvio frame: the size of a payload, the payload.

    request    size i32 | key u16 | version i16 | correlation id i32 | client id | body
    response   size i32 | correlation id i32 | body

Integers are big-endian. A response says neither what it is nor its version: both are
those of the request with its correlation id. Keys have another meaning in each `Role`:
a cluster has a controller (SC), which knows the topics, and processing units (SPU),
which have the records. The letters of fields:

    b h i q   i8, i16, i32, i64
    B H I Q   the same without a sign
    ?         a byte, 0 or 1
    s         text with its length in front as i16; below 1 it is empty
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.model import Buffer
from lance_spark.value import dataclass
from lance_spark.wire.assembler import EMPTY, PAYLOAD_BYTES_FIRST, Assembler
from lance_spark.wire.schema import Form, make_number, make_text

_HEADER = struct.Struct(">i")
HEADER_BYTES = _HEADER.size
# The size has a sign, and one below 0 means nothing.
PAYLOAD_BYTES_MAX = 2**31 - 1

LETTERS = {
    **{code: make_number(f">{code}") for code in "bhiqBHIQ?"},
    "s": make_text(make_number(">h")),
}
# For what is the same in every version.
FORM = Form(LETTERS)


class Role(Enum):
    """What a server is in its cluster, which is by its port."""

    SC = "SC"
    SPU = "SPU"


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole frame; `payload` is a view that stays valid for as long as it is kept."""

    payload: memoryview = EMPTY


class FrameParser(Assembler[int, Frame]):
    """Parse the frames of one direction of one connection.

    Args:
        payload_bytes_max: the largest payload to accept.
        payload_bytes_first: how much of a payload's buffer is made at once, before
            any of it has come.
    """

    def __init__(
        self,
        *,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
        payload_bytes_first: int = PAYLOAD_BYTES_FIRST,
    ) -> None:
        super().__init__(
            header_bytes=HEADER_BYTES,
            payload_bytes_max=payload_bytes_max,
            payload_bytes_first=payload_bytes_first,
        )

    def _read_header(self, view: memoryview) -> tuple[int, int]:
        size: int = _HEADER.unpack_from(view)[0]
        if size < 0:
            raise RemoteProtocolError(f"a frame of {size} bytes")
        return size, size

    def _finish_frame(self, header: int, payload: memoryview) -> Frame:
        return Frame(payload)


def encode_frame(payload: Sequence[Buffer]) -> list[Buffer]:
    """Write a frame whose payload is the concatenation of some buffers, uncopied.

    Raises:
        LocalProtocolError: the payload is over Fluvio's limit.
    """
    size = sum(memoryview(part).nbytes for part in payload)
    if size > PAYLOAD_BYTES_MAX:
        limit = PAYLOAD_BYTES_MAX
        raise LocalProtocolError(f"a message of {size} bytes, Fluvio takes {limit}")
    return [_HEADER.pack(size), *payload]
