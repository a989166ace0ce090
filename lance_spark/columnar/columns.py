"""The Arrow arrays of a layout, one function per column.

Values and keys are gathered by Arrow's `take` from an array whose offsets lie over the
raw buffer; numbers are gathered by NumPy. No record becomes a Python object. What to do
about bad records is decided in `decode`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lance_spark.columnar.layout import Layout, explain_bad
from lance_spark.model import RecordType

TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "offset": pa.int64(),
    "next_offset": pa.int64(),
    "type": pa.int16(),
    "key": pa.binary(),
    "value": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ns": pa.int64(),
}

# A column of topics that is kept for the next batch is no larger.
_SHARED_BYTES_MAX = 4 * 1024 * 1024

_NULL = int(RecordType.NULL)
_BIGINT_MAX = 2**63 - 1
_NS_PER_US = np.uint64(1000)

_Bytes = NDArray[np.uint8]
_Positions = NDArray[np.int64]


class BadRows(Exception):
    """Rows that can't be built; never leaves this package.

    Args:
        rows: which ones, ascending.
        explain: says what is wrong with one of them.
    """

    def __init__(self, rows: _Positions, explain: Callable[[int], str]) -> None:
        super().__init__(rows, explain)
        self.rows = rows
        self.explain = explain


@dataclass(frozen=True, slots=True)
class Source:
    """What the columns are made of."""

    data: _Bytes
    layout: Layout
    base_offset: int
    topic: str | None


def build_batch(source: Source, schema: pa.Schema) -> pa.RecordBatch:
    """Build the columns of a schema.

    Raises:
        BadRows: all rows with one kind of fault; further ones may have another.
    """
    data, layout = source.data, source.layout
    if len(layout.bad):
        raise BadRows(layout.bad, lambda row: explain_bad(data, layout, row))
    arrays = [_BUILDERS[field.name](source, field.type) for field in schema]
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    # A batch without columns still has rows, which only a struct can say.
    rows = pa.Array.from_buffers(pa.struct([]), len(layout.starts), [None])
    return pa.RecordBatch.from_struct_array(rows)


def _build_topic(source: Source, kind: pa.DataType) -> pa.Array:
    rows, name = len(source.layout.starts), str(source.topic)
    # Of the next power of two, so that batches of about the same size share one array.
    shared = 1 << rows.bit_length()
    if shared * len(name) > _SHARED_BYTES_MAX:
        return pa.repeat(pa.scalar(name, kind), rows)
    return _repeat(name, kind, shared).slice(0, rows)


@lru_cache(maxsize=8)
def _repeat(text: str, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, kind), rows)


def _build_offset(source: Source, kind: pa.DataType) -> pa.Array:
    return pa.array(source.layout.starts + source.base_offset, kind)


def _build_next_offset(source: Source, kind: pa.DataType) -> pa.Array:
    return pa.array(source.layout.ends + source.base_offset, kind)


def _build_type(source: Source, kind: pa.DataType) -> pa.Array:
    return pa.array(source.layout.types.astype(np.int16), kind)


def _build_timestamp(source: Source, kind: pa.DataType) -> pa.Array:
    layout, stamps = source.layout, source.layout.stamps
    if pa.types.is_timestamp(kind):
        # Every timestamp of a record fits here, up to the year 2554.
        stamps = stamps // _NS_PER_US
    elif pa.types.is_signed_integer(kind):
        _check_stamps(layout)
    return _spread_numbers(stamps.view(np.int64), layout, kind)


def _build_value(source: Source, kind: pa.DataType) -> pa.Array:
    layout = source.layout
    _, offsets, values = _gather(source.data, layout.value_starts, layout.ends)
    valid = layout.types != _NULL
    return _as_kind(_make_binary(valid, offsets, values), kind, "value")


def _build_key(source: Source, kind: pa.DataType) -> pa.Array:
    layout = source.layout
    rows, keyed = len(layout.starts), layout.keyed
    if not len(keyed):
        return pa.nulls(rows, kind)
    key_ends = layout.value_starts[keyed]
    _, offsets, keys = _gather(source.data, layout.key_starts, key_ends)
    valid = np.zeros(rows, np.bool_)
    valid[keyed] = True
    if len(keyed) < rows:
        # The bytes are those of the rows with a key; the others get nothing of them.
        sizes = np.zeros(rows + 1, np.int32)
        sizes[keyed + 1] = key_ends - layout.key_starts
        offsets = pa.py_buffer(np.cumsum(sizes, dtype=np.int32))
    return _as_kind(_make_binary(valid, offsets, keys), kind, "key")


_BUILDERS: dict[str, Callable[[Source, pa.DataType], pa.Array]] = {
    "topic": _build_topic,
    "offset": _build_offset,
    "next_offset": _build_next_offset,
    "type": _build_type,
    "key": _build_key,
    "value": _build_value,
    "timestamp": _build_timestamp,
    "timestamp_ns": _build_timestamp,
}


def _check_stamps(layout: Layout) -> None:
    """Check that timestamps fit into a signed number."""
    late = layout.stamps > _BIGINT_MAX
    if late.any():

        def explain(row: int) -> str:
            stamp = layout.stamps[np.searchsorted(layout.stamped, row)]
            return (
                f"timestamp {stamp} ns does not fit into timestamp_ns, which ends in "
                "the year 2262: read column timestamp instead, which has microseconds"
            )

        raise BadRows(layout.stamped[late], explain)


def _spread_numbers(
    numbers: NDArray[np.int64], layout: Layout, kind: pa.DataType
) -> pa.Array:
    """Make a column of the numbers of some rows, null elsewhere."""
    rows, which = len(layout.starts), layout.stamped
    if not len(which):
        return pa.nulls(rows, kind)
    validity = None
    if len(which) < rows:
        full = np.zeros(rows, np.int64)
        full[which] = numbers
        valid = np.zeros(rows, np.bool_)
        valid[which] = True
        numbers, validity = full, _make_bitmap(valid)
    return pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(numbers)])


def _gather(data: _Bytes, starts: _Positions, ends: _Positions) -> list[pa.Buffer]:
    """Copy ranges of the data into one buffer; ascending, not overlapping.

    Returns the buffers of the binary array that holds them.
    """
    # Of an array whose offsets are start, end, start, end ..., every other element is a
    # wanted range and the ones between are what lies between them.
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[0::2] = starts
    bounds[1::2] = ends
    everything = pa.Array.from_buffers(
        pa.binary(),
        max(len(bounds) - 1, 0),
        [None, pa.py_buffer(bounds), pa.py_buffer(data)],
    )
    wanted = pa.array(np.arange(0, len(bounds), 2, dtype=np.uint32))
    taken: list[pa.Buffer] = pc.take(everything, wanted, boundscheck=False).buffers()
    return taken


def _make_binary(
    valid: NDArray[np.bool_], offsets: pa.Buffer, values: pa.Buffer
) -> pa.Array:
    validity = None if valid.all() else _make_bitmap(valid)
    return pa.Array.from_buffers(pa.binary(), len(valid), [validity, offsets, values])


def _make_bitmap(valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _as_kind(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    if kind == array.type:
        return array
    try:
        return array.cast(kind)  # Checks that the bytes are UTF-8, copies nothing.
    except pa.ArrowInvalid:
        rows = np.array(_find_not_text(array, 0), np.int64)
        raise BadRows(rows, lambda row: f"the {name} is not UTF-8") from None


def _find_not_text(array: pa.Array, row: int) -> list[int]:
    """Find the rows that are not UTF-8 by halving; Arrow names none when it refuses."""
    try:
        array.cast(pa.string())
    except pa.ArrowInvalid:
        if len(array) == 1:
            return [row]
        half = len(array) // 2
        return [
            *_find_not_text(array.slice(0, half), row),
            *_find_not_text(array.slice(half), row + half),
        ]
    return []
