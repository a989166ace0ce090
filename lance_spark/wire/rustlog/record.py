"""RustLog's records in bulk: values behind their lengths, and nothing else.

    length u32be | value | length u32be | value | …

A message says before them how many they are. Fetched records are numbered by the next
offset behind them: see `message.FetchResponse`. Keys, times and types of `Records` have
no place here and are left out; a null value becomes an empty one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lance_spark import kernel
from lance_spark.errors import RemoteProtocolError, RowError
from lance_spark.model import Buffer
from lance_spark.records import Records, Spans, as_bytes
from lance_spark.wire.rustlog.frame import FRAME_BYTES_MAX

LENGTH_BYTES = 4
# An answer over the frame limit makes RustLog's own broker drop the connection, so no
# more than this is put into a frame, unless it is one record.
PIECE_BYTES_MAX = 8 * 1024 * 1024
# What RustLog's broker counts per record against `max_bytes`, beside the value.
_COST_BYTES = 12
# In JSON a byte is up to three digits and a comma, and {"offset":…,"payload":[…]}, has
# at most 45 bytes beside them: a record takes at most four times its cost.
_JSON_GROWTH = 4
# A fetch's answer without its records; a Produce has no more beside its topic.
_HEAD_BYTES = 13
# The largest value that an answer to a fetch can carry.
VALUE_BYTES_MAX = FRAME_BYTES_MAX - _HEAD_BYTES - LENGTH_BYTES
_JSON_HEAD_BYTES = 128
# A control character is written as \u0000.
_JSON_CHARACTER_BYTES = 6


def read_records(data: Buffer, count: int, *, base: int = 0) -> Records:
    """Read so many records from the start of a buffer; other bytes may follow.

    Args:
        data: the records.
        count: how many they are, as the peer says.
        base: the number of the first.

    Raises:
        RemoteProtocolError: they are not there as a whole.
    """
    view = as_bytes(data)
    starts, end = kernel.walk_be32(view, count)
    if len(starts) < count:
        raise RemoteProtocolError(
            f"{count} records are announced, {len(starts)} of them are there"
        )
    ends = np.append(starts[1:], end)[:count]
    return Records(Spans(view, starts + LENGTH_BYTES, ends), base)


def write_records(records: Records) -> NDArray[np.uint8]:
    """Write records.

    Raises:
        LanceError: the `fault` of the records.
    """
    if records.fault is not None:
        raise records.fault
    values = records.values
    lengths = values.lengths.astype(">u4").view(np.uint8)
    starts = np.arange(0, len(lengths), LENGTH_BYTES)
    out = np.empty(len(lengths) + int(values.lengths.sum()), np.uint8)
    heads = lengths, starts, starts + LENGTH_BYTES
    kernel.weave(out, [heads, (values.data, values.starts, values.ends)])
    return out


def split_records(
    records: Records, bytes_max: int, *, topic: str = "", as_json: bool = False
) -> Iterator[Records]:
    """Cut records into pieces, each of which fits into a frame.

    A producer sends all of them. The answer to a fetch is the first: then `bytes_max`
    is what was asked for, and counts as in RustLog's broker: 12 bytes per record more
    than its value, one record at least, and none for 0.

    Args:
        records: what to cut.
        bytes_max: how large a piece may get, unless it is one record. More than 8 MiB
            are never put together.
        topic: that of a producer, for which the frame has to have room.
        as_json: the frame is to be JSON, in which records are up to four times larger.

    Raises:
        RowError: of the first record that fits into no frame, after the pieces before
            it; its row is the record's position.
    """
    limit = min(bytes_max, PIECE_BYTES_MAX)
    value_bytes_max = VALUE_BYTES_MAX - len(topic.encode())
    if as_json:
        limit = min(bytes_max, PIECE_BYTES_MAX // _JSON_GROWTH)
        head = _JSON_HEAD_BYTES + _JSON_CHARACTER_BYTES * len(topic)
        value_bytes_max = (FRAME_BYTES_MAX - head) // _JSON_GROWTH - _COST_BYTES
    lengths = records.values.lengths
    ends = np.cumsum(lengths + _COST_BYTES)
    start = done = 0
    while start < len(records) and limit > 0:
        stop = int(np.searchsorted(ends, done + limit, "right"))
        if stop == start:
            stop += 1
            if lengths[start] > value_bytes_max:
                raise RowError(
                    f"a value of {lengths[start]} bytes fits into no frame of RustLog: "
                    f"{value_bytes_max} are the most",
                    records.position(start),
                )
        yield records.cut(start, stop)
        start, done = stop, int(ends[stop - 1])
