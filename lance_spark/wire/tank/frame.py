"""The TANK frame: the kind of a message, the size of its payload, the payload.

    kind u8 | size u32 | payload

Integers are little-endian everywhere in TANK. A request and its answer are of the same
kind, so that only the direction tells them apart; `message` has both. The letters of
their fields:

    B H I Q   u8, u16, u32, u64
    v         varint: LEB128 of up to 32 bits
    s         text with its length in front as u8
    t         text with its length in front as varint
    a         address: four bytes of IPv4 and a port as u16, "10.0.0.1:11011" here
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.model import Buffer
from lance_spark.value import dataclass
from lance_spark.wire.assembler import EMPTY, PAYLOAD_BYTES_FIRST, Assembler
from lance_spark.wire.schema import (
    Cursor,
    Form,
    Letter,
    make_number,
    make_text,
    make_varint,
)

_HEADER = struct.Struct("<BI")
HEADER_BYTES = _HEADER.size
# The broker in the field closes connections that announce more.
PAYLOAD_BYTES_MAX = 256 * 1024 * 1024

_ADDRESS = struct.Struct("<4BH")


def _read_address(cursor: Cursor) -> str:
    *ip, port = _ADDRESS.unpack(cursor.take(_ADDRESS.size))
    return f"{'.'.join(map(str, ip))}:{port}"


def _encode_address(value: str) -> bytes:
    ip, _, port = value.rpartition(":")
    return _ADDRESS.pack(*map(int, ip.split(".")), int(port))


FORM = Form(
    {
        **{code: make_number(f"<{code}") for code in "BHIQ"},
        "v": make_varint(32),
        "s": make_text(make_number("<B")),
        "t": make_text(make_varint(32)),
        "a": Letter(_read_address, _encode_address),
    }
)


class Kind(IntEnum):
    """What a message is about. Peers of a cluster have some more."""

    PRODUCE = 0x01
    CONSUME = 0x02
    PING = 0x03
    PRODUCE_AT = 0x05
    DISCOVER_PARTITIONS = 0x06
    CREATE_TOPIC = 0x07
    RELOAD_CONF = 0x08
    STATUS = 0x0A
    DISCOVER_TOPICS = 0x0B
    DISCOVER_TOPOLOGY = 0x0C


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole frame; `payload` is a view that stays valid for as long as it is kept."""

    kind: Kind
    payload: memoryview = EMPTY


def decode_header(data: Buffer) -> tuple[Kind, int]:
    """Read a header of `HEADER_BYTES`: the kind, and the size of the payload.

    Raises:
        RemoteProtocolError: there is no such kind. TANK has no answer to that but to
            close the connection.
    """
    number, size = _HEADER.unpack_from(data)
    try:
        return Kind(number), size
    except ValueError:
        raise RemoteProtocolError(f"unknown message 0x{number:02X}") from None


class FrameParser(Assembler[Kind, Frame]):
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

    def _read_header(self, view: memoryview) -> tuple[Kind, int]:
        return decode_header(view)

    def _finish_frame(self, header: Kind, payload: memoryview) -> Frame:
        return Frame(header, payload)


def encode_frame(kind: Kind, payload: Sequence[Buffer] = ()) -> list[Buffer]:
    """Write a frame whose payload is the concatenation of some buffers, uncopied.

    Raises:
        LocalProtocolError: the payload is over TANK's limit.
    """
    size = sum(memoryview(part).nbytes for part in payload)
    if size > PAYLOAD_BYTES_MAX:
        limit = PAYLOAD_BYTES_MAX
        raise LocalProtocolError(f"a message of {size} bytes, TANK takes {limit}")
    return [_HEADER.pack(kind, size), *payload]
