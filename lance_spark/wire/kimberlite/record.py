"""Kimberlite's events in bulk: values behind their lengths, and nothing else.

    length | event | length | event | …

Lengths are LEB128, and u64le in bincode; a message says before them how many events
there are. Keys, times and types of `Records` have no place here and are left out; a
null value becomes an empty event.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lance_spark import kernel
from lance_spark.errors import RemoteProtocolError, RowError
from lance_spark.model import Buffer
from lance_spark.records import Records, Spans, as_bytes
from lance_spark.wire.kimberlite.frame import (
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    SMALL_FRAME_BYTES_MAX,
    V5,
    Wire,
)

# The most that the specification allows in an append; the server in the field takes
# whatever fits into a frame.
APPEND_EVENTS_MAX = 10_000
APPEND_BYTES_MAX = 4 * 1024 * 1024
# The most events in any message: an empty one has a byte, and its positions have 16.
EVENTS_MAX = 1 << 20
# A read of at most so many bytes may be one of the client on PyPI, which asks for as
# many by default and takes small frames only.
SMALL_READ_BYTES_MAX = 1024 * 1024
_LENGTH_BYTES = 8
# What a message with events has beside them, with room to spare: seven numbers of at
# most ten bytes, and the header.
_HEAD_BYTES = 128
# The largest event that fits into a frame of any form.
EVENT_BYTES_MAX = PAYLOAD_BYTES_MAX - _HEAD_BYTES


def read_records(
    data: Buffer, count: int, *, wire: Wire = V5, base: int = 0
) -> Records:
    """Read so many events from the start of a buffer; other bytes may follow.

    Args:
        data: the events.
        count: how many they are, as the peer says.
        wire: how the peer writes.
        base: the offset of the first.

    Raises:
        RemoteProtocolError: they are too many, or not there as a whole.
    """
    if count > EVENTS_MAX:
        raise RemoteProtocolError(
            f"{count} events in a message, {EVENTS_MAX} are the most: use smaller ones"
        )
    view = as_bytes(data)
    (starts, ends), _ = kernel.walk_lengths(view, count, wire.fixed)
    if len(starts) < count:
        raise RemoteProtocolError(
            f"{count} events are announced, {len(starts)} of them are there"
        )
    return Records(Spans(view, starts, ends), base)


def write_records(records: Records, *, wire: Wire = V5) -> NDArray[np.uint8]:
    """Write events.

    Raises:
        LanceError: the `fault` of the records.
    """
    if records.fault is not None:
        raise records.fault
    values, lengths = records.values, records.values.lengths
    sizes = _size_lengths(lengths, wire)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    if wire.fixed:
        heads = lengths.astype("<u8").view(np.uint8)
    else:
        heads = np.empty(int(sizes.sum()), np.uint8)
        kernel.put_varints(heads, starts, lengths.view(np.uint64))
    out = np.empty(len(heads) + int(lengths.sum()), np.uint8)
    tail = values.data, values.starts, values.ends
    kernel.weave(out, [(heads, starts, ends), tail])
    return out


def _size_lengths(lengths: NDArray[np.int64], wire: Wire) -> NDArray[np.int64]:
    if wire.fixed:
        return np.full(len(lengths), _LENGTH_BYTES, np.int64)
    return kernel.size_varints(lengths)


def split_records(
    records: Records,
    *,
    wire: Wire = V5,
    events_max: int = APPEND_EVENTS_MAX,
    bytes_max: int = APPEND_BYTES_MAX,
    frame_bytes_max: int = HEADER_BYTES + PAYLOAD_BYTES_MAX,
) -> Iterator[Records]:
    """Cut records into pieces, each of which fits into a message; as it is, an append.

    A push may have no more events than the subscriber has credits for, and goes into a
    small frame.

    Args:
        records: what to cut.
        wire: how the message will be written.
        events_max: how many events a piece has at most, at least 1.
        bytes_max: how many bytes its events have at most, unless it is one event.
        frame_bytes_max: how large its frame gets at most, with the header, unless it
            holds one event.

    Raises:
        RowError: of the first event that fits into no frame, after the pieces before
            it; its row is the record's position.
    """
    lengths = records.values.lengths
    sums = np.cumsum(lengths)
    sizes = sums + np.cumsum(_size_lengths(lengths, wire))
    room = frame_bytes_max - _HEAD_BYTES
    start = done = used = 0
    while start < len(records):
        stop = min(
            start + min(events_max, EVENTS_MAX),
            int(np.searchsorted(sums, done + bytes_max, "right")),
            int(np.searchsorted(sizes, used + room, "right")),
        )
        if stop <= start:
            stop = start + 1
            if lengths[start] > EVENT_BYTES_MAX:
                raise RowError(
                    f"an event of {lengths[start]} bytes fits into no frame of "
                    f"Kimberlite: {EVENT_BYTES_MAX} are the most",
                    records.position(start),
                )
        yield records.cut(start, stop)
        start, done, used = stop, int(sums[stop - 1]), int(sizes[stop - 1])


def cut_records(records: Records, max_bytes: int, *, wire: Wire = V5) -> Records:
    """Take the records that answer a ReadEvents of so many bytes.

    As the server in the field does it: an event is taken while those before it have
    fewer bytes, so that the last one may reach beyond, and 0 gives none. A small read
    is answered with a small frame; the client goes on behind it.

    Raises:
        RowError: the first event fits into no frame; its row is its position.
    """
    lengths = records.values.lengths
    before = np.cumsum(lengths) - lengths
    stop = np.searchsorted(before, min(max_bytes, PAYLOAD_BYTES_MAX))
    wanted = records.cut(0, int(stop))
    is_small = max_bytes <= SMALL_READ_BYTES_MAX
    pieces = split_records(
        wanted,
        wire=wire,
        events_max=EVENTS_MAX,
        bytes_max=PAYLOAD_BYTES_MAX,
        frame_bytes_max=SMALL_FRAME_BYTES_MAX if is_small else PAYLOAD_BYTES_MAX,
    )
    return next(pieces, wanted)
