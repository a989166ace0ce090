"""TLV bytes to Arrow: which columns, and what becomes of bad records.

Where records start is `scan`, what is inside them is `layout`, how an array is built is
`columns`. This file puts them together and must not look at bytes itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from lance_spark.columnar.buffer import as_bytes
from lance_spark.columnar.columns import TYPES, BadRows, Source, build_batch
from lance_spark.columnar.layout import find_ends, lay_out
from lance_spark.columnar.scan import scan
from lance_spark.errors import OptionError, RecordError
from lance_spark.model import Buffer, Scan

# What is built when no columns are named: the row schema without the topic, which only
# the caller knows.
DEFAULT_COLUMNS = ("offset", "type", "key", "value", "timestamp")

# Arrow's binary and string arrays have signed 32-bit offsets.
DECODE_BYTES_MAX = 2**31 - 1

_BYTES_OR_TEXT = (pa.binary(), pa.string())
_WHOLE_NUMBERS = (pa.int64(), pa.uint64())


@dataclass(frozen=True, slots=True)
class Decoded:
    """The records of a buffer as columns.

    Args:
        batch: the columns that were asked for, in that order.
        end: position in the buffer behind what was consumed, records and skipped bytes
            alike. A partial record that was kept starts there.
        skipped: how many records were skipped as bad.
        skipped_bytes: how many bytes were skipped with them.
        fault: where and why the chain of records broke, if it did and was skipped. No
            record is known to start at `end` then: decoding must not go on there.
    """

    batch: pa.RecordBatch
    end: int
    skipped: int = 0
    skipped_bytes: int = 0
    fault: RecordError | None = None

    def batches(self, rows_max: int) -> Iterator[pa.RecordBatch]:
        """Cut the batch into batches of at most `rows_max` rows, without a copy."""
        for start in range(0, self.batch.num_rows, rows_max):
            yield self.batch.slice(start, rows_max)


def decode(
    data: Buffer,
    *,
    base_offset: int = 0,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    topic: str | None = None,
    key_type: pa.DataType = TYPES["key"],
    value_type: pa.DataType = TYPES["value"],
    stamp_type: pa.DataType = TYPES["timestamp_ns"],
    on_bad: Literal["fail", "skip"] = "fail",
    partial: Literal["error", "keep"] = "error",
    found: Scan | None = None,
) -> Decoded:
    """Turn a buffer of records into Arrow columns.

    A record is bad if its inner lengths do not fit; if its timestamp is beyond int64
    (the year 2262) and is asked for as such; if its key or value is not UTF-8 and is
    asked for as string. With `skip` it is left out and counted. A broken
    chain (type 0, a length over the limit, a partial record that is an error) hides
    where the next record starts: with `skip` the rest of the buffer is left out and
    counted as one record, and `Decoded.fault` says so.

    Args:
        data: records, the last one may be partial.
        base_offset: offset of the buffer's first byte in its topic.
        columns: any of topic, offset, next_offset, type, key, value, timestamp and
            timestamp_ns, in the order wanted.
        topic: what the topic column holds.
        key_type: binary or string.
        value_type: binary or string.
        stamp_type: of timestamp_ns: int64, as Spark has it, or uint64, which holds
            every timestamp.
        on_bad: what to do with bad records.
        partial: whether a record that the buffer ends in is an error, or is not there
            yet and kept: `Decoded.end` is its start then.
        found: where the records start, if that is known: what `scan` says of the same
            bytes, or of as many whole records as are wanted. It is trusted, and
            nothing behind its end is looked at.

    Raises:
        RecordError: of the first bad record. Its position is the record's offset in the
            topic, which counts from `base_offset`.
        OptionError: if the columns can't be had or the buffer is 2 GiB or more.
    """
    schema = make_schema(
        columns, key_type=key_type, value_type=value_type, stamp_type=stamp_type
    )
    if "topic" in columns and topic is None:
        raise OptionError("a topic column is asked for, but no topic is given")
    view = as_bytes(data)
    if len(view) > DECODE_BYTES_MAX:
        size, limit = len(view), DECODE_BYTES_MAX
        raise OptionError(f"{size} bytes to decode at once, {limit} are the most")
    if found is None:
        found = scan(view)
    # A record that ends behind the buffer would be read from foreign memory.
    assert found.end <= len(view), "records that are not of this buffer"
    fault = found.fault
    if fault is not None:
        fault = _move(fault, base_offset)
        if fault.truncated and partial == "keep":
            fault = None
    source = Source(
        view,
        lay_out(view, found.starts, find_ends(found)),
        base_offset,
        topic,
    )
    if on_bad == "fail":
        batch = _build_or_fail(source, schema)
        if fault is not None:
            raise fault
        return Decoded(batch, found.end)
    batch, skipped, skipped_bytes = _build_or_skip(source, schema)
    if fault is None:
        return Decoded(batch, found.end, skipped, skipped_bytes)
    rest = len(view) - found.end
    return Decoded(batch, len(view), skipped + 1, skipped_bytes + rest, fault)


def make_schema(
    columns: Sequence[str] = DEFAULT_COLUMNS,
    *,
    key_type: pa.DataType = TYPES["key"],
    value_type: pa.DataType = TYPES["value"],
    stamp_type: pa.DataType = TYPES["timestamp_ns"],
) -> pa.Schema:
    """Make the schema of the batches that `decode` builds for the same arguments.

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


def _build_or_fail(source: Source, schema: pa.Schema) -> pa.RecordBatch:
    error: RecordError | None = None
    while True:
        try:
            batch = build_batch(source, schema)
        except BadRows as bad:
            row = int(bad.rows[0])
            position = int(source.layout.starts[row]) + source.base_offset
            error = RecordError(bad.explain(row), position)
            # A record before this one may be bad in a way that comes to light later.
            source = _keep(source, np.arange(row))
        else:
            if error is not None:
                raise error
            return batch


def _build_or_skip(
    source: Source, schema: pa.Schema
) -> tuple[pa.RecordBatch, int, int]:
    skipped = skipped_bytes = 0
    while True:
        try:
            return build_batch(source, schema), skipped, skipped_bytes
        except BadRows as bad:
            sizes = source.layout.ends - source.layout.starts
            skipped += len(bad.rows)
            skipped_bytes += int(sizes[bad.rows].sum())
            source = _keep(source, np.delete(np.arange(len(sizes)), bad.rows))


def _keep(source: Source, rows: np.ndarray) -> Source:
    layout = lay_out(source.data, source.layout.starts[rows], source.layout.ends[rows])
    return Source(source.data, layout, source.base_offset, source.topic)


def _move(error: RecordError, base_offset: int) -> RecordError:
    position = error.position + base_offset
    return type(error)(error.reason, position, truncated=error.truncated)
