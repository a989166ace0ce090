"""`Records` to Arrow: one array per column that is asked for.

Values and keys are laid one behind the other by the kernel, numbers are gathered by
NumPy. No record becomes a Python object, and nothing here knows a protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark import kernel
from lance_spark.errors import OptionError, RecordError
from lance_spark.records import Records, Spans

TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "next_offset": pa.int64(),
    "type": pa.int16(),
    "key": pa.binary(),
    "value": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ns": pa.int64(),
}

# What is built when no columns are named: the row schema without the topic, which only
# the caller knows.
DEFAULT_COLUMNS = ("offset", "type", "key", "value", "timestamp")

# Arrow's binary and string arrays have signed 32-bit offsets.
COLUMN_BYTES_MAX = 2**31 - 1

_BYTES_OR_TEXT = (pa.binary(), pa.string())
_WHOLE_NUMBERS = (pa.int64(), pa.uint64())
_BIGINT_MAX = 2**63 - 1
_NS_PER_US = np.uint64(1000)


class BadRows(Exception):
    """Rows that can't be built; never leaves this package.

    Args:
        rows: which ones, ascending.
        explain: says what is wrong with one of them.
    """

    def __init__(self, rows: NDArray[np.int64], explain: Callable[[int], str]) -> None:
        super().__init__(rows, explain)
        self.rows = rows
        self.explain = explain


def make_schema(
    columns: Sequence[str] = DEFAULT_COLUMNS,
    *,
    key_type: pa.DataType = TYPES["key"],
    value_type: pa.DataType = TYPES["value"],
    stamp_type: pa.DataType = TYPES["timestamp_ns"],
) -> pa.Schema:
    """Make the schema of batches with these columns, in the order wanted.

    Args:
        columns: any of topic, partition, offset, next_offset, type, key, value,
            timestamp and timestamp_ns.
        key_type: binary or string.
        value_type: binary or string.
        stamp_type: of timestamp_ns: int64, as Spark has it, or uint64, which holds
            every timestamp.

    Raises:
        OptionError: if a column or a type can't be had.
    """
    unknown = [name for name in columns if name not in TYPES]
    if unknown:
        there = ", ".join(TYPES)
        raise OptionError(f"no such column: {', '.join(unknown)}; there are {there}")
    if len(set(columns)) != len(columns):
        raise OptionError(f"a column is asked for twice: {', '.join(columns)}")
    types = {**TYPES, "key": key_type, "value": value_type, "timestamp_ns": stamp_type}
    for name in ("key", "value"):
        if types[name] not in _BYTES_OR_TEXT:
            raise OptionError(f"{name} can be binary or string, not {types[name]}")
    if stamp_type not in _WHOLE_NUMBERS:
        raise OptionError(f"timestamp_ns can be int64 or uint64, not {stamp_type}")
    return pa.schema([(name, types[name]) for name in columns])


def write_records(
    records: Records, schema: pa.Schema, *, topic: str | None = None, partition: int = 0
) -> pa.RecordBatch:
    """Make the columns of a schema.

    Args:
        records: those of any protocol.
        schema: what `make_schema` made.
        topic: what the topic column holds.
        partition: what the partition column holds.

    Raises:
        RecordError: of the first record that does not fit into its columns, with its
            position: its timestamp is beyond int64 and asked for as such, or its key or
            value is not UTF-8 and asked for as a string.
        LanceError: the `fault` of the records.
        OptionError: a topic column without a topic, or too many bytes for one column.
    """
    _check_topic(schema, topic)
    error = records.fault
    while True:
        try:
            batch = _build(records, schema, topic, partition)
        except BadRows as bad:
            row = int(bad.rows[0])
            error = RecordError(bad.explain(row), records.position(row))
            # A record before this one may be bad in a way that comes to light later.
            records = records.cut(0, row)
        else:
            if error is not None:
                raise error
            return batch


def write_good_records(
    records: Records, schema: pa.Schema, *, topic: str | None = None, partition: int = 0
) -> tuple[pa.RecordBatch, Records]:
    """Make the columns of a schema for the records that fit into them.

    Takes what `write_records` takes, and leaves out the records for which that raises.
    A `fault` of the records is left to the caller.

    Returns:
        The columns, and the records that are in them.
    """
    _check_topic(schema, topic)
    while True:
        try:
            return _build(records, schema, topic, partition), records
        except BadRows as bad:
            good = np.delete(np.arange(len(records)), bad.rows)
            records = records.select(good)


def _check_topic(schema: pa.Schema, topic: str | None) -> None:
    if topic is None and "topic" in schema.names:
        raise OptionError("a topic column is asked for, but no topic is given")


def _build(
    records: Records, schema: pa.Schema, topic: str | None, partition: int
) -> pa.RecordBatch:
    """Build all columns.

    Raises:
        BadRows: all rows with one kind of fault; further ones may have another.
    """
    rows = len(records)
    build: dict[str, Callable[[Records, pa.DataType], pa.Array]] = {
        **_BUILDERS,
        "topic": lambda _, kind: _repeat(str(topic), rows, kind),
        "partition": lambda _, kind: make_integers(
            np.full(rows, partition, np.int32), kind
        ),
    }
    arrays = [build[field.name](records, field.type) for field in schema]
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    # A batch without columns still has rows, which only a struct can say.
    nothing = pa.Array.from_buffers(pa.struct([]), rows, [None])
    return pa.RecordBatch.from_struct_array(nothing)


def make_integers(values: NDArray[np.integer], kind: pa.DataType) -> pa.Array:
    """Make an array of integers, without a copy.

    Unlike `pa.array` it does not look for pandas, which takes a fresh process longer to
    import than everything that a task of Spark needs.
    """
    assert values.itemsize * 8 == kind.bit_width
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [None, data])


def _repeat(text: str, rows: int, kind: pa.DataType) -> pa.Array:
    # Several times faster than `pa.repeat`.
    data = text.encode()
    _check_size(rows * len(data))
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(data))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data * rows)]
    return pa.Array.from_buffers(kind, rows, buffers)


def _build_type(records: Records, kind: pa.DataType) -> pa.Array:
    if records.types is None:
        return pa.nulls(len(records), kind)
    return make_integers(records.types.astype(np.int16, copy=False), kind)


def _build_timestamp(records: Records, kind: pa.DataType) -> pa.Array:
    stamps = records.stamps_ns
    if pa.types.is_timestamp(kind):
        # Every timestamp of a record fits here, up to the year 2554.
        stamps = stamps // _NS_PER_US
    elif pa.types.is_signed_integer(kind):
        _check_stamps(records)
    rows, stamped = len(records), records.stamped
    if not len(stamped):
        return pa.nulls(rows, kind)
    validity = None
    if len(stamped) < rows:
        full = np.zeros(rows, np.uint64)
        full[stamped] = stamps
        stamps, validity = full, _make_bitmap(_mark(stamped, rows))
    return pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(stamps)])


def _check_stamps(records: Records) -> None:
    """Check that timestamps fit into a signed number."""
    late = records.stamps_ns > _BIGINT_MAX
    if late.any():

        def explain(row: int) -> str:
            stamp = records.stamps_ns[np.searchsorted(records.stamped, row)]
            return (
                f"timestamp {stamp} ns does not fit into timestamp_ns, which ends in "
                "the year 2262: read column timestamp instead, which has microseconds"
            )

        raise BadRows(records.stamped[late], explain)


def _build_value(records: Records, kind: pa.DataType) -> pa.Array:
    offsets, data = _gather(records.values)
    valid = None if records.nulls is None else ~records.nulls
    return _make_binary(valid, offsets, data, kind, "value")


def _build_key(records: Records, kind: pa.DataType) -> pa.Array:
    rows, keyed = len(records), records.keyed
    if not len(keyed):
        return pa.nulls(rows, kind)
    offsets, data = _gather(records.keys)
    if len(keyed) == rows:
        return _make_binary(None, offsets, data, kind, "key")
    # The bytes are those of the rows with a key; the others get nothing of them.
    sizes = np.zeros(rows + 1, np.int32)
    sizes[keyed + 1] = records.keys.lengths
    offsets = np.cumsum(sizes, dtype=np.int32)
    return _make_binary(_mark(keyed, rows), offsets, data, kind, "key")


_BUILDERS: dict[str, Callable[[Records, pa.DataType], pa.Array]] = {
    "offset": lambda records, kind: make_integers(records.find_positions(), kind),
    "next_offset": lambda records, kind: make_integers(records.find_nexts(), kind),
    "type": _build_type,
    "key": _build_key,
    "value": _build_value,
    "timestamp": _build_timestamp,
    "timestamp_ns": _build_timestamp,
}


def _gather(spans: Spans) -> tuple[NDArray[np.int32], pa.Buffer]:
    """Copy spans one behind the other; give the offsets, and the bytes."""
    offsets = np.empty(len(spans) + 1, np.int32)
    total = kernel.measure(spans.starts, spans.ends, offsets)
    _check_size(total)
    data = pa.allocate_buffer(total)
    kernel.weave(data, [(spans.data, spans.starts, spans.ends)])
    return offsets, data


def _check_size(size: int) -> None:
    if size > COLUMN_BYTES_MAX:
        limit = COLUMN_BYTES_MAX
        raise OptionError(f"{size} bytes to decode at once, {limit} are the most")


def _mark(rows: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    marks = np.zeros(count, np.bool_)
    marks[rows] = True
    return marks


def _make_bitmap(valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _make_binary(
    valid: NDArray[np.bool_] | None,
    offsets: NDArray[np.int32],
    data: pa.Buffer,
    kind: pa.DataType,
    name: str,
) -> pa.Array:
    validity = None if valid is None or valid.all() else _make_bitmap(valid)
    buffers = [validity, pa.py_buffer(offsets), data]
    array = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
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
