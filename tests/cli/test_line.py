"""Lines to Arrow columns."""

from __future__ import annotations

import io
from itertools import chain
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pytest

from lance_spark.cli import line
from lance_spark.cli.line import LineReader, make_columns, read_whole
from lance_spark.errors import LanceError


class Pipe:
    """A pipe that gives what it has been given, piece by piece."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    def read1(self, size: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def _read(*pieces: bytes, delimiter: bytes = b"\n") -> list[list[bytes]]:
    reader = LineReader(cast(BinaryIO, Pipe(*pieces)), delimiter)
    blocks = [block.to_pylist() for block in reader.blocks()]
    assert reader.lines == sum(map(len, blocks))
    assert reader.size == sum(map(len, pieces))
    return blocks


@pytest.mark.parametrize(
    ("pieces", "blocks"),
    [
        ([], []),
        ([b"\n"], [[b""]]),
        ([b"a"], [[b"a"]]),
        ([b"a\n"], [[b"a"]]),
        ([b"a\nb"], [[b"a"], [b"b"]]),
        ([b"a\nb\n"], [[b"a", b"b"]]),
        ([b"\n\na\n"], [[b"", b"", b"a"]]),
        ([b"a\r\n\xff\x00\n"], [[b"a\r", b"\xff\x00"]]),
        # A line goes on in the next pieces.
        ([b"a", b"b", b"c\nd", b"\n"], [[b"abc"], [b"d"]]),
        ([b"a\nb", b"", b"never read"], [[b"a"], [b"b"]]),
    ],
)
def test_lines(pieces: list[bytes], blocks: list[list[bytes]]) -> None:
    ended = pieces[: pieces.index(b"")] if b"" in pieces else pieces
    assert _read(*ended) == blocks


def test_other_delimiter() -> None:
    assert _read(b"a\nb\0c\0", delimiter=b"\0") == [[b"a\nb", b"c"]]


def test_cut_anywhere() -> None:
    data = b"one\ntwo\n\nthree"
    for cut in range(1, len(data)):
        blocks = _read(data[:cut], data[cut:])
        assert list(chain(*blocks)) == [b"one", b"two", b"", b"three"]


def test_real_file_is_read_in_blocks() -> None:
    lines = [b"%d" % n for n in range(400_000)]
    stream = io.BufferedReader(cast(Any, io.BytesIO(b"\n".join(lines) + b"\n")))
    blocks = [block.to_pylist() for block in LineReader(stream).blocks()]
    assert len(blocks) > 1
    assert list(chain(*blocks)) == lines


def test_endless_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "LINE_BYTES_MAX", 10)
    reader = LineReader(cast(BinaryIO, Pipe(b"ok\n12345", b"67890", b"1")))
    with pytest.raises(LanceError, match="line 2 is longer than 16777216 bytes"):
        list(reader.blocks())


def test_whole() -> None:
    assert read_whole(io.BytesIO(b"a\nb\n")).to_pylist() == [b"a\nb\n"]
    assert read_whole(io.BytesIO(b"")).to_pylist() == [b""]


def test_whole_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "RECORD_VALUE_BYTES_MAX", 3)
    assert read_whole(io.BytesIO(b"abc")).to_pylist() == [b"abc"]
    with pytest.raises(LanceError, match="longer than 3 bytes"):
        read_whole(io.BytesIO(b"abcd"))


def _columns(lines: list[bytes], **options: Any) -> list[dict[str, Any]]:
    usual: dict[str, Any] = {"separator": None, "stamped": False, "first_line": 1}
    array = pa.array(lines, pa.binary())
    rows: list[dict[str, Any]] = make_columns(array, **{**usual, **options}).to_pylist()
    return rows


def test_values_alone() -> None:
    assert _columns([b"a", b""]) == [{"value": b"a"}, {"value": b""}]


def test_keys() -> None:
    assert _columns([b"k=v", b"=", b"a=b=c"], separator=b"=") == [
        {"key": b"k", "value": b"v"},
        {"key": b"", "value": b""},
        {"key": b"a", "value": b"b=c"},
    ]
    assert _columns([b"k, v"], separator=b", ") == [{"key": b"k", "value": b"v"}]


def test_line_without_key() -> None:
    with pytest.raises(LanceError, match="line 12 has no b':' between key and value"):
        _columns([b"a:b", b"c:d", b"none", b""], separator=b":", first_line=10)


def test_stamps() -> None:
    rows = _columns([b"a", b"b"], stamped=True, clock_ns=lambda: 77)
    assert [row["timestamp_ns"] for row in rows] == [77, 77]
