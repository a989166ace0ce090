"""The columns of a write: which there may be, and all kinds of them as one kind.

Binary and text of every width become binary, numbers become int64, a column that is
not there becomes nulls. What rows mean is `rows`; no bytes are written here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark.errors import OptionError

# The columns that a write looks at, and those that it passes over, so that what was read
# can be written. Whether `topic` says where a row goes is for the caller to decide.
WRITE_COLUMNS = ("value", "key", "timestamp", "timestamp_ns", "type")
IGNORED_COLUMNS = ("topic", "offset", "next_offset")

_NS_PER = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}

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
    others = sorted(
        {name for name in names if name not in WRITE_COLUMNS + IGNORED_COLUMNS}
    )
    if others:
        raise OptionError(
            f"can't write {_list(others)}: the columns of a write are {_list(WRITE_COLUMNS)} "
            f"({_list(IGNORED_COLUMNS)} may be there); drop the others or put them into value"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionError(f"there is more than one column {_list(twice)}")
    if "value" not in names:
        raise OptionError(f"a write needs a column value; there are {_list(names)}")
    if "timestamp" in names and "timestamp_ns" in names:
        raise OptionError("give timestamp or timestamp_ns, not both: drop one of them")
    for name in WRITE_COLUMNS:
        if name in names and not _ACCEPTS[name][0](schema.field(name).type):
            wanted, given = _ACCEPTS[name][1], schema.field(name).type
            raise OptionError(f"column {name} must be {wanted}, not {given}: cast it")


def read_columns(batch: pa.RecordBatch) -> Columns:
    """Take the columns of a batch that passed `check_columns`."""
    value, key = _read_binary(batch, "value"), _read_binary(batch, "key")
    # Arrays that are laid side by side must be of one type.
    if value.type != key.type:
        value, key = cast(value, pa.large_binary()), cast(key, pa.large_binary())
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
    flags: _Flags = column.is_valid().to_numpy(zero_copy_only=False)
    return flags


def read_lengths(column: pa.Array, valid: _Flags) -> NDArray[np.int64]:
    """Measure binary values, 0 where they are null."""
    if not valid.any():
        return np.zeros(len(column), np.int64)
    wide = pa.types.is_large_binary(column.type)
    offsets = np.frombuffer(column.buffers()[1], np.int64 if wide else np.int32)
    ends = offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
    # What a null lies over may have a length too.
    return (ends[1:] - ends[:-1]) * valid


def read_integers(column: pa.Array, valid: _Flags) -> NDArray[np.int64]:
    """Copy int64 values, 0 where they are null."""
    if not valid.any():
        return np.zeros(len(column), np.int64)
    integers = np.frombuffer(column.buffers()[1], np.int64)
    return integers[column.offset : column.offset + len(column)] * valid


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _is_bytes_or_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
            pa.types.is_fixed_size_binary,
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_null,
        )
    )


def _is_timestamp(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_null(kind))


def _is_signed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(kind) or pa.types.is_null(kind))


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_null(kind))


# Which Arrow types a column may have, in code and in words.
_ACCEPTS: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "value": (_is_bytes_or_text, "binary or string"),
    "key": (_is_bytes_or_text, "binary or string"),
    "timestamp": (_is_timestamp, "a timestamp"),
    "timestamp_ns": (_is_signed, "a signed integer"),
    "type": (_is_integer, "an integer"),
}
