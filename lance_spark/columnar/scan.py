"""Where the records of a buffer start: the only sequential step of the hot path.

A record says how long it is, so its successor is known only once its header was read.
The chain is followed by a compiled kernel (`_scan.c`) where pip could build one and by
its pure-Python twin elsewhere. Both only find positions; why a chain stopped is
decided in one place for both, `_find_fault`. What is inside a record is `layout`.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from lance_spark.columnar.buffer import as_bytes
from lance_spark.errors import RecordError, RecordTooLarge
from lance_spark.model import (
    RECORD_HEADER_BYTES,
    RECORD_VALUE_BYTES_MAX,
    Buffer,
    Scan,
)

_follow: Callable[[Buffer, int, Buffer, int, int], tuple[int, int]] | None = None
try:
    from lance_spark.columnar._scan import follow

    _follow = follow
except ImportError:
    pass  # pip found no compiler.

# Whether `scan` uses the compiled kernel.
KERNEL: bool = _follow is not None

_Bytes = NDArray[np.uint8]
_Positions = NDArray[np.int64]

_LENGTH = struct.Struct("<xI")

# The twin steps in Python for some records, then checks them in bulk and looks for a
# run of equal lengths. Few at first, so that a run is found early; then more, so that
# the checks cost little; never too many, as steps behind a fault are wasted.
_STEP_RECORDS_MIN = 64
_STEP_RECORDS_MAX = 4096
# A run is tested in windows that grow, so that a short one costs little.
_RUN_RECORDS_MIN = 512
_RUN_RECORDS_MAX = 1 << 18

# First guess of the kernel's output: a record per this many bytes.
_GUESS_BYTES = 64


def scan(data: Buffer) -> Scan:
    """Find the whole records of a buffer, with the fastest means there is.

    Returns:
        The start of every whole record up to the end of the buffer or the first
        fault. The fault is `truncated` where the buffer ends inside a record; type 0
        and a length over the limit are not, as no further byte can mend them.
    """
    return scan_kernel(data) if KERNEL else scan_python(data)


def scan_kernel(data: Buffer) -> Scan:
    """Do what `scan` does with the compiled kernel, which must be there."""
    return _scan_with(_walk_compiled, as_bytes(data))


def scan_python(data: Buffer) -> Scan:
    """Do what `scan` does in pure Python."""
    return _scan_with(_walk_python, as_bytes(data))


def _scan_with(walk: Callable[[_Bytes], tuple[_Positions, int]], data: _Bytes) -> Scan:
    starts, end = walk(data)
    return Scan(starts, end, _find_fault(data, end))


def _find_fault(data: _Bytes, position: int) -> RecordError | None:
    """Say why no whole record starts at a position, None at the buffer's end."""
    header = bytes(data[position : position + RECORD_HEADER_BYTES])
    if not header:
        return None
    if header[0] == 0:
        return RecordError("type 0 is reserved", position)
    if len(header) < RECORD_HEADER_BYTES:
        reason = f"the data ends inside the header, {len(header)} bytes of it are there"
        return RecordError(reason, position, truncated=True)
    (length,) = _LENGTH.unpack(header)
    there = len(data) - position - RECORD_HEADER_BYTES
    if length > RECORD_VALUE_BYTES_MAX:
        # A record that is too large is there as a whole. A number beyond the buffer's
        # end is most likely no length at all.
        kind = RecordTooLarge if length <= there else RecordError
        limit = RECORD_VALUE_BYTES_MAX
        return kind(f"length {length} is over the limit of {limit}", position)
    reason = f"the data ends inside the value, {there} of {length} bytes are there"
    return RecordError(reason, position, truncated=True)


def _walk_compiled(data: _Bytes) -> tuple[_Positions, int]:
    assert _follow is not None, "the kernel was not built"
    starts = np.empty(len(data) // _GUESS_BYTES + 16, np.int64)
    position = count = 0
    while True:
        position, count = _follow(data, position, starts, count, RECORD_VALUE_BYTES_MAX)
        if count < len(starts):
            break
        more = np.empty(2 * count, np.int64)
        more[:count] = starts
        starts = more
    # A view would keep the unused rest of a wrong guess alive.
    found = starts[:count]
    return found if 2 * count > len(starts) else found.copy(), position


def _walk_python(data: _Bytes) -> tuple[_Positions, int]:
    parts: list[_Positions] = []
    position, limit = 0, _STEP_RECORDS_MIN
    while True:
        starts, end = _step(data, position, limit)
        parts.append(starts)
        position = end
        if len(starts) < limit:
            return np.concatenate(parts), position
        limit = min(2 * limit, _STEP_RECORDS_MAX)
        stride = end - int(starts[-1])
        if starts[-1] - starts[-3] == 2 * stride:
            run = _count_run(data, position, stride)
            parts.append(np.arange(position, position + run * stride, stride))
            position += run * stride
            limit = _STEP_RECORDS_MIN


def _step(data: _Bytes, position: int, limit: int) -> tuple[_Positions, int]:
    """Follow the lengths of up to `limit` records, then keep the good ones.

    Returns their starts, fewer than `limit` where the chain ends, and their end.
    """
    view = data.data
    unpack = _LENGTH.unpack_from
    lengths = array("I")
    append = lengths.append
    at = position
    # The end of the data is met once, so an exception is cheaper than a test per step.
    with suppress(struct.error):
        for _ in range(limit):
            (length,) = unpack(view, at)
            append(length)
            at += length + RECORD_HEADER_BYTES
    sizes = np.frombuffer(lengths, np.uintc).astype(np.int64) + RECORD_HEADER_BYTES
    ends = position + np.cumsum(sizes)
    starts = ends - sizes
    good = (
        (ends <= len(data))
        & (sizes <= RECORD_HEADER_BYTES + RECORD_VALUE_BYTES_MAX)
        & (data[starts] != 0)
    )
    if not good.all():
        starts = starts[: good.argmin()]
    return starts, int(ends[len(starts) - 1]) if len(starts) else position


def _count_run(data: _Bytes, position: int, stride: int) -> int:
    """Count the records from a position on that all have the same length.

    Each header is looked at where the one before it says, so the count is certain.
    """
    most = (len(data) - position) // stride
    length = stride - RECORD_HEADER_BYTES
    count, window = 0, _RUN_RECORDS_MIN
    while count < most:
        shape, at = min(window, most - count), position + count * stride
        types = np.ndarray(shape, np.uint8, data, at, (stride,))
        lengths = np.ndarray(shape, "<u4", data, at + 1, (stride,))
        good = (types != 0) & (lengths == length)
        if not good.all():
            return count + int(good.argmin())
        count += shape
        window = min(4 * window, _RUN_RECORDS_MAX)
    return count
