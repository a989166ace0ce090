"""Arrow columns to TLV payloads: the bytes of rows that `rows` has planned.

Header, timestamp and key length of each row form its prefix, which NumPy writes; Arrow
lays prefix, key and value of the rows side by side. No row becomes a Python object.
Whether a row can be a record, and which, must not be decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lance_spark.columnar.inputs import cast, check_columns
from lance_spark.columnar.layout import KEY_LENGTH_BYTES, STAMP_BYTES
from lance_spark.columnar.rows import Plan, check_plain_type, plan_rows
from lance_spark.errors import OptionError
from lance_spark.model import RECORD_HEADER_BYTES, RecordType

PAYLOAD_BYTES_DEFAULT = 1024 * 1024
# One Arrow array holds a payload, and its offsets are signed 32-bit numbers.
PAYLOAD_BYTES_LIMIT = 1024 * 1024 * 1024

# Rows are planned in groups of this size, so that the offsets of their prefixes are far
# from 2 GiB. A payload ends where its group does.
_GROUP_ROWS_MAX = 1 << 22

# Up to this mean size of a record, `take` from all parts laid end to end is faster than
# a join row by row, although it copies them twice.
_TAKE_BYTES_MAX = 256


@dataclass(frozen=True, slots=True)
class Payload:
    """Whole records, ready for a frame.

    Args:
        data: their bytes.
        records: how many they are.
        has_nulls: whether there may be Null records among them.
    """

    data: pa.Buffer
    records: int
    has_nulls: bool = False


def encode(
    columns: pa.RecordBatch | pa.Table,
    *,
    record_type: int = RecordType.RAW,
    payload_bytes_max: int = PAYLOAD_BYTES_DEFAULT,
    find_null_fault: Callable[[], str | None] | None = None,
) -> Iterator[Payload]:
    """Turn columns into payloads of records, in the order of the rows.

    All rows are checked before this returns; payloads are made as they are asked for.

    Args:
        columns: `value`, and where wanted `key`, `timestamp` or `timestamp_ns`, and
            `type`; `topic`, `offset` and `next_offset` are not looked at. Timestamps
            without a zone are taken as UTC.
        record_type: the type of plain values where no `type` column says one.
        payload_bytes_max: how large a payload may be. A record that is larger gets a
            payload of its own.
        find_null_fault: says why no row may become a Null record, None if rows may;
            called only if some would.

    Raises:
        RowError: of the first row that can't be a record, with its index.
        OptionError: if a column is missing, unknown or of a wrong type, or if a number
            given is out of range.
    """
    if not 1 <= payload_bytes_max <= PAYLOAD_BYTES_LIMIT:
        limit = PAYLOAD_BYTES_LIMIT
        raise OptionError(f"a payload of {payload_bytes_max} bytes, not 1 to {limit}")
    check_plain_type(record_type)
    check_columns(columns.schema)
    if isinstance(columns, pa.RecordBatch):
        columns = pa.Table.from_batches([columns])
    plans, row = [], 0
    # Chunks may be tiny, and payloads should not be: hence one chunk, where that is
    # possible. A single one is not copied.
    for batch in columns.combine_chunks().to_batches(max_chunksize=_GROUP_ROWS_MAX):
        plans.append(
            plan_rows(
                batch, record_type, first_row=row, find_null_fault=find_null_fault
            )
        )
        row += batch.num_rows
    return (payload for plan in plans for payload in _cut(plan, payload_bytes_max))


def _cut(plan: Plan, bytes_max: int) -> Iterator[Payload]:
    """Cut the records of a plan into payloads."""
    parts = [cast(_make_prefixes(plan), plan.values.type)]
    if len(plan.keyed):
        parts.append(plan.keys)
    parts.append(plan.values)
    ends = np.cumsum(plan.lengths + RECORD_HEADER_BYTES)
    start, done = 0, 0
    while start < len(ends):
        stop = max(int(np.searchsorted(ends, done + bytes_max, "right")), start + 1)
        rows, size = stop - start, int(ends[stop - 1]) - done
        joined = _join([part.slice(start, rows) for part in parts], size)
        yield Payload(joined, rows, plan.has_nulls)
        start, done = stop, done + size


def _join(parts: list[pa.Array], size: int) -> pa.Buffer:
    """Lay the parts of each row side by side; null is nothing."""
    rows, kind = len(parts[0]), parts[0].type
    if size <= rows * _TAKE_BYTES_MAX:
        order = np.empty((rows, len(parts)), np.uint32)
        for column in range(len(parts)):
            order[:, column] = np.arange(column * rows, (column + 1) * rows)
        everything, by_row = pa.concat_arrays(parts), pa.array(order.ravel())
        joined = pc.take(everything, by_row, boundscheck=False)
    else:
        between = pa.scalar(b"", kind)
        joined = pc.binary_join_element_wise(*parts, between, null_handling="skip")
    # The array was made just now, so its bytes start where its buffer does.
    return joined.buffers()[2].slice(0, size)


def _make_prefixes(plan: Plan) -> pa.Array:
    """Write what comes before key and value: header, timestamp, length of the key."""
    rows = len(plan.types)
    if len(plan.stamped) in (0, rows) and len(plan.keyed) in (0, rows):
        return _make_equal_prefixes(plan)
    sizes = np.full(rows, RECORD_HEADER_BYTES, np.int64)
    sizes[plan.stamped] += STAMP_BYTES
    sizes[plan.keyed] += KEY_LENGTH_BYTES
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    starts, ends = offsets[:-1], offsets[1:]
    data = np.empty(offsets[-1], np.uint8)
    _write_integers(data, starts, "u1", plan.types)
    _write_integers(data, starts + 1, "<u4", plan.lengths)
    stamps_at = starts[plan.stamped] + RECORD_HEADER_BYTES
    _write_integers(data, stamps_at, "<u8", plan.stamps)
    key_lengths_at = ends[plan.keyed] - KEY_LENGTH_BYTES
    _write_integers(data, key_lengths_at, "<u2", plan.key_lengths)
    return _make_binary(offsets, data)


def _make_equal_prefixes(plan: Plan) -> pa.Array:
    """Write prefixes that all have the same fields, which is several times faster."""
    fields = [("type", "u1"), ("length", "<u4")]
    if len(plan.stamped):
        fields.append(("stamp", "<u8"))
    if len(plan.keyed):
        fields.append(("key_length", "<u2"))
    data = np.empty(len(plan.types), fields)
    data["type"] = plan.types
    data["length"] = plan.lengths
    if len(plan.stamped):
        data["stamp"] = plan.stamps
    if len(plan.keyed):
        data["key_length"] = plan.key_lengths
    return _make_binary(np.arange(len(data) + 1) * data.itemsize, data.view(np.uint8))


def _write_integers(
    data: NDArray[np.uint8], at: NDArray[np.int64], dtype: str, integers: NDArray[Any]
) -> None:
    """Write an unaligned integer at each position."""
    kind = np.dtype(dtype)
    # An array in which item i is the integer at byte i; overlapping, and never copied.
    everywhere: NDArray[Any] = np.ndarray(
        len(data) - kind.itemsize + 1, kind, data, 0, (1,)
    )
    everywhere[at] = integers


def _make_binary(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
