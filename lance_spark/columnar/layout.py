"""What is inside each record: type, key, timestamp and value, as positions.

    type                 value field, `length` bytes
    0x10 KeyValue        key length u16 | key | value
    0x11 Timestamped     timestamp u64 | value
    0x12 KeyTimestamped  timestamp u64 | key length u16 | key | value
    0xFF Null            nothing
    any other            value

All integers are little-endian (LWP §8). Everything is done for all records at once;
Arrow is not known here, so that a broker can check a payload without building columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lance_spark.columnar.buffer import as_bytes
from lance_spark.columnar.scan import scan
from lance_spark.errors import RecordError
from lance_spark.model import RECORD_HEADER_BYTES, Buffer, RecordType, Scan

# Plain integers, as NumPy takes several times longer to compare with an enumeration.
_KEY_VALUE = int(RecordType.KEY_VALUE)
_TIMESTAMPED = int(RecordType.TIMESTAMPED)
_KEY_TIMESTAMPED = int(RecordType.KEY_TIMESTAMPED)
_NULL = int(RecordType.NULL)

# Which types have something inside that has to be looked at.
_STRUCTURED = np.zeros(256, np.bool_)
_STRUCTURED[[_KEY_VALUE, _TIMESTAMPED, _KEY_TIMESTAMPED, _NULL]] = True
_NONE = np.empty(0, np.int64)

# How many records are looked at together when they are only checked.
_ROWS = 64 * 1024

STAMP_BYTES = 8
KEY_LENGTH_BYTES = 2

_Bytes = NDArray[np.uint8]
_Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of records are in their buffer; a row is a record.

    Args:
        starts: where each record starts.
        ends: where each record and its value end.
        types: the record types.
        value_starts: where each value starts, which is also where a key ends.
        keyed: the rows that have a key, ascending.
        key_starts: where the keys of those rows start.
        stamped: the rows that have a timestamp, ascending.
        stamps: the timestamps of those rows, in ns since 1970.
        bad: the rows whose inner lengths do not fit, ascending. While there are any,
            only `starts`, `ends` and `types` can be relied on.
    """

    starts: _Positions
    ends: _Positions
    types: _Bytes
    value_starts: _Positions
    keyed: _Positions
    key_starts: _Positions
    stamped: _Positions
    stamps: NDArray[np.uint64]
    bad: _Positions


def lay_out(data: _Bytes, starts: _Positions, ends: _Positions) -> Layout:
    """Find the parts of records of which the bounds are known."""
    types = data[starts]
    value_starts = starts + RECORD_HEADER_BYTES
    if not _STRUCTURED[types].any():
        # Plain values only, as most topics have: nothing to find inside of them.
        stamps = np.empty(0, np.uint64)
        return Layout(
            starts, ends, types, value_starts, _NONE, _NONE, _NONE, stamps, _NONE
        )
    bad = (types == _NULL) & (value_starts != ends)

    both = types == _KEY_TIMESTAMPED
    stamped = np.flatnonzero(both | (types == _TIMESTAMPED))
    stamped, at = _fit(stamped, value_starts[stamped], STAMP_BYTES, ends, bad)
    stamps = read_scattered(data, at, np.dtype("<u8"))
    value_starts[stamped] = at + STAMP_BYTES

    keyed = np.flatnonzero((both | (types == _KEY_VALUE)) & ~bad)
    keyed, at = _fit(keyed, value_starts[keyed], KEY_LENGTH_BYTES, ends, bad)
    key_starts = at + KEY_LENGTH_BYTES
    key_ends = key_starts + read_scattered(data, at, np.dtype("<u2"))
    bad[keyed[key_ends > ends[keyed]]] = True
    value_starts[keyed] = key_ends
    return Layout(
        starts,
        ends,
        types,
        value_starts,
        keyed,
        key_starts,
        stamped,
        stamps,
        np.flatnonzero(bad),
    )


def find_ends(found: Scan) -> _Positions:
    """Say where the records of a scan end: each where the next one starts."""
    return np.append(found.starts[1:], found.end)[: len(found.starts)]


def explain_bad(data: _Bytes, layout: Layout, row: int) -> str:
    """Say what is wrong with a row that `lay_out` found bad."""
    kind = int(layout.types[row])
    start, end = int(layout.starts[row]), int(layout.ends[row])
    length = end - start - RECORD_HEADER_BYTES
    if kind == _NULL:
        return f"a Null record (0xFF) has length {length}, must be 0"
    needed = STAMP_BYTES if kind != _KEY_VALUE else 0
    needed += KEY_LENGTH_BYTES if kind != _TIMESTAMPED else 0
    if length < needed:
        return f"type 0x{kind:02X} needs a length of {needed} or more, has {length}"
    at = start + RECORD_HEADER_BYTES + needed
    key_length = int.from_bytes(data[at - KEY_LENGTH_BYTES : at].tobytes(), "little")
    return f"a key of {key_length} bytes where {end - at} are left in the record"


def validate(data: Buffer) -> Scan:
    """Find the records of a buffer up to the first that is malformed in any way.

    Does what `scan` does and looks inside the records too: key length beyond the
    record, record too short for its type, Null record with a length.
    """
    view = as_bytes(data)
    found = scan(view)
    # In parts: with records of a few bytes a layout takes ten times what they do.
    for first in range(0, len(found.starts), _ROWS):
        starts = found.starts[first : first + _ROWS]
        behind = first + _ROWS < len(found.starts)
        end = int(found.starts[first + _ROWS]) if behind else found.end
        layout = lay_out(view, starts, find_ends(Scan(starts, end, None)))
        if len(layout.bad):
            row = int(layout.bad[0])
            position = int(starts[row])
            fault = RecordError(explain_bad(view, layout, row), position)
            return Scan(found.starts[: first + row], position, fault)
    return found


def check_records(data: Buffer) -> int:
    """Count the records of a buffer that must hold whole, well-formed records only.

    Raises:
        RecordError: of the first bad record; a truncated last one is bad too.
    """
    found = validate(data)
    if found.fault is not None:
        raise found.fault
    return len(found.starts)


def _fit(
    rows: _Positions,
    at: _Positions,
    size: int,
    ends: _Positions,
    bad: NDArray[np.bool_],
) -> tuple[_Positions, _Positions]:
    """Keep the rows whose next `size` bytes are inside the record, mark the others."""
    fits = at + size <= ends[rows]
    if fits.all():
        return rows, at
    bad[rows[~fits]] = True
    return rows[fits], at[fits]


def read_scattered(data: _Bytes, at: _Positions, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Read an unaligned integer at each position."""
    if not len(at):
        return np.empty(0, dtype)
    # An array in which item i is the integer at byte i; overlapping, and never copied.
    everywhere: NDArray[Any] = np.ndarray(
        len(data) - dtype.itemsize + 1, dtype, data, 0, (1,)
    )
    integers: NDArray[Any] = everywhere[at]
    return integers
