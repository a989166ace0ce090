"""The codecs of Fluvio's batches, with an output that is bounded while it is made.

Codecs do not have to say how large their output is, so it is made piece by piece, and
the limit is looked at between the pieces. Arrow has gzip, zstd and LZ4's frames. Of
snappy it only has the raw block; Fluvio uses snappy's framing format, which is a chain
of small blocks with checksums:

    chunk    type u8 | length u24le | data
    types    ff the stream's name, 00 crc u32le + block, 01 crc u32le + plain bytes,
             02 to 7f not known, 80 to fe to be skipped
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

import pyarrow as pa

from lance_spark.checksum import crc32c
from lance_spark.errors import PayloadOverLimit, RemoteProtocolError
from lance_spark.model import Buffer
from lance_spark.wire.fluvio.frame import FORM
from lance_spark.wire.schema import Cursor, make_varint

# What a record set may have when its compressed batches are expanded.
EXPANDED_BYTES_MAX = 256 * 1024 * 1024

_PIECE_BYTES_MIN, _PIECE_BYTES_MAX = 64 * 1024, 1024 * 1024
_NAME = b"sNaPpY"
_CHUNK = struct.Struct("<I")
_BLOCK_BYTES_MAX = 64 * 1024
# 4 GiB in whole blocks. Chunks without anything in them cost time as well.
_CHUNKS_MAX = 2**16
_SIZE = make_varint(32)


class Codec(IntEnum):
    """How the records of a batch are compressed: three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: Buffer) -> Buffer:
    """Compress records."""
    if codec is Codec.NONE:
        return data
    if codec is Codec.SNAPPY:
        return b"".join(_write_chunks(memoryview(data)))
    packed: Buffer = pa.Codec(codec.name.lower()).compress(data)
    return packed


def expand(codec: Codec, data: Buffer, bytes_max: int, before: int = 0) -> list[Buffer]:
    """Expand records to pieces, of which no more are made than the limit and one.

    Args:
        codec: how they are compressed.
        data: they.
        bytes_max: how large they may become, with what was expanded `before`.
        before: how much that was.

    Raises:
        RemoteProtocolError: it is malformed.
        PayloadOverLimit: it becomes larger than the limit.
    """
    return list(_make_pieces(codec, data, bytes_max, before))


def measure(
    codec: Codec, data: Buffer, bytes_max: int, before: int = 0
) -> tuple[int, bytes]:
    """Say how large records become, and which are their first bytes.

    They are expanded piece by piece as by `expand`, and no piece is kept.

    Raises:
        RemoteProtocolError: it is malformed.
        PayloadOverLimit: it becomes larger than the limit.
    """
    size, head = 0, b""
    for piece in _make_pieces(codec, data, bytes_max, before):
        size += len(piece)
        if len(head) < _CHUNK.size:
            head += bytes(memoryview(piece)[: _CHUNK.size])
    return size, head[: _CHUNK.size]


def _make_pieces(
    codec: Codec, data: Buffer, bytes_max: int, size: int
) -> Iterator[Buffer]:
    pieces = _read_chunks(data) if codec is Codec.SNAPPY else _read_arrow(codec, data)
    try:
        for piece in pieces:
            size += len(piece)
            if size > bytes_max:
                raise PayloadOverLimit("expanded batch", size, bytes_max)
            yield piece
    except (pa.ArrowException, OSError) as error:
        raise RemoteProtocolError(f"not {codec.name.lower()}: {error}") from None


def _read_arrow(codec: Codec, data: Buffer) -> Iterator[Buffer]:
    wanted = 8 * memoryview(data).nbytes
    size = min(max(wanted, _PIECE_BYTES_MIN), _PIECE_BYTES_MAX)
    with pa.CompressedInputStream(pa.BufferReader(data), codec.name.lower()) as stream:
        while piece := stream.read(size):
            yield piece


# Snappy's framing format.


def _mask(data: Buffer) -> int:
    """Compute the checksum of a chunk: it is rotated, as CRCs of CRCs are weak."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _write_chunks(data: memoryview) -> Iterator[Buffer]:
    yield _CHUNK.pack(len(_NAME) << 8 | 0xFF) + _NAME
    codec = pa.Codec("snappy")
    for start in range(0, len(data), _BLOCK_BYTES_MAX):
        plain = data[start : start + _BLOCK_BYTES_MAX]
        packed = codec.compress(plain)
        is_smaller = len(packed) < len(plain)
        block = packed if is_smaller else plain
        kind = 0x00 if is_smaller else 0x01
        yield _CHUNK.pack(len(block) + 4 << 8 | kind) + _CHUNK.pack(_mask(plain))
        yield block


def _read_chunks(data: Buffer) -> Iterator[Buffer]:
    cursor = Cursor(data, "Snappy", FORM)
    for number in range(_CHUNKS_MAX):
        if not cursor.remaining:
            return
        (head,) = _CHUNK.unpack(cursor.take(_CHUNK.size))
        kind, chunk = head & 0xFF, cursor.take(head >> 8)
        is_name = kind == 0xFF
        if is_name > (chunk == _NAME) or is_name < (number == 0):
            raise cursor.error("the stream does not start with its name")
        if kind < 0x02:
            yield _read_block(Cursor(chunk, "Snappy", FORM), kind == 0x00)
        elif kind < 0x80:
            raise cursor.error(f"chunk 0x{kind:02X} is unknown")
    if cursor.remaining:
        raise cursor.error(f"there are more than {_CHUNKS_MAX} chunks")


def _read_block(cursor: Cursor, is_packed: bool) -> Buffer:
    (crc,) = _CHUNK.unpack(cursor.take(_CHUNK.size))
    block: Buffer = cursor.peek(cursor.remaining)
    size = _SIZE.read(cursor) if is_packed else cursor.remaining
    if size > _BLOCK_BYTES_MAX:
        raise cursor.error(f"a block of {size} bytes")
    if is_packed:
        block = pa.Codec("snappy").decompress(block, size)
    if _mask(block) != crc:
        raise cursor.error("the checksum of a block is wrong")
    return block
