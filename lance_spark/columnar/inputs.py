"""Arrow to `Records`: the columns of a write, checked, and all kinds of them as one.

Binary and text of every width become spans, times become nanoseconds, a column that is
not there becomes nulls. What records a protocol makes of rows is for the protocol to
say; nothing here knows one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark import kernel
from lance_spark.errors import OptionError, RowError
from lance_spark.records import NO_SPANS, Records, Spans, as_bytes

# The columns that a write looks at, and those that it passes over, so that rows which
# were read can be written. Whether `topic` and `partition` say where a row goes, the
# caller decides.
WRITE_COLUMNS = ("value", "key", "timestamp", "timestamp_ns", "type")
IGNORED_COLUMNS = ("topic", "partition", "offset", "next_offset", "append_time")

_BYTES_OR_TEXT = (
    *(pa.binary(), pa.large_binary(), pa.binary_view()),
    *(pa.string(), pa.large_string(), pa.string_view()),
)
_NS_PER = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}

_STAMP_MAX = 2**64 - 1
_TYPE_MAX = 255

_Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a write as arrays of one kind each; absent ones are null."""

    value: pa.Array
    key: pa.Array
    stamp: pa.Array  # int64, in units of `stamp_unit_ns`.
    stamp_unit_ns: int
    type: pa.Array  # int64


def check_columns(schema: pa.Schema) -> None:
    """Check that a write has the columns it needs, and no others.

    Raises:
        OptionError: naming the columns that are wrong.
    """
    names = schema.names
    others = sorted({*names} - {*WRITE_COLUMNS, *IGNORED_COLUMNS})
    if others:
        used, ignored = _list(WRITE_COLUMNS), _list(IGNORED_COLUMNS)
        raise OptionError(
            f"can't write {_list(others)}: the columns of a write are {used} "
            f"({ignored} may be there); drop the others or put them into value"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionError(f"there is more than one column {_list(twice)}")
    if "value" not in names:
        raise OptionError(f"a write needs a column value; there are {_list(names)}")
    if "timestamp" in names and "timestamp_ns" in names:
        raise OptionError("give timestamp or timestamp_ns, not both: drop one of them")
    for name in (name for name in WRITE_COLUMNS if name in names):
        (accepts, wanted), given = _ACCEPTS[name], schema.field(name).type
        if not (accepts(given) or pa.types.is_null(given)):
            raise OptionError(f"column {name} must be {wanted}, not {given}: cast it")


def read_records(batch: pa.RecordBatch, *, first_row: int = 0) -> Records:
    """Read rows as records; their positions are the indexes of the rows.

    Args:
        batch: columns that passed `check_columns`.
        first_row: index of the batch's first row.

    Returns:
        The records up to the first row that no protocol has a record for. Their `fault`
        is the `RowError` of that row: an impossible timestamp or type.
    """
    columns, rows = read_columns(batch), batch.num_rows
    has_stamp = read_flags(columns.stamp)
    stamped = np.flatnonzero(has_stamp)
    ticks = _read_integers(columns.stamp)[stamped]
    has_type = read_flags(columns.type)
    types = None
    if has_type.any():
        types = _read_integers(columns.type)
    has_key = read_flags(columns.key)
    keyed = np.flatnonzero(has_key)
    keys = _read_spans(columns.key, has_key)
    valued = read_flags(columns.value)
    records = Records(
        values=_read_spans(columns.value, valued),
        base=first_row,
        types=types,
        nulls=None if valued.all() else ~valued,
        keyed=keyed,
        keys=keys if len(keyed) == rows else keys.select(keyed),
        stamped=stamped,
        stamps_ns=ticks.astype(np.uint64) * np.uint64(columns.stamp_unit_ns),
    )
    fault = _find_fault(records, ticks, columns.stamp_unit_ns, has_type)
    if types is not None:
        types = np.where(has_type, types, -1).astype(np.int16)
        records = replace(records, types=types)
    if fault is None:
        return records
    return replace(records.cut(0, fault.row - first_row), fault=fault)


def _find_fault(
    records: Records, ticks: NDArray[np.int64], unit_ns: int, has_type: _Flags
) -> RowError | None:
    """Find the first row of which no protocol could make a record."""
    faults: list[tuple[int, str]] = []
    early = ticks < 0
    if early.any():
        row = int(records.stamped[early.argmax()])
        faults.append((row, "a timestamp before 1970, which no record can hold"))
    # Nanoseconds are signed here, and never too many.
    late = ticks > min(_STAMP_MAX // unit_ns, np.iinfo(np.int64).max)
    if late.any():
        row = int(records.stamped[late.argmax()])
        text = "a timestamp beyond the year 2554, the last that a record can hold"
        faults.append((row, text))
    if records.types is not None:
        wrong = has_type & ((records.types < 0) | (records.types > _TYPE_MAX))
        if wrong.any():
            row = int(wrong.argmax())
            number = records.types[row]
            faults.append((row, f"type {number} can't be one: 0 to 255 can"))
    if not faults:
        return None
    row, text = min(faults)
    return RowError(text, records.position(row))


def read_columns(batch: pa.RecordBatch) -> Columns:
    """Take the columns of a batch that passed `check_columns`."""
    value, key = _read_binary(batch, "value"), _read_binary(batch, "key")
    name = "timestamp" if "timestamp" in batch.schema.names else "timestamp_ns"
    stamp, unit_ns = _get(batch, name), 1
    if pa.types.is_timestamp(stamp.type):
        unit_ns = _NS_PER[stamp.type.unit]
    return Columns(
        value=value,
        key=key,
        stamp=cast(stamp, pa.int64()),
        stamp_unit_ns=unit_ns,
        # A uint64 that wraps turns negative, which is no type either.
        type=cast(_get(batch, "type"), pa.int64(), safe=False),
    )


def hash_keys(batch: pa.RecordBatch) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Compute the CRC-32C of keys; give the rows that have one, and those."""
    column = _read_binary(batch, "key")
    valid = read_flags(column)
    rows = np.flatnonzero(valid)
    keys = _read_spans(column, valid).select(rows)
    return rows, kernel.sum_spans(keys.data, keys.starts, keys.ends)


def _get(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name in batch.schema.names:
        return batch.column(name)
    return pa.nulls(batch.num_rows)


def _read_binary(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = _get(batch, name)
    if pa.types.is_dictionary(column.type):
        column = cast(column, column.type.value_type)
    kind = column.type
    large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    return cast(column, pa.large_binary() if large else pa.binary())


def cast(column: pa.Array, kind: pa.DataType, *, safe: bool = True) -> pa.Array:
    """Cast where there is something to do: to ask Arrow costs as much as 10 k rows."""
    if column.type == kind:
        return column
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), kind)
    return column.cast(kind, safe=safe)


def read_flags(column: pa.Array) -> _Flags:
    """Say which rows are not null."""
    if column.null_count == 0:
        return np.ones(len(column), np.bool_)
    if column.null_count == len(column):
        return np.zeros(len(column), np.bool_)
    # Not `is_valid`, for which Arrow imports all of its functions.
    bits = np.frombuffer(column.buffers()[0], np.uint8)
    end = column.offset + len(column)
    flags = np.unpackbits(bits, count=end, bitorder="little")[column.offset :]
    return flags.view(np.bool_)


def _read_spans(column: pa.Array, valid: _Flags) -> Spans:
    """Look at binary values as spans of their buffer, empty where they are null."""
    data = column.buffers()[2]
    if data is None or not valid.any():
        nowhere = np.zeros(len(column), np.int64)
        return Spans(NO_SPANS.data, nowhere, nowhere)
    wide = pa.types.is_large_binary(column.type)
    offsets = np.frombuffer(column.buffers()[1], np.int64 if wide else np.int32)
    bounds = offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
    starts, ends = bounds[:-1], bounds[1:]
    if column.null_count:
        # What a null lies over may have a length too.
        ends = np.where(valid, ends, starts)
    return Spans(as_bytes(data), starts, ends)


def _read_integers(column: pa.Array) -> NDArray[np.int64]:
    """Look at int64 values; what stands where they are null means nothing."""
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column), np.int64)
    integers = np.frombuffer(data, np.int64)
    return integers[column.offset : column.offset + len(column)]


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _is_bytes_or_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return kind in _BYTES_OR_TEXT or pa.types.is_fixed_size_binary(kind)


# Which Arrow types a column may have, or null, in code and in words.
_ACCEPTS: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "value": (_is_bytes_or_text, "binary or string"),
    "key": (_is_bytes_or_text, "binary or string"),
    "timestamp": (pa.types.is_timestamp, "a timestamp"),
    "timestamp_ns": (pa.types.is_signed_integer, "a signed integer"),
    "type": (pa.types.is_integer, "an integer"),
}
