"""Arrow to LWP's bytes: `inputs.read_records`, then `wire.lwp.write_payloads`.

For callers that have columns and want payloads in one call. `decode` and `encode` are
the only modules here that know a protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import pyarrow as pa

from lance_spark.columnar.inputs import check_columns, read_records
from lance_spark.wire.lwp.record import RecordType
from lance_spark.wire.lwp.tlv import PAYLOAD_BYTES_DEFAULT, Payload, write_payloads

__all__ = ["Payload", "encode"]

# Rows are planned in groups of this size, to bound the memory that planning takes. A
# payload ends where its group does.
_GROUP_ROWS_MAX = 1 << 22


def encode(
    columns: pa.RecordBatch | pa.Table,
    *,
    record_type: int = RecordType.RAW,
    payload_bytes_max: int = PAYLOAD_BYTES_DEFAULT,
    find_null_fault: Callable[[], str | None] | None = None,
) -> Iterator[Payload]:
    """Turn columns into payloads of LWP's records, in the order of the rows.

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
    check_columns(columns.schema)
    if isinstance(columns, pa.RecordBatch):
        columns = pa.Table.from_batches([columns])
    payloads, row = [], 0
    # Chunks may be tiny, and payloads should not be: hence one chunk, where that is
    # possible. A single one is not copied. No rows are checked, too.
    batches = columns.combine_chunks().to_batches(max_chunksize=_GROUP_ROWS_MAX)
    for batch in batches or [pa.RecordBatch.from_pylist([], columns.schema)]:
        payloads.append(
            write_payloads(
                read_records(batch, first_row=row),
                record_type=record_type,
                payload_bytes_max=payload_bytes_max,
                find_null_fault=find_null_fault,
                # Arrow's pool gives memory out again; the system's would be cleared.
                allocate=pa.allocate_buffer,
            )
        )
        row += batch.num_rows
    return chain.from_iterable(payloads)
