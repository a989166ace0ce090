"""What is sent: buffers of any kind as bytes, and parts of files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from lance_spark.errors import Corrupt, StoreError
from lance_spark.model import Buffer

# How much of a file is in memory at a time where the kernel can't send it by itself.
FILE_PIECE_BYTES = 256 * 1024


def byte_views(buffers: Sequence[Buffer]) -> list[memoryview]:
    """Look at buffers as bytes, without copying; empty ones are left out."""
    views = [memoryview(buffer) for buffer in buffers]
    # A view without elements can't be cast.
    return [view.cast("B") for view in views if view.nbytes]


def advance(views: list[memoryview], first: int, sent: int) -> int:
    """Take what was sent off the views from `first` on; give the new first one."""
    while first < len(views) and sent >= len(views[first]):
        sent -= len(views[first])
        first += 1
    if sent:
        views[first] = views[first][sent:]
    return first


def read_pieces(descriptor: int, position: int, length: int) -> Iterator[bytes]:
    """Read a part of a file, piece by piece.

    Raises:
        Corrupt: the file ends before the part does.
        StoreError: the file can't be read.
    """
    end = position + length
    while position < end:
        try:
            piece = os.pread(
                descriptor, min(FILE_PIECE_BYTES, end - position), position
            )
        except OSError as error:
            raise unreadable(error) from error
        if not piece:
            raise too_short(position, end)
        yield piece
        position += len(piece)


def too_short(position: int, end: int) -> Corrupt:
    """Make the error for a file that ends before what is to be sent of it does."""
    return Corrupt("file", position, end, "the file is shorter than it was")


def unreadable(error: OSError) -> StoreError:
    """Make the error for a file that can't be read."""
    return StoreError(f"a file that is to be sent can't be read: {error.strerror}")
