"""Lines of a file or pipe as Arrow columns, block by block.

No line becomes a Python object. What has come is given out at once, so that a slow
pipe is not held up by the size of a block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_spark.errors import LanceError
from lance_spark.model import RECORD_VALUE_BYTES_MAX

BLOCK_BYTES = 1024 * 1024
# A line with its key is a record or too large to be one.
LINE_BYTES_MAX = RECORD_VALUE_BYTES_MAX + 64 * 1024


class LineReader:
    """Reads lines and counts them; `lines` is how many were given out.

    Args:
        stream: has `read1`, which returns what is there.
        delimiter: the byte that ends a line.
    """

    def __init__(self, stream: BinaryIO, delimiter: bytes = b"\n") -> None:
        self._stream = stream
        self._delimiter = delimiter
        self.lines = 0
        self.size = 0

    def blocks(self) -> Iterator[pa.Array]:
        """Give the lines without what ends them, as binary arrays.

        Raises:
            LanceError: a line is longer than any record.
        """
        tail = b""
        while block := self._read():
            self.size += len(block)
            cut = block.rfind(self._delimiter)
            if cut < 0:
                tail += block
                self._check_length(tail)
                continue
            whole, tail = tail + block[:cut], block[cut + 1 :]
            yield from self._give(whole)
        if tail:
            yield from self._give(tail)  # The last line need not be ended.

    def _read(self) -> bytes:
        # `read1` of a pipe returns what is there; `BinaryIO` does not know of it.
        read: Callable[[int], bytes] = getattr(self._stream, "read1")  # noqa: B009
        return read(BLOCK_BYTES)

    def _give(self, data: bytes) -> Iterator[pa.Array]:
        lines = split(data, self._delimiter)
        yield lines
        self.lines += len(lines)

    def _check_length(self, tail: bytes) -> None:
        if len(tail) > LINE_BYTES_MAX:
            raise LanceError(
                f"line {self.lines + 1} is longer than {RECORD_VALUE_BYTES_MAX} bytes, "
                "the most that a record can have"
            )


def read_whole(stream: BinaryIO) -> pa.Array:
    """Read everything as one value.

    Raises:
        LanceError: it is more than a record can have.
    """
    data = stream.read(RECORD_VALUE_BYTES_MAX + 1)
    if len(data) > RECORD_VALUE_BYTES_MAX:
        raise LanceError(
            f"the input is longer than {RECORD_VALUE_BYTES_MAX} bytes, the most that "
            "a record can have"
        )
    return pa.array([data], pa.binary())


def split(data: bytes, delimiter: bytes) -> pa.Array:
    """Split bytes at each delimiter."""
    return pc.split_pattern(pa.array([data], pa.binary()), pattern=delimiter).values


def make_columns(
    lines: pa.Array,
    *,
    separator: bytes | None,
    stamped: bool,
    first_line: int,
    clock_ns: Callable[[], int] = time.time_ns,
) -> pa.RecordBatch:
    """Make the columns of a write from lines.

    Args:
        lines: binary.
        separator: what is between key and value; None if lines have no key.
        stamped: give each record the time.
        first_line: number of the first line, for errors.
        clock_ns: the time.

    Raises:
        LanceError: a line lacks the separator.
    """
    columns = {"value": lines}
    if separator is not None:
        parts = pc.split_pattern(lines, pattern=separator, max_splits=1)
        is_single = pc.list_value_length(parts).to_numpy() < 2
        if is_single.any():
            line = first_line + int(is_single.argmax())
            raise LanceError(f"line {line} has no {separator!r} between key and value")
        halves = parts.flatten()
        evens = np.arange(0, len(halves), 2)
        columns = {"key": halves.take(evens), "value": halves.take(evens + 1)}
    if stamped:
        columns["timestamp_ns"] = pa.array(np.full(len(lines), clock_ns()))
    return pa.record_batch(columns)
