"""The Kimberlite frame, and the forms that payloads have had from release to release.

    byte  0              4               6              10            14
          +--------------+---------------+--------------+-------------+---------+
          | magic "VDB " | version u16be | length u32be | crc32 u32be | payload |
          +--------------+---------------+--------------+-------------+---------+

The checksum is CRC-32 of IEEE, as in zlib, and covers the payload only. A payload is
one message. A `Wire` says how its fields are written; their letters:

    ?         truth: 00 or 01
    H I Q     u16, u32, u64
    q         i64
    n         the length of a text, or how many items follow
    o         whether an optional field follows
    t         the number of a choice
    s         text
    c         data class
    p         placement: the name of a region, or None for everywhere

Releases since 0.4 write in postcard: integers are LEB128, with a sign zigzag before
that. Releases 0.1 wrote in bincode: integers are little-endian of full width, lengths
u64, choices u32. The text of the specification has a third form, bincode with u32 in
front of optional fields and other placements; no release is known to write it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple
from zlib import crc32

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
    make_zigzag,
)

MAGIC = 0x56444220
_MAGIC = MAGIC.to_bytes(4, "big")
_HEADER = struct.Struct(">IHII")
HEADER_BYTES = _HEADER.size
PAYLOAD_BYTES_MAX = 16 * 1024 * 1024
# The client on PyPI (0.9.1) drops a connection that brings it a larger frame.
SMALL_FRAME_BYTES_MAX = 128 * 1024
# Smaller frames are joined: one buffer is sent faster than several.
_JOINED_BYTES_MAX = 16 * 1024


# Letters.


class DataClass(Enum):
    """What a stream may hold; releases 0.1 have the first three, others no NON_PHI."""

    PHI = "PHI"
    NON_PHI = "NonPHI"
    DEIDENTIFIED = "Deidentified"
    PII = "PII"
    SENSITIVE = "Sensitive"
    PCI = "PCI"
    FINANCIAL = "Financial"
    CONFIDENTIAL = "Confidential"
    PUBLIC = "Public"


_CLASSES = tuple(kind for kind in DataClass if kind is not DataClass.NON_PHI)
_CLASSES_0_1 = tuple(DataClass)[:3]
# The regions that have numbers; any other has the next number and its name.
_REGIONS = ("us-east-1", "ap-southeast-2")
_REGION, _GLOBAL = 0, 1


def _read_truth(cursor: Cursor) -> bool:
    byte = cursor.take(1)[0]
    if byte > 1:
        raise cursor.error(f"{byte} is neither false nor true")
    return bool(byte)


def _make_class(tag: Letter, classes: Sequence[DataClass]) -> Letter:
    def read(cursor: Cursor) -> DataClass:
        number: int = tag.read(cursor)
        if number >= len(classes):
            raise cursor.error(f"data class {number} is unknown")
        return classes[number]

    def encode(value: DataClass) -> bytes:
        if value not in classes:
            raise ValueError("this release does not have the data class")
        return tag.encode(classes.index(value))

    return Letter(read, encode)


def _make_placement(tag: Letter, text: Letter) -> Letter:
    def read(cursor: Cursor) -> str | None:
        placement: int = tag.read(cursor)
        if placement == _GLOBAL:
            return None
        number: int = tag.read(cursor)
        if placement != _REGION or number > len(_REGIONS):
            raise cursor.error(f"placement {placement} in region {number} is unknown")
        name: str = (*_REGIONS, "")[number] or text.read(cursor)
        return name

    def encode(value: str | None) -> bytes:
        if value is None:
            return tag.encode(_GLOBAL)
        if value in _REGIONS:
            return tag.encode(_REGION) + tag.encode(_REGIONS.index(value))
        return tag.encode(_REGION) + tag.encode(len(_REGIONS)) + text.encode(value)

    return Letter(read, encode)


def _make_literal_placement(tag: Letter) -> Letter:
    """Make the letter of the specification's text, which names no region."""

    def read(cursor: Cursor) -> str | None:
        placement: int = tag.read(cursor)
        if placement > 1:
            raise cursor.error(f"placement {placement} is unknown")
        return "" if placement else None

    return Letter(read, lambda value: tag.encode(int(value is not None)))


_TRUTH = Letter(_read_truth, lambda value: bytes([bool(value)]))
_U32, _U64 = make_number("<I"), make_number("<Q")
_VARINT_32, _VARINT_64 = make_varint(32), make_varint(64)
_POSTCARD: Mapping[str, Letter] = {
    "?": _TRUTH,
    "H": make_varint(16),
    "I": _VARINT_32,
    "Q": _VARINT_64,
    "q": make_zigzag(64),
    "n": _VARINT_64,
    "o": make_number("<B"),
    "t": _VARINT_32,
    "s": make_text(_VARINT_64),
    "c": _make_class(_VARINT_32, _CLASSES),
    "p": _make_placement(_VARINT_32, make_text(_VARINT_64)),
}
_BINCODE: Mapping[str, Letter] = {
    "?": _TRUTH,
    "H": make_number("<H"),
    "I": _U32,
    "Q": _U64,
    "q": make_number("<q"),
    "n": _U64,
    "o": make_number("<B"),
    "t": _U32,
    "s": make_text(_U64),
    "c": _make_class(_U32, _CLASSES_0_1),
    "p": _make_placement(_U32, make_text(_U64)),
}
_LITERAL = {**_BINCODE, "o": _U32, "p": _make_literal_placement(_U32)}


# Forms.


@dataclass(frozen=True, slots=True)
class Wire(Form):
    """The form of the messages of some releases.

    The `version` counts these forms, as versions of frames do not tell all of them
    apart; it is what fields and numbers of messages go by.

    Args:
        name: what users call it.
        frame_version: what stands in the header.
        fixed: lengths have eight bytes; else they are LEB128.
        numbering: whose version's numbers the messages have, if it is another's.
    """

    name: str = ""
    frame_version: int = 0
    fixed: bool = False
    numbering: int = 0

    @property
    def has_pushes(self) -> bool:
        """Whether a server can send what it was not just asked for."""
        return self.frame_version > 1


def _list_wires() -> Mapping[str, Wire]:
    postcard = ("v1-postcard", 1), ("v2", 2), ("v3", 3), ("v4", 4), ("v5-0.6", 5)
    wires = [Wire(_BINCODE, 0, "v1-bincode", 1, True, 0)]
    # Release 0.8 renumbered the messages of v5.
    for version, (name, frame_version) in enumerate((*postcard, ("v5", 5)), 1):
        wires.append(Wire(_POSTCARD, version, name, frame_version, False, version))
    # Its numbers are those of the first release with Subscribe.
    wires.append(Wire(_LITERAL, 0, "v1-literal", 1, True, 1))
    return {wire.name: wire for wire in wires}


# Every form by its name. Clients use v5 (0.8 and later), v3 (0.4.2 to 0.5.1),
# v1-postcard (0.4.0, 0.4.1) and v1-bincode (0.1).
WIRES = _list_wires()
V5 = WIRES["v5"]

# The forms that a frame may have, by its version, the likelier ones first. At version 1
# postcard is safe to try first: a request in bincode starts with zeros, the upper bytes
# of its id and tenant, and as postcard these end a message long before the payload
# does. Bincode first would not be safe: it may take an event of zeros for a message.
CANDIDATES: Mapping[int, tuple[Wire, ...]] = {
    1: tuple(WIRES[name] for name in ("v1-postcard", "v1-bincode", "v1-literal")),
    2: (WIRES["v2"],),
    3: (WIRES["v3"],),
    4: (WIRES["v4"],),
    5: (V5, WIRES["v5-0.6"]),
}


# Frames.


class Header(NamedTuple):
    """What stands before a payload."""

    version: int
    length: int
    crc: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole frame; `payload` is a view that stays valid for as long as it is kept."""

    version: int
    payload: memoryview = EMPTY


def decode_header(data: Buffer) -> Header:
    """Read a header of `HEADER_BYTES`.

    Raises:
        RemoteProtocolError: it is not one, or of a version that is not known. The
            protocol has no answer to that but to close the connection.
    """
    magic, *others = _HEADER.unpack_from(data)
    header = Header(*others)
    if magic != MAGIC:
        raise RemoteProtocolError(f"0x{magic:08X} is not the magic 0x{MAGIC:08X}")
    if header.version not in CANDIDATES:
        raise RemoteProtocolError(f"frame version {header.version} is unknown")
    return header


class FrameParser(Assembler[Header, Frame]):
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
            payload_bytes_max=min(payload_bytes_max, PAYLOAD_BYTES_MAX),
            payload_bytes_first=payload_bytes_first,
        )

    def _read_header(self, view: memoryview) -> tuple[Header, int]:
        header = decode_header(view)
        return header, header.length

    def _check_start(self, view: memoryview) -> None:
        magic = bytes(view[:4])
        if len(magic) == 4 and magic != _MAGIC:
            raise RemoteProtocolError(f"{magic!r} is not the magic {_MAGIC!r}")

    def _finish_frame(self, header: Header, payload: memoryview) -> Frame:
        if crc32(payload) != header.crc:
            raise RemoteProtocolError("payload CRC mismatch (CRC-32)")
        return Frame(header.version, payload)


def encode_frame(version: int, payload: Sequence[Buffer]) -> list[Buffer]:
    """Write a frame whose payload is the concatenation of some buffers.

    Raises:
        LocalProtocolError: the payload is over the limit.
    """
    size, crc = 0, 0
    for part in payload:
        size += memoryview(part).nbytes
        crc = crc32(part, crc)
    if size > PAYLOAD_BYTES_MAX:
        limit = PAYLOAD_BYTES_MAX
        raise LocalProtocolError(f"a message of {size} bytes, Kimberlite takes {limit}")
    frame = [_HEADER.pack(MAGIC, version, size, crc), *payload]
    return [b"".join(frame)] if size <= _JOINED_BYTES_MAX else frame
