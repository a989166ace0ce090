from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest

from lance_spark.errors import Corrupt, StoreError
from lance_spark.net.payload import FILE_PIECE_BYTES, advance, byte_views, read_pieces
from tests.net.conftest import FILE_CONTENT


@pytest.mark.parametrize(
    "buffer",
    [
        b"abcd",
        bytearray(b"abcd"),
        memoryview(b"xabcdx")[1:5],
        pa.py_buffer(b"abcd"),
        np.frombuffer(b"abcd", dtype=np.uint8),
        np.frombuffer(b"abcd", dtype="<u4"),
        np.frombuffer(b"abcd", dtype="<u2").reshape(2, 1),
    ],
    ids=lambda buffer: type(buffer).__name__,
)
def test_any_buffer_as_bytes(buffer: object) -> None:
    (view,) = byte_views([buffer])
    assert (view.format, view.ndim, bytes(view)) == ("B", 1, b"abcd")


def test_nothing_is_copied() -> None:
    data = bytearray(b"abc")
    (view,) = byte_views([data])
    data[0:1] = b"x"
    assert bytes(view) == b"xbc"


def test_empty_buffers_are_left_out() -> None:
    empty = [b"", pa.py_buffer(b""), np.empty(0, np.uint8), np.empty((0, 4), np.int64)]
    assert byte_views(empty) == []
    assert byte_views([b"", b"a", bytearray()]) == [b"a"]


@pytest.mark.parametrize(
    ("first", "sent", "expected", "rest"),
    [
        (0, 0, 0, [b"ab", b"c", b"def"]),
        (0, 1, 0, [b"b", b"c", b"def"]),
        (0, 2, 1, [b"ab", b"c", b"def"]),
        (0, 3, 2, [b"ab", b"c", b"def"]),
        (0, 5, 2, [b"ab", b"c", b"f"]),
        (0, 6, 3, [b"ab", b"c", b"def"]),
        (1, 2, 2, [b"ab", b"c", b"ef"]),
        (2, 3, 3, [b"ab", b"c", b"def"]),
    ],
)
def test_advance(first: int, sent: int, expected: int, rest: list[bytes]) -> None:
    views = byte_views([b"ab", b"c", b"def"])
    assert advance(views, first, sent) == expected
    assert views == rest


@pytest.mark.parametrize(
    ("position", "length"),
    [
        (0, 0),
        (0, 1),
        (5, 1000),
        (0, FILE_PIECE_BYTES),
        (7, FILE_PIECE_BYTES + 1),
        (0, len(FILE_CONTENT)),
        (len(FILE_CONTENT), 0),
    ],
)
def test_file_in_pieces(file: int, position: int, length: int) -> None:
    pieces = list(read_pieces(file, position, length))
    assert b"".join(pieces) == FILE_CONTENT[position : position + length]
    assert all(len(piece) <= FILE_PIECE_BYTES for piece in pieces)


def test_file_too_short(file: int) -> None:
    size = len(FILE_CONTENT)
    pieces = read_pieces(file, size - 10, 11)
    assert next(pieces) == FILE_CONTENT[-10:]
    with pytest.raises(Corrupt, match="shorter than it was") as caught:
        next(pieces)
    assert (caught.value.start, caught.value.end) == (size, size + 1)


def test_unreadable_file() -> None:
    reader, writer = os.pipe()
    try:
        with pytest.raises(StoreError, match="can't be read: Illegal seek"):
            list(read_pieces(reader, 0, 1))
    finally:
        os.close(reader)
        os.close(writer)
