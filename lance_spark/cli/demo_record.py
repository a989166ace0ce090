"""The records of the demo: a function of their numbers, so that anybody can check them.

Ten kinds take turns. Each value holds its record's number, except that of a Null
record, which has none. Everything is made by column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lance_spark.model import RecordType

USER_TYPE = 0x80
# Record n is of type `CYCLE[n % len(CYCLE)]`.
CYCLE: tuple[int, ...] = (*RecordType, USER_TYPE)

_KEYED = (RecordType.KEY_VALUE, RecordType.KEY_TIMESTAMPED)
_STAMPED = (RecordType.TIMESTAMPED, RecordType.KEY_TIMESTAMPED)
_FIRST_STAMP_NS = 1_700_000_000_000_000_000

_Numbers = NDArray[np.int64]


def make_records(start: int, end: int) -> pa.RecordBatch:
    """Make the records [start, end) as the columns that `decode` gives back."""
    numbers = np.arange(start, end)
    turns = numbers % len(CYCLE)
    types = np.array(CYCLE, np.int16)[turns]
    # The values of each kind are made together, then put in the order of the records.
    by_kind = [
        _make_values(kind, numbers[turns == turn]) for turn, kind in enumerate(CYCLE)
    ]
    order = np.empty(len(numbers), np.int64)
    order[np.argsort(turns, kind="stable")] = np.arange(len(numbers))
    keyed, stamped = np.isin(types, _KEYED), np.isin(types, _STAMPED)
    stamps = _FIRST_STAMP_NS + numbers * 1_000_003
    return pa.record_batch(
        {
            "type": pa.array(types),
            "key": _mask(_join("user-", numbers % 1000), keyed),
            "value": pc.take(pa.concat_arrays(by_kind), pa.array(order)),
            "timestamp_ns": _mask(pa.array(stamps), stamped),
        }
    )


def _make_values(kind: int, numbers: _Numbers) -> pa.Array:
    make = _MAKERS.get(kind)
    return pa.nulls(len(numbers), pa.binary()) if make is None else make(numbers)


def _join(head: str, numbers: _Numbers, tail: str = "") -> pa.Array:
    digits = pa.array(numbers).cast(pa.string())
    return pc.binary_join_element_wise(head, digits, tail, "").cast(pa.binary())


def _pack(head: bytes, numbers: _Numbers, integer: str, tail: bytes) -> pa.Array:
    fields: list[Any] = [("head", f"S{len(head)}"), ("n", integer)]
    packed = np.empty(len(numbers), [*fields, ("tail", f"S{len(tail)}")])
    packed["head"], packed["n"], packed["tail"] = head, numbers, tail
    kind = pa.binary(packed.dtype.itemsize)
    buffers = [None, pa.py_buffer(packed.tobytes())]
    return pa.Array.from_buffers(kind, len(numbers), buffers).cast(pa.binary())


def _mask(column: pa.Array, valid: NDArray[np.bool_]) -> pa.Array:
    return pc.if_else(pa.array(valid), column, pa.scalar(None, column.type))


_TEXT = " a line of a log that somebody will want to read one day"

# One value of each format: small, and what it claims to be.
_MAKERS: dict[int, Callable[[_Numbers], pa.Array]] = {
    RecordType.RAW: lambda n: _join("GET /items/", n, _TEXT),
    RecordType.JSON: lambda n: _join(
        '{"event":"click","item":', n, ',"page":"/items","agent":"demo","ok":true}'
    ),
    # {"item": uint64, "event": "click"}
    RecordType.MESSAGE_PACK: lambda n: _pack(
        b"\x82\xa4item\xcf", n, ">u8", b"\xa5event\xa5click"
    ),
    # Field 1, fixed64; field 2, a string.
    RecordType.PROTOBUF: lambda n: _pack(b"\x09", n, "<u8", b"\x12\x05click"),
    # {"item": bytes of length 8, "event": string}
    RecordType.AVRO: lambda n: _pack(b"\x10", n, ">u8", b"\x0aclick"),
    RecordType.KEY_VALUE: lambda n: _join("order ", n, _TEXT),
    RecordType.TIMESTAMPED: lambda n: _join("sensor reading ", n, _TEXT),
    RecordType.KEY_TIMESTAMPED: lambda n: _join("payment ", n, _TEXT),
    USER_TYPE: lambda n: _pack(b"\x01\x02\x03\x04", n, "<u8", bytes(range(1, 65))),
}
