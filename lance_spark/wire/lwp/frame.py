"""The LWP frame: its 44-byte header, its checksums, reading and writing frames.

What a payload means is in the modules of messages and in `tlv`.

    byte  0        4   5   6      8           12        20
          +--------+---+---+------+-----------+---------+--------------+
          | "LANC" | v | f | 0  0 | headerCRC | batchID | timestampNS  |
          +--------+---+---+------+-----------+---------+--------------+
    byte  28            32              36           40         44
          +-------------+---------------+------------+----------+---------
          | recordCount | payloadLength | payloadCRC | topicID  | payload
          +-------------+---------------+------------+----------+---------

All integers are little-endian. The header CRC covers bytes 0 to 7 only (LWP §9.3), so
lengths and ids are unprotected and have to be checked as foreign input.

LWP §9 asks for CRC32C. The Rust server and both of its clients compute the IEEE CRC-32
instead, for headers and payloads alike, so every encoder and the parser take the
algorithm as a value.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, IntFlag
from functools import cache
from typing import NamedTuple

from lance_spark.checksum import crc32c
from lance_spark.errors import LocalProtocolError, OptionError, RemoteProtocolError
from lance_spark.model import Buffer
from lance_spark.wire.assembler import EMPTY, PAYLOAD_BYTES_FIRST, Assembler
from lance_spark.wire.lwp.record import RECORD_VALUE_BYTES_MAX

# The header CRC covers bytes 0 to 7 and is stored in bytes 8 to 11 (LWP §9.3).
PROTECTED_BYTES = 8
_HEADER_CRC = struct.Struct("<I")
# Below this a checksum takes less time than to get the interpreter's lock back from
# another connection.
_UNLOCKED_BYTES_MIN = 128 * 1024


class Checksum(Enum):
    """A checksum algorithm of 32 bits."""

    CRC32C = "crc32c"
    CRC32 = "crc32"

    def update(self, data: Buffer, value: int = 0) -> int:
        """Return the checksum of `data`, continued from the checksum `value`."""
        if self is Checksum.CRC32C:
            return crc32c(data, value, len(data) >= _UNLOCKED_BYTES_MIN)
        return zlib.crc32(data, value)


def identify_checksum(header: Buffer) -> Checksum | None:
    """Tell the algorithm from the first 12 bytes of a header.

    For the 128 flag bytes that LWP allows the two algorithms never agree, so that one
    header decides.

    Returns:
        The algorithm, or None if the header's CRC is neither.
    """
    view = memoryview(header)
    (stored,) = _HEADER_CRC.unpack_from(view, PROTECTED_BYTES)
    for checksum in Checksum:
        if checksum.update(view[:PROTECTED_BYTES]) == stored:
            return checksum
    return None


def parse_checksum(text: str) -> Checksum | None:
    """Read a setting: `crc32c`, `crc32`, or `auto`, which gives None.

    Raises:
        OptionError: for anything else.
    """
    if text == "auto":
        return None
    try:
        return Checksum(text)
    except ValueError:
        raise OptionError(
            f"checksum {text!r} is unknown; use crc32c, crc32 or auto"
        ) from None


MAGIC = b"LANC"
VERSION = 1
HEADER_BYTES = 44

# LWP §8.7 allows a record value of 16 MiB and §12.2 a payload of 16 MB, which
# contradict each other by five bytes. 64 KiB on top let the largest record through.
PAYLOAD_BYTES_MAX = RECORD_VALUE_BYTES_MAX + 64 * 1024

# Magic, version, flags, reserved: what the header CRC covers.
_PROTECTED = struct.Struct("<4sBBH")
# Batch id, timestamp, record count, payload length, payload CRC, topic id.
_FIELDS = struct.Struct("<QQIIII")
_PREFIX_BYTES = _PROTECTED.size + _HEADER_CRC.size
assert _PROTECTED.size == PROTECTED_BYTES
assert _PREFIX_BYTES + _FIELDS.size == HEADER_BYTES


class FrameFlags(IntFlag):
    """The flag byte of a header (LWP §3.3); bit 7 must be zero."""

    COMPRESSED = 0x01
    ENCRYPTED = 0x02
    BATCH_MODE = 0x04
    ACK = 0x08
    BACKPRESSURE = 0x10
    KEEPALIVE = 0x20
    CONTROL = 0x40


_FLAGS_KNOWN = 0x7F
# Where they are in a header.
_FLAGS_AT = 5


@cache
def _encode_prefix(flags: int, checksum: Checksum) -> bytes:
    protected = _PROTECTED.pack(MAGIC, VERSION, flags, 0)
    return protected + _HEADER_CRC.pack(checksum.update(protected))


# Up to its CRC a good header is one of 256 byte strings, so that a look into a table
# checks magic, version, reserved bits and CRC at once and tells flags and algorithm.
# Those that came are in it: few ever do, and a process may be short.
_PREFIXES: dict[bytes, tuple[FrameFlags, Checksum]] = {}


def _learn_prefix(prefix: bytes) -> tuple[FrameFlags, Checksum] | tuple[None, None]:
    """Give what a prefix says that is not in the table yet; None if it is not good."""
    flags = prefix[_FLAGS_AT]
    for checksum in Checksum:
        if flags <= _FLAGS_KNOWN and prefix == _encode_prefix(flags, checksum):
            _PREFIXES[prefix] = found = FrameFlags(flags), checksum
            return found
    return None, None


class FrameType(Enum):
    """What a frame is for."""

    INGEST = "ingest"
    ACK = "ack"
    KEEPALIVE = "keepalive"
    BACKPRESSURE = "backpressure"
    CONTROL = "control"
    # No type flag and no payload: nothing can be done with it.
    EMPTY = "empty"


# LWP does not say which flag wins; this is the order of the server in the field.
# Plain integers, as operators of an IntFlag take many times as long.
_PRECEDENCE = (
    (int(FrameFlags.CONTROL), FrameType.CONTROL),
    (int(FrameFlags.KEEPALIVE), FrameType.KEEPALIVE),
    (int(FrameFlags.ACK), FrameType.ACK),
    (int(FrameFlags.BACKPRESSURE), FrameType.BACKPRESSURE),
    (int(FrameFlags.BATCH_MODE), FrameType.INGEST),
)


def classify(flags: int, payload_length: int) -> FrameType:
    """Return the type of a frame with these flags."""
    flags = int(flags)
    for flag, frame_type in _PRECEDENCE:
        if flags & flag:
            return frame_type
    return FrameType.INGEST if payload_length else FrameType.EMPTY


class Header(NamedTuple):
    """The fields of a header that carry information."""

    flags: FrameFlags
    batch_id: int
    timestamp_ns: int
    record_count: int
    payload_length: int
    payload_crc: int
    topic_id: int

    @property
    def type(self) -> FrameType:
        """What the frame is for."""
        return classify(self.flags, self.payload_length)


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole frame as it came off the wire.

    `payload` is a read-only view that stays valid for as long as it is kept. It is
    what was sent: still compressed if `flags` says so.
    """

    flags: FrameFlags
    batch_id: int = 0
    timestamp_ns: int = 0
    record_count: int = 0
    topic_id: int = 0
    payload: memoryview = EMPTY
    # Of the payload, as its header says and as was checked. It tells a batch that was
    # sent twice from another one with the same id.
    payload_crc: int = field(default=0, compare=False)

    @property
    def type(self) -> FrameType:
        """What the frame is for."""
        return classify(self.flags, len(self.payload))

    @property
    def command(self) -> int:
        """The command of a control frame: all 64 bits of the batch id (LWP §5.1)."""
        return self.batch_id

    def __str__(self) -> str:
        kind = self.type
        if kind is FrameType.CONTROL:
            return f"control 0x{self.command:02X}, {len(self.payload)} bytes"
        if kind is FrameType.INGEST:
            return (
                f"ingest batch {self.batch_id} to topic {self.topic_id}, "
                f"{self.record_count} records, {len(self.payload)} bytes"
            )
        if kind is FrameType.ACK:
            return f"ack batch {self.batch_id}"
        return str(kind.value)


def decode_header(
    data: Buffer, checksum: Checksum | None = Checksum.CRC32C
) -> tuple[Header, Checksum]:
    """Read and check a header.

    The payload's length is not judged here: that limit is the parser's.

    Args:
        data: at least 44 bytes.
        checksum: the algorithm, or None to find it out.

    Returns:
        The header and the algorithm that its CRC was made with.

    Raises:
        RemoteProtocolError: if the header is not one of LWP version 1.
    """
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        raise RemoteProtocolError(f"a header needs {HEADER_BYTES} bytes")
    prefix = bytes(view[:_PREFIX_BYTES])
    flags, made_with = _PREFIXES.get(prefix) or _learn_prefix(prefix)
    if flags is None or made_with is None or checksum not in (made_with, None):
        raise _diagnose(view, checksum)
    return Header(flags, *_FIELDS.unpack_from(view, _PREFIX_BYTES)), made_with


def _diagnose(view: memoryview, checksum: Checksum | None) -> RemoteProtocolError:
    magic, version, flags, reserved = _PROTECTED.unpack_from(view)
    # Magic and version come first (LWP §11): a peer that speaks something else should
    # be told so, and not that its checksum is wrong.
    if magic != MAGIC:
        return RemoteProtocolError(f"bad magic {magic!r}")
    if version != VERSION:
        return RemoteProtocolError(f"unsupported version {version}")
    made_with = identify_checksum(view)
    if made_with is None or checksum not in (made_with, None):
        expected = "crc32c or crc32" if checksum is None else checksum.value
        return RemoteProtocolError(f"header CRC mismatch (not {expected})")
    if reserved:
        return RemoteProtocolError(f"reserved bytes are 0x{reserved:04X}, not zero")
    return RemoteProtocolError(f"reserved flag bit set in 0x{flags:02X}")


class FrameParser(Assembler[Header, Frame]):
    """Parse the frames of one direction of one connection.

    Args:
        checksum: the peer's algorithm, or None to learn it from the first header and
            hold the peer to it.
        payload_bytes_max: the largest payload to accept; `allow` changes it.
        payload_bytes_first: how much of a payload's buffer is made at once, before
            any of it has come.
    """

    def __init__(
        self,
        *,
        checksum: Checksum | None = Checksum.CRC32C,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
        payload_bytes_first: int = PAYLOAD_BYTES_FIRST,
    ) -> None:
        super().__init__(
            header_bytes=HEADER_BYTES,
            payload_bytes_max=payload_bytes_max,
            payload_bytes_first=payload_bytes_first,
        )
        self._checksum = checksum

    @property
    def checksum(self) -> Checksum | None:
        """The algorithm in use; None as long as it is not known."""
        return self._checksum

    def _read_header(self, view: memoryview) -> tuple[Header, int]:
        header, self._checksum = decode_header(view, self._checksum)
        return header, header.payload_length

    def _check_start(self, view: memoryview) -> None:
        magic = bytes(view[: len(MAGIC)])
        if len(magic) == len(MAGIC) and magic != MAGIC:
            raise RemoteProtocolError(f"bad magic {magic!r}")

    def _finish_frame(self, header: Header, payload: memoryview) -> Frame:
        assert self._checksum is not None
        if self._checksum.update(payload) != header.payload_crc:
            raise RemoteProtocolError(f"payload CRC mismatch ({self._checksum.value})")
        flags, batch_id, time_ns, count, _, crc, topic_id = header
        return Frame(flags, batch_id, time_ns, count, topic_id, payload, crc)


def encode_header(
    flags: int,
    *,
    batch_id: int = 0,
    timestamp_ns: int = 0,
    record_count: int = 0,
    payload_length: int = 0,
    payload_crc: int = 0,
    topic_id: int = 0,
    checksum: Checksum = Checksum.CRC32C,
) -> bytes:
    """Write a header alone, for callers that send the payload by other means.

    Raises:
        LocalProtocolError: if a field does not fit.
    """
    if flags & ~_FLAGS_KNOWN:
        raise LocalProtocolError(f"flags 0x{flags:X} have reserved bits")
    try:
        return _encode_prefix(flags, checksum) + _FIELDS.pack(
            batch_id, timestamp_ns, record_count, payload_length, payload_crc, topic_id
        )
    except struct.error as error:
        raise LocalProtocolError(f"header field out of range: {error}") from None


def encode_frame(
    flags: int,
    payload: Sequence[Buffer] = (),
    *,
    batch_id: int = 0,
    timestamp_ns: int = 0,
    record_count: int = 0,
    topic_id: int = 0,
    checksum: Checksum = Checksum.CRC32C,
) -> list[Buffer]:
    """Write a frame whose payload is the concatenation of some buffers.

    Returns:
        The header and the payload's own buffers, uncopied: what `sendmsg` takes.

    Raises:
        LocalProtocolError: if a field does not fit.
    """
    views = [memoryview(part) for part in payload]
    parts = [view for view in views if view.nbytes]
    crc = 0
    for part in parts:
        crc = checksum.update(part, crc)
    header = encode_header(
        flags,
        batch_id=batch_id,
        timestamp_ns=timestamp_ns,
        record_count=record_count,
        payload_length=sum(part.nbytes for part in parts),
        payload_crc=crc,
        topic_id=topic_id,
        checksum=checksum,
    )
    return [header, *parts]


def encode_ingest(
    payload: Sequence[Buffer],
    *,
    batch_id: int,
    record_count: int,
    topic_id: int = 0,
    timestamp_ns: int = 0,
    compressed: bool = False,
    checksum: Checksum = Checksum.CRC32C,
) -> list[Buffer]:
    """Write a batch of records (LWP §4.1); `payload` is compressed already if at all.

    Raises:
        LocalProtocolError: for a batch id of 0, no records or no bytes.
    """
    if batch_id < 1 or record_count < 1:
        raise LocalProtocolError("an ingest needs a batch id and records")
    flags = FrameFlags.BATCH_MODE
    if compressed:
        flags |= FrameFlags.COMPRESSED
    frame = encode_frame(
        flags,
        payload,
        batch_id=batch_id,
        timestamp_ns=timestamp_ns,
        record_count=record_count,
        topic_id=topic_id,
        checksum=checksum,
    )
    if len(frame) == 1:
        raise LocalProtocolError("an ingest needs a payload")
    return frame


def encode_ack(batch_id: int, *, checksum: Checksum = Checksum.CRC32C) -> bytes:
    """Write the acknowledgement of a batch (LWP §4.2)."""
    return encode_header(FrameFlags.ACK, batch_id=batch_id, checksum=checksum)


def encode_keepalive(*, checksum: Checksum = Checksum.CRC32C) -> bytes:
    """Write a keepalive (LWP §4.3)."""
    return encode_header(FrameFlags.KEEPALIVE, checksum=checksum)


def encode_backpressure(*, checksum: Checksum = Checksum.CRC32C) -> bytes:
    """Write the request to slow down (LWP §4.4)."""
    return encode_header(FrameFlags.BACKPRESSURE, checksum=checksum)


def encode_control(
    command: int,
    payload: Sequence[Buffer] = (),
    *,
    checksum: Checksum = Checksum.CRC32C,
) -> list[Buffer]:
    """Write a control frame (LWP §5.1)."""
    return encode_frame(
        FrameFlags.CONTROL, payload, batch_id=command, checksum=checksum
    )
