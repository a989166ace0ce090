"""Fluvio's records in bulk: record sets, which are batches one behind the other.

    batch     base offset i64 | length i32 of all that follows | leader's epoch i32 |
              magic i8 = 2 | crc u32 | attributes i16 | last offset delta i32 |
              first time i64 | last time i64 | producer id i64 | its epoch i16 |
              first sequence i32 | [schema id u32] | records
    records   count u32, and the records; as a whole compressed, or not
    record    length zz | attributes i8 | time delta zz | offset delta zz |
              0, or 1 and length zz, key | length zz, value | number of headers zz

Integers are big-endian, zz are zigzag varints. Attributes are the codec (3 bits) and
whether there is a schema id (0x10). The checksum is CRC-32C of everything behind it, so
that a server can set the base offset, which means nothing when it comes from a
producer. Record i of a batch has the number base offset + i. Times are in ms; the first
one of a batch is at most 0 if its records have none. The encoder in the field is wrong
for deltas and lengths beyond 32 bits, so batches end before one.

Compressed batches are expanded first; then the kernel walks over all of them at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lance_spark import kernel
from lance_spark.checksum import crc32c
from lance_spark.errors import (
    LocalProtocolError,
    RecordError,
    RemoteProtocolError,
    RowError,
)
from lance_spark.model import Buffer
from lance_spark.records import Records, Spans, as_bytes
from lance_spark.wire.fluvio.compression import (
    EXPANDED_BYTES_MAX,
    Codec,
    compress,
    expand,
    measure,
)

_HEAD = struct.Struct(">qiibIhiqqqhi")
_COUNT = struct.Struct(">i")
_LENGTH_AT, _CRC_AT = 8, 17
# What the length does not count, and what the checksum does not cover.
_PREAMBLE_BYTES, _SUMMED_AT = 12, 21
_MAGIC = 2
_CODEC, _SCHEMA = 0x07, 0x10
_CODEC_MAX = max(Codec)
_NONE = -1
_I32_MAX = 2**31 - 1
_RECORD_BYTES_MIN = 7
_NS_PER_MS = 1_000_000
_TIME_MS_MAX = (2**64 - 1) // _NS_PER_MS
# No record has this number or a higher one.
_OFFSET_LIMIT = 2**62
# Larger batches are summed one by one: by hardware, which pays for the call.
_SUMMED_BYTES_MIN = 1024

_Bytes = NDArray[np.uint8]
_Positions = NDArray[np.int64]
_Times = NDArray[np.uint64]


# Heads of batches.


# Not frozen, which would take twice as long to make: there may be very many.
@dataclass(slots=True)
class Batch:
    """The head of a batch, and where its records are.

    Args:
        base_offset: the number of its first record, if a server says so.
        codec: how its records are compressed.
        first_time_ms: the first time; at most 0 if its records have none.
        producer_id: the number of an idempotent producer, or -1.
        schema_id: what describes its values, or None.
        data: its records and their count, maybe compressed.
        count: how many records it has.
        expanded_bytes: how many bytes they have when they are not compressed.
    """

    base_offset: int
    codec: Codec
    first_time_ms: int
    producer_id: int
    schema_id: int | None
    data: memoryview
    count: int = 0
    expanded_bytes: int = 0

    @property
    def stored_bytes_max(self) -> int:
        """The most that its records take as TLV: a header and a time each."""
        return self.expanded_bytes + 8 * self.count

    @property
    def refusal(self) -> str | None:
        """Why a broker without transactions and schemas can't keep it, if it can't."""
        if self.producer_id != _NONE:
            return f"a batch of producer {self.producer_id}: producer ids are not kept"
        if self.schema_id is not None:
            return f"a batch of schema {self.schema_id}: schema ids are not kept"
        return None


def inspect_batches(
    record_set: Buffer, *, expanded_bytes_max: int = EXPANDED_BYTES_MAX
) -> Iterator[Batch]:
    """Read the heads of batches, as Produce has them, and what their records become.

    For a broker, which reserves memory before it reads the records. Compressed ones are
    expanded to find their size, piece by piece; no piece is kept. Checksums and records
    are not looked at.

    Raises:
        RemoteProtocolError: a batch is malformed or cut off.
        PayloadOverLimit: all batches together become larger than the limit.
    """
    rest, before = as_bytes(record_set).data, 0
    while rest:
        size = _find_size(rest)
        if size > len(rest):
            raise RemoteProtocolError(f"a batch of {size} bytes, {len(rest)} are there")
        batch = _read_head(rest[:size])
        expanded, head = len(batch.data), bytes(batch.data[: _COUNT.size])
        if batch.codec is not Codec.NONE:
            expanded, head = measure(
                batch.codec, batch.data, expanded_bytes_max, before
            )
            before += expanded
        if len(head) < _COUNT.size:
            raise RemoteProtocolError("a batch does not say how many records it has")
        count = max(0, _COUNT.unpack(head)[0])
        if count > (expanded - _COUNT.size) // _RECORD_BYTES_MIN:
            raise RemoteProtocolError(f"{count} records in {expanded} bytes")
        batch.count, batch.expanded_bytes = count, expanded
        yield batch
        rest = rest[size:]


def _find_size(view: memoryview) -> int:
    """Say how large a batch is; if not even that is there, how large one is at least.

    Raises:
        RemoteProtocolError: there is none so small.
    """
    least = _HEAD.size + _COUNT.size
    if len(view) < _PREAMBLE_BYTES:
        return least
    length: int = _COUNT.unpack_from(view, _LENGTH_AT)[0]
    if length + _PREAMBLE_BYTES < least:
        raise RemoteProtocolError(f"a batch of {length} bytes")
    return length + _PREAMBLE_BYTES


def _read_head(view: memoryview) -> Batch:
    base, _, _, magic, _, attributes, _, time, _, producer, _, _ = _HEAD.unpack_from(
        view
    )
    if magic != _MAGIC or attributes & _CODEC > _CODEC_MAX:
        raise RemoteProtocolError(
            f"a batch of version {magic} with attributes 0x{attributes & 0xFFFF:04X}"
        )
    schema, data = None, view[_HEAD.size :]
    if attributes & _SCHEMA:
        schema, data = int.from_bytes(data[:4], "big"), data[4:]
    return Batch(base, Codec(attributes & _CODEC), time, producer, schema, data)


# Bytes to records.


@dataclass(frozen=True, slots=True)
class Chunk:
    """What was read of a record set that a server sent.

    Args:
        records: its records within the bounds; positions are their numbers. Their
            `fault` says why nothing behind them could be read, unless that is cut off.
        next_offset: the number behind the last whole batch; that of the first record
            that was wanted if there is none.
        cut_bytes: the size of the batch that is cut off, or the least size of one if
            that is cut off as well; 0 if none is. Ask for as much if no whole batch
            came.
    """

    records: Records
    next_offset: int
    cut_bytes: int = 0


def read_records(
    record_set: Buffer, *, expanded_bytes_max: int = EXPANDED_BYTES_MAX
) -> Records:
    """Read a record set, as Produce has it; positions count from 0.

    Args:
        record_set: all of it.
        expanded_bytes_max: the most that its batches may have without compression.

    Returns:
        The records. Their `fault` says why nothing behind them could be read: a batch
        that is malformed or cut off, a record with headers, or one whose time is too
        late.
    """
    data = as_bytes(record_set)
    found = _read(data, expanded_bytes_max)
    fault = found.fault
    if found.cut_bytes and fault is None:
        reason = f"a batch of {found.cut_bytes} bytes is cut off"
        fault = RecordError(reason, len(data), truncated=True)
    headed = np.flatnonzero(found.data[found.table[1]]) if len(found.data) else _NO_ROWS
    table = found.table
    if len(headed):
        row = int(headed[0])
        reason = f"record {row} has headers, which are not kept"
        fault = RecordError(reason, int(table[0, row]))
        table = table[:, :row]
    return _lay_out(found.data, table, fault)


def read_chunk(
    record_set: Buffer,
    *,
    start: int = 0,
    end: int | None = None,
    expanded_bytes_max: int = EXPANDED_BYTES_MAX,
) -> Chunk:
    """Read the whole batches of a record set, as Fetch and StreamFetch answer it.

    Args:
        record_set: batches; the last one may be cut.
        start: leave out the records before this number, as the first batch may start
            earlier than was asked for.
        end: leave out the records from this number on.
        expanded_bytes_max: the most that its batches may have without compression.
    """
    found = _read(as_bytes(record_set), expanded_bytes_max)
    bases = _gather(found.data, ">i8", found.batches[0])
    firsts = found.batches[1]
    counts = np.diff(firsts, append=found.table.shape[1])
    fault, table = found.fault, found.table
    ends = bases + counts
    # Sums may have overflown, but not where the bases are in range.
    rises = (bases >= 0) & (bases < _OFFSET_LIMIT)
    rises[1:] &= bases[1:] >= ends[:-1]
    if not rises.all():
        at = int(rises.argmin())
        reason = f"a batch starts at record {bases[at]}, which is not in order"
        fault = RecordError(reason, int(found.batches[0, at]))
        table = table[:, : firsts[at]]
        bases, firsts, counts, ends = bases[:at], firsts[:at], counts[:at], ends[:at]
    records = _lay_out(found.data, table, fault)
    if len(bases):
        base = int(bases[0])
        shifts = np.repeat(bases - firsts, counts)[: len(records)]
        is_dense = not len(shifts) or shifts[-1] == base
        positions = None if is_dense else shifts - base + np.arange(len(records))
        records = replace(records, base=base, positions=positions)
    low = min(start, _OFFSET_LIMIT)
    high = max(low, _OFFSET_LIMIT if end is None else min(end, _OFFSET_LIMIT))
    first, stop = np.searchsorted(records.find_positions(), (low, high))
    return Chunk(
        records.cut(int(first), int(stop)),
        int(ends[-1]) if len(ends) else start,
        0 if fault is not None else found.cut_bytes,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """The whole batches of a record set, as `kernel.walk_fluvio` finds them."""

    data: _Bytes
    table: _Positions
    batches: _Positions
    fault: RecordError | None = None
    cut_bytes: int = 0


def _read(data: _Bytes, bytes_max: int) -> _Found:
    table, batches, at = kernel.walk_fluvio(data)
    fault: RecordError | None
    wrong = _find_wrong_sum(data, batches[0], at)
    if wrong is not None:
        fault = RecordError("the checksum of a batch is wrong", int(batches[0, wrong]))
        table, batches = table[:, : batches[1, wrong]], batches[:, :wrong]
        return _Found(data, table, batches, fault)
    if at == len(data):
        return _Found(data, table, batches)
    # From here on are compressed batches, or one that makes no sense.
    parts, fault, cut_bytes = _make_plain(data, at, bytes_max)
    data = data[:at]
    if len(parts) > 1:
        data = as_bytes(b"".join(parts))
        table, batches, at = kernel.walk_fluvio(data)
    if at < len(data):
        reason = "a batch has other records than its head says"
        fault, cut_bytes = RecordError(reason, at), 0
    return _Found(data, table, batches, fault, cut_bytes)


def _make_plain(
    data: _Bytes, at: int, bytes_max: int
) -> tuple[list[Buffer], RecordError | None, int]:
    """Expand compressed batches, from a position on to the first that can't be read.

    Returns the parts of a record set without compression; why it ends before the data
    does, if something is malformed there; and the size of the batch that the data ends
    in. Its checksums are right, and are those of the compressed batches.
    """
    parts: list[Buffer] = [data[:at]]
    view, before = data.data, 0
    while at < len(data):
        rest = view[at:]
        try:
            size = _find_size(rest)
            if size > len(rest):
                return parts, None, size
            batch = _read_head(rest[:size])
            (crc,) = struct.unpack_from(">I", rest, _CRC_AT)
            if crc32c(rest[_SUMMED_AT:size]) != crc:
                raise RemoteProtocolError("the checksum of a batch is wrong")
            if batch.codec is Codec.NONE:
                parts.append(rest[:size])
            else:
                most = min(bytes_max, before + _I32_MAX - _HEAD.size)
                plain = expand(batch.codec, batch.data, most, before)
                expanded = sum(map(len, plain))
                before += expanded
                head = bytearray(rest[: _HEAD.size])
                length = _HEAD.size - _PREAMBLE_BYTES + expanded
                _COUNT.pack_into(head, _LENGTH_AT, length)
                head[_SUMMED_AT : _SUMMED_AT + 2] = b"\0\0"
                parts += [head, *plain]
        except RemoteProtocolError as error:
            return parts, RecordError(error.reason, at), 0
        at += size
    return parts, None, 0


def _find_wrong_sum(data: _Bytes, starts: _Positions, stop: int) -> int | None:
    """Find the first batch whose checksum is not that of its bytes."""
    said = _gather(data, ">u4", starts + _CRC_AT)
    ends = np.append(starts[1:], stop)
    if stop < _SUMMED_BYTES_MIN * len(starts):
        sums = kernel.sum_spans(data, starts + _SUMMED_AT, ends)
    else:
        view, bounds = data.data, zip(starts.tolist(), ends.tolist(), strict=False)
        found = [crc32c(view[start + _SUMMED_AT : end]) for start, end in bounds]
        sums = np.array(found, np.uint32)
    wrong = np.flatnonzero(sums != said)
    return int(wrong[0]) if len(wrong) else None


def _gather(data: _Bytes, dtype: str, places: _Positions) -> _Positions:
    """Read an integer at each of some places."""
    if not len(places):
        return _NO_ROWS
    # Item i is the integer at byte i.
    room = len(data) - np.dtype(dtype).itemsize + 1
    everywhere: NDArray[Any] = np.ndarray(room, dtype, data, 0, (1,))
    return everywhere[places].astype(np.int64)


def _lay_out(data: _Bytes, table: _Positions, fault: RecordError | None) -> Records:
    starts, ends, keys, key_ends, times = table
    late = times > _TIME_MS_MAX
    if late.any():
        row = int(late.argmax())
        reason = f"record {row} has the time {times[row]} ms, which is too late"
        return _lay_out(data, table[:, :row], RecordError(reason, int(starts[row])))
    keyed, stamped = np.flatnonzero(keys >= 0), np.flatnonzero(times > 0)
    return Records(
        Spans(data, starts, ends),
        keyed=keyed,
        keys=Spans(data, keys[keyed], key_ends[keyed]),
        stamped=stamped,
        stamps_ns=times[stamped].view(np.uint64) * np.uint64(_NS_PER_MS),
        fault=fault,
    )


# Records to bytes.


def write_records(
    records: Records,
    *,
    base_offset: int = 0,
    stamps_ns: _Times | int = 0,
    codec: Codec = Codec.NONE,
) -> Buffer:
    """Write records as batches: one, unless their times are too far apart for that.

    Types and parts of a millisecond are not carried, nor are the first one of 1970 and
    gaps between positions; a null becomes an empty value.

    Args:
        records: none are no bytes.
        base_offset: the number of the first one; a producer does not know it.
        stamps_ns: the time of records that have none: one for all, or one per row. 0
            is none.
        codec: compress each batch with it, also one that does not get smaller by it:
            a topic may take no other.

    Raises:
        RowError: a record is too large; its row is the record's position.
        LanceError: the `fault` of the records.
        LocalProtocolError: a batch is too large.
    """
    if records.fault is not None:
        raise records.fault
    if not len(records):
        return b""
    stamps = np.empty(len(records), np.uint64)
    stamps[:] = stamps_ns
    stamps[records.stamped] = records.stamps_ns
    times = (stamps // np.uint64(_NS_PER_MS)).view(np.int64)
    edges = _find_batches(times)
    weft = _make_weft(records, times, edges)
    out: list[Buffer] = []
    for start, stop in pairwise(edges):
        batch = weft.write(start, stop)
        batch[_HEAD.size : _HEAD.size + _COUNT.size].view(">i4")[0] = stop - start
        body: Buffer = batch[_HEAD.size :]
        packed = compress(codec, body)
        some = times[start:stop]
        span = (some[0], some.max()) if some[0] > 0 else (_NONE, _NONE)
        head = _write_head(base_offset + start, stop - start, codec, span, packed)
        batch[: _HEAD.size] = as_bytes(head)
        out += [batch] if codec is Codec.NONE else [head, packed]
    return out[0] if len(out) == 1 else b"".join(out)


def _write_head(
    base: int, count: int, codec: Codec, span: tuple[int, int], body: Buffer
) -> bytes:
    length = _HEAD.size - _PREAMBLE_BYTES + len(body)
    if length > _I32_MAX:
        raise LocalProtocolError(f"a batch of {length} bytes, Fluvio takes {_I32_MAX}")
    head = bytearray(_HEAD.size)
    producer = (_NONE, _NONE, _NONE)
    values = (base, length, _NONE, _MAGIC, 0, codec, count - 1, *span, *producer)
    _HEAD.pack_into(head, 0, *values)
    crc = crc32c(body, crc32c(head[_SUMMED_AT:]))
    struct.pack_into(">I", head, _CRC_AT, crc)
    return bytes(head)


def _find_batches(times: _Positions) -> list[int]:
    """Say where batches start, and where the last one ends.

    The records of a batch have times or none, and no time so far from the first that
    32 bits are too few.
    """
    edges = [0]
    while edges[-1] < len(times):
        edges.append(_find_end(times, edges[-1]))
    return edges


def _find_end(times: _Positions, start: int) -> int:
    first, low, window = times[start], start, 64
    # In windows that grow: where each record needs a batch, each look is short.
    while low < len(times):
        some = times[low : low + window]
        is_far = np.abs(some - first) > _I32_MAX
        is_far |= (some > 0) != (first > 0)
        if is_far.any():
            return low + int(is_far.argmax())
        low, window = low + window, 4 * window
    return len(times)


@dataclass(frozen=True, slots=True)
class _Weft:
    """What records are woven of.

    Args:
        ends: how many bytes all records up to each have.
        parts: what stands around keys and values, and these. Each record's first byte
            ends the record before it: 0, as there are no headers.
    """

    ends: _Positions
    parts: list[kernel.Part]

    def write(self, start: int, stop: int) -> _Bytes:
        """Weave some records, with room for the head of their batch."""
        skipped = _HEAD.size + _COUNT.size
        before = self.ends[start - 1] if start else 0
        out = np.empty(skipped + int(self.ends[stop - 1] - before), np.uint8)
        parts = [(data, a[start:stop], b[start:stop]) for data, a, b in self.parts]
        data, starts, ends = parts[0]
        starts = starts.copy()
        starts[0] += 1
        parts[0] = data, starts, ends
        kernel.weave(out[skipped:-1], parts)
        out[-1] = 0
        return out


def _make_weft(records: Records, times: _Positions, edges: list[int]) -> _Weft:
    count, keyed, values = len(records), records.keyed, records.values
    firsts = np.repeat(edges[:-1], np.diff(edges))
    deltas, offsets = _zigzag(times - times[firsts]), _zigzag(np.arange(count) - firsts)
    delta_sizes, offset_sizes = map(kernel.size_varints, (deltas, offsets))
    lengths, key_lengths = _zigzag(values.lengths), _zigzag(records.keys.lengths)
    value_sizes, key_sizes = map(kernel.size_varints, (lengths, key_lengths))
    # Attributes, whether there is a key, and the number of headers are a byte each.
    sizes = 3 + delta_sizes + offset_sizes + value_sizes + values.lengths
    sizes[keyed] += key_sizes + records.keys.lengths
    if int(sizes.max()) > _I32_MAX:
        row = int(sizes.argmax())
        reason = f"a record of {sizes[row]} bytes, Fluvio takes {_I32_MAX}"
        raise RowError(reason, records.position(row))
    wholes = _zigzag(sizes)
    whole_sizes = kernel.size_varints(wholes)
    # Where each field ends, in a buffer with the fields of all rows.
    heads = 3 + whole_sizes + delta_sizes + offset_sizes
    heads[keyed] += key_sizes
    ends = np.cumsum(heads + value_sizes)
    middles = ends - value_sizes
    starts = middles - heads
    out = np.zeros(int(ends[-1]), np.uint8)
    deltas_at = starts + whole_sizes + 2
    tags_at = deltas_at + delta_sizes + offset_sizes
    kernel.put_varints(out, starts + 1, wholes)
    kernel.put_varints(out, deltas_at, deltas)
    kernel.put_varints(out, deltas_at + delta_sizes, offsets)
    out[tags_at[keyed]] = 1
    kernel.put_varints(out, tags_at[keyed] + 1, key_lengths)
    kernel.put_varints(out, middles, lengths)
    tail = (values.data, values.starts, values.ends)
    parts: list[kernel.Part] = [(out, starts, ends), tail]
    if len(keyed):
        key_starts, key_ends = np.zeros((2, count), np.int64)
        key_starts[keyed], key_ends[keyed] = records.keys.starts, records.keys.ends
        keys = (records.keys.data, key_starts, key_ends)
        parts = [(out, starts, middles), keys, (out, middles, ends), tail]
    return _Weft(np.cumsum(sizes + whole_sizes), parts)


def _zigzag(values: _Positions) -> _Times:
    return (values << 1 ^ values >> 63).view(np.uint64)


_NO_ROWS = np.empty(0, np.int64)
