"""What record each row of a write becomes, and which rows can't become one.

    key    timestamp  value   record
    null   null       null    0xFF Null
    null   null       given   the row's `type`, else the default: a plain value
    given  null       given   0x10 KeyValue
    null   given      given   0x11 Timestamped
    given  given      given   0x12 KeyTimestamped
    other combinations        an error: LWP has no record for them

Only decisions live here: columns are read in `inputs`, bytes are laid out in `encode`.
Everything is decided for all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark.columnar.inputs import (
    read_columns,
    read_flags,
    read_integers,
    read_lengths,
)
from lance_spark.columnar.layout import KEY_LENGTH_BYTES, STAMP_BYTES
from lance_spark.errors import OptionError, RowError
from lance_spark.model import RECORD_VALUE_BYTES_MAX, RecordType

KEY_BYTES_MAX = 2**16 - 1

_STAMP_MAX = 2**64 - 1

_Rows = NDArray[np.int64]
_Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Plan:
    """The records that rows become.

    Args:
        types: the record types.
        lengths: the length of each record, key and timestamp among it.
        values: the values; binary or large binary, null for a Null record.
        keyed: the rows that have a key, ascending.
        keys: the keys of all rows, of the type of the values.
        key_lengths: the lengths of the keys of the rows that have one.
        stamped: the rows that have a timestamp, ascending.
        stamps: the timestamps of those rows, in ns since 1970.
        has_nulls: whether some are Null records.
    """

    types: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    values: pa.Array
    keyed: _Rows
    keys: pa.Array
    key_lengths: NDArray[np.int64]
    stamped: _Rows
    stamps: NDArray[np.uint64]
    has_nulls: bool


# Which type the parts of a row need, by 1 for a value, 2 for a key and 4 for a
# timestamp; 0 is any type of a plain value.
_NEEDED = np.array(
    [
        RecordType.NULL,
        0,
        *(2 * [RecordType.KEY_VALUE]),
        *(2 * [RecordType.TIMESTAMPED]),
        *(2 * [RecordType.KEY_TIMESTAMPED]),
    ],
    np.uint8,
)

# What is wrong with some rows: which ones, and a text for one of them.
_Fault = tuple[_Flags, Callable[[int], str]]


def check_plain_type(record_type: int) -> None:
    """Check that a number can be the type of plain values.

    Raises:
        OptionError: if it is reserved or means a key, a timestamp or a Null record.
    """
    is_number = isinstance(record_type, int)
    if not is_number or not _is_plain_type(np.array([record_type]))[0]:
        raise OptionError(
            f"record type {record_type!r} can't be that of plain values: "
            "1 to 254 can, except 16, 17 and 18, which a key and a timestamp choose"
        )


def plan_rows(
    batch: pa.RecordBatch,
    record_type: int,
    *,
    first_row: int = 0,
    find_null_fault: Callable[[], str | None] | None = None,
) -> Plan:
    """Decide what record each row of a batch becomes.

    Args:
        batch: columns that passed `check_columns`.
        record_type: the type of plain values that no `type` column says.
        first_row: index of the batch's first row, for errors.
        find_null_fault: says why no row may become a Null record, None if rows may;
            called only if some would.

    Raises:
        RowError: of the first row that can't be a record.
    """
    columns = read_columns(batch)
    valued, has_key, has_stamp = (
        read_flags(column) for column in (columns.value, columns.key, columns.stamp)
    )
    key_lengths = read_lengths(columns.key, has_key)
    ticks = read_integers(columns.stamp, has_stamp)
    lengths = read_lengths(columns.value, valued) + key_lengths
    lengths += has_stamp * np.int64(STAMP_BYTES)
    lengths += has_key * np.int64(KEY_LENGTH_BYTES)

    types, type_faults = _choose_types(
        columns.type,
        _NEEDED[valued + np.uint8(2) * has_key + np.uint8(4) * has_stamp],
        record_type,
    )
    has_nulls = not valued.all()
    _raise_first(
        [
            *_find_value_faults(valued, has_key, has_stamp),
            *_find_null_faults(valued | has_key | has_stamp, find_null_fault),
            *type_faults,
            *_find_stamp_faults(ticks, columns.stamp_unit_ns),
            *_find_size_faults(lengths, key_lengths),
        ],
        first_row,
    )
    keyed, stamped = np.flatnonzero(has_key), np.flatnonzero(has_stamp)
    return Plan(
        types=types,
        lengths=lengths,
        values=columns.value,
        keyed=keyed,
        keys=columns.key,
        key_lengths=key_lengths[keyed],
        stamped=stamped,
        stamps=ticks[stamped].astype(np.uint64) * np.uint64(columns.stamp_unit_ns),
        has_nulls=has_nulls,
    )


def _choose_types(
    column: pa.Array, needed: NDArray[np.uint8], record_type: int
) -> tuple[NDArray[np.uint8], list[_Fault]]:
    types = np.where(needed == 0, np.uint8(record_type), needed)
    if column.null_count == len(column):
        return types, []
    said = read_flags(column)
    given = read_integers(column, said)
    free = said & (needed == 0)
    faults: list[_Fault] = [
        (
            said & (needed != 0) & (given != needed),
            lambda row: (
                f"type {given[row]} contradicts its key, timestamp and value, which "
                f"need {needed[row]}: make the type null to let them choose"
            ),
        ),
        (
            free & ~_is_plain_type(given),
            lambda row: (
                f"type {given[row]} can't be that of a plain value: "
                "1 to 254 can, except 16, 17 and 18, which a key and a timestamp choose"
            ),
        ),
    ]
    return np.where(free, given.astype(np.uint8), types), faults


def _find_value_faults(
    valued: _Flags, has_key: _Flags, has_stamp: _Flags
) -> list[_Fault]:
    return [
        (
            has_key & ~valued,
            lambda row: (
                "a key but no value: LWP has no keyed tombstone; "
                "write an empty value, or filter such rows out"
            ),
        ),
        (
            has_stamp & ~valued,
            lambda row: (
                "a timestamp but no value: a Null record carries no timestamp; "
                "write an empty value, or make the timestamp null too"
            ),
        ),
    ]


def _find_null_faults(
    has_any: _Flags, find_reason: Callable[[], str | None] | None
) -> list[_Fault]:
    if find_reason is None or has_any.all():
        return []
    reason = find_reason()
    return [] if reason is None else [(~has_any, lambda row: reason)]


def _find_stamp_faults(ticks: NDArray[np.int64], unit_ns: int) -> list[_Fault]:
    return [
        (
            ticks < 0,
            lambda row: "a timestamp before 1970, which LWP can't hold",
        ),
        (
            # Nanoseconds are signed here, and never too many.
            ticks > min(_STAMP_MAX // unit_ns, np.iinfo(np.int64).max),
            lambda row: "a timestamp beyond the year 2554, the last that LWP can hold",
        ),
    ]


def _find_size_faults(
    lengths: NDArray[np.int64], key_lengths: NDArray[np.int64]
) -> list[_Fault]:
    return [
        (
            key_lengths > KEY_BYTES_MAX,
            lambda row: (
                f"a key of {key_lengths[row]} bytes, {KEY_BYTES_MAX} are the most"
            ),
        ),
        (
            lengths > RECORD_VALUE_BYTES_MAX,
            lambda row: (
                f"a record of {lengths[row]} bytes with key and timestamp, "
                f"{RECORD_VALUE_BYTES_MAX} are the most: split the value"
            ),
        ),
    ]


def _raise_first(faults: list[_Fault], first_row: int) -> None:
    """Raise the error of the first row that has a fault."""
    found = [(int(bad.argmax()), text) for bad, text in faults if bad.any()]
    if found:
        row, text = min(found, key=lambda fault: fault[0])
        raise RowError(text(row), first_row + row)


def _is_plain_type(types: NDArray[np.int64]) -> _Flags:
    structured = (types >= RecordType.KEY_VALUE) & (types <= RecordType.KEY_TIMESTAMPED)
    return (types > 0) & (types < RecordType.NULL) & ~structured
