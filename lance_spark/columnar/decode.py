"""LWP's bytes to Arrow: `wire.lwp.read_records`, then `columns.write_records`.

For callers that have bytes and want columns in one call. `decode` and `encode` are the
only modules here that know a protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import pyarrow as pa

from lance_spark.columnar.columns import (
    DEFAULT_COLUMNS,
    TYPES,
    make_schema,
    write_good_records,
    write_records,
)
from lance_spark.errors import RecordError
from lance_spark.model import Buffer, Scan
from lance_spark.records import as_bytes
from lance_spark.value import dataclass
from lance_spark.wire.lwp.tlv import read_records, scan

__all__ = ["DEFAULT_COLUMNS", "Decoded", "decode", "make_schema"]


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
    """Turn a buffer of LWP's records into Arrow columns.

    A record is bad if its inner lengths do not fit, or if it does not fit into the
    columns (`columns.write_records`). With `skip` it is left out and counted. A broken
    chain (type 0, a length over the limit, a partial record that is an error) hides
    where the next record starts: with `skip` the rest of the buffer is left out and
    counted as one record, and `Decoded.fault` says so.

    Args:
        data: records, the last one may be partial.
        base_offset: offset of the buffer's first byte in its topic.
        columns: as with `make_schema`.
        topic: what the topic column holds.
        key_type: as with `make_schema`.
        value_type: as with `make_schema`.
        stamp_type: as with `make_schema`.
        on_bad: what to do with bad records.
        partial: whether a record that the buffer ends in is an error, or is not there
            yet and kept: `Decoded.end` is its start then.
        found: where the records start, if that is known: what `scan` says of the same
            bytes, or of as many whole records as are wanted. It is trusted, and
            nothing behind its end is looked at.

    Raises:
        RecordError: of the first bad record. Its position is the record's offset in the
            topic, which counts from `base_offset`.
        OptionError: if the columns can't be had or would have 2 GiB or more.
    """
    schema = make_schema(
        columns, key_type=key_type, value_type=value_type, stamp_type=stamp_type
    )
    view = as_bytes(data)
    if found is None:
        found = scan(view)
    fault = found.fault
    if fault is not None and fault.truncated and partial == "keep":
        found = Scan(found.starts, found.end)
    skip = on_bad == "skip"
    records = read_records(
        view, base_offset=base_offset, found=found, on_bad="skip" if skip else "stop"
    )
    if not skip:
        return Decoded(write_records(records, schema, topic=topic), found.end)
    # Where the chain broke, counted in the topic.
    broken = cast("RecordError | None", records.fault)
    batch, kept = write_good_records(records, schema, topic=topic)
    skipped = len(found.starts) - len(kept)
    sizes = kept.find_nexts() - kept.find_positions()
    skipped_bytes = found.end - int(sizes.sum())
    if broken is None:
        return Decoded(batch, found.end, skipped, skipped_bytes)
    rest = len(view) - found.end
    return Decoded(batch, len(view), skipped + 1, skipped_bytes + rest, broken)
