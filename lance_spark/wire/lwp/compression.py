"""LZ4 payloads (LWP §8.9), with an output that is bounded before it is allocated.

LWP does not say which framing of LZ4 it means. Written is the raw block, as clients in
the field do. Read are three forms:

- the LZ4 frame, told by its magic, which no raw block can start with: its first token
  would have no literals and copy from before the beginning;
- a u32 with the size in front of a raw block, believed only if the size is met exactly;
- the raw block.

The last two can be mistaken for one another in theory, so that the caller may say
which result makes sense: a payload is a row of whole records, and noise is not.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import lz4.block
import lz4.frame

from lance_spark.errors import PayloadOverLimit, RemoteProtocolError
from lance_spark.model import Buffer
from lance_spark.wire.lwp.frame import PAYLOAD_BYTES_MAX

_FRAME_MAGIC = bytes.fromhex("04224D18")
_SIZE = struct.Struct("<I")
# No LZ4 block grows by more than this, so that small input never gets a large buffer.
_EXPANSION_MAX = 255
_EXPANSION_SLACK = 64
_PIECE_BYTES = 256 * 1024
# The library counts in C's int, whatever limit the caller names.
_BLOCK_BYTES_MAX = 0x7FFF_FFFF


def decompressed_bytes_max(data: Buffer, bytes_max: int) -> int:
    """Tell how large what is compressed may become, if it is held to a limit."""
    size = memoryview(data).nbytes * _EXPANSION_MAX + _EXPANSION_SLACK
    return min(bytes_max, size, _BLOCK_BYTES_MAX)


def compress(data: Buffer) -> bytes:
    """Compress to a raw LZ4 block."""
    block: bytes = lz4.block.compress(data, store_size=False)
    return block


def decompress(
    data: Buffer,
    *,
    bytes_max: int = PAYLOAD_BYTES_MAX,
    accept: Callable[[bytes], bool] | None = None,
) -> bytes:
    """Decompress any of the three forms.

    Args:
        data: the compressed payload.
        bytes_max: the largest result; no buffer for more is ever allocated.
        accept: tells whether a result makes sense; all do if not given.

    Raises:
        PayloadOverLimit: if the input says that it is larger.
        RemoteProtocolError: if no form fits, or the result is larger or not accepted.
    """
    view = memoryview(data).cast("B")
    bound = decompressed_bytes_max(view, bytes_max)
    if bytes(view[:4]) == _FRAME_MAGIC:
        candidates = _decompress_frame(view, bound, bytes_max)
    else:
        candidates = _decompress_block(view, bound)
    for candidate in candidates:
        if accept is None or accept(candidate):
            return candidate
    raise RemoteProtocolError(
        f"payload is not LZ4, or holds more than {bytes_max} bytes, or no records"
    )


def _decompress_block(view: memoryview, bound: int) -> Iterator[bytes]:
    # The form with a size goes first, because it is the one that proves itself.
    if len(view) > _SIZE.size:
        (size,) = _SIZE.unpack_from(view)
        if size <= bound:
            for candidate in _try_block(view[_SIZE.size :], size):
                if len(candidate) == size:
                    yield candidate
    yield from _try_block(view, bound)


def _try_block(view: memoryview, bound: int) -> Iterator[bytes]:
    try:
        yield lz4.block.decompress(view, uncompressed_size=bound)
    except lz4.block.LZ4BlockError:
        return


def _decompress_frame(view: memoryview, bound: int, bytes_max: int) -> Iterator[bytes]:
    # The library's own buffers depend on the frame's block size and are at most 8 MiB.
    try:
        size = lz4.frame.get_frame_info(view)["content_size"]
        if size > bytes_max:
            raise PayloadOverLimit("decompressed payload", size, bytes_max)
        decompressor = lz4.frame.LZ4FrameDecompressor()
        pieces = _drain(decompressor, view, bound)
    except RuntimeError:
        return
    # Otherwise it is larger than the bound, cut off, or has something behind it.
    whole = decompressor.eof and not decompressor.unused_data
    if whole and sum(map(len, pieces)) <= bound:
        yield b"".join(pieces)


def _drain(decompressor: Any, view: memoryview, bound: int) -> list[bytes]:
    # In pieces, because the library fills a buffer of the size asked for and copies it.
    # The byte above the bound makes room for the end mark of a frame that just fits.
    pieces: list[bytes] = []
    room = bound + 1
    data: Buffer = view
    while room and not decompressor.eof:
        piece = decompressor.decompress(data, max_length=min(room, _PIECE_BYTES))
        if not piece:
            break
        pieces.append(piece)
        room -= len(piece)
        data = b""
    return pieces
