"""TANK's records in bulk: bundles of messages, and chunks of bundles.

    chunk     (length varint, bundle) …; the last bundle may be cut
    bundle    flags | [count varint] | [first seq u64 [| last - first - 1 varint]] | set
              flags: codec (0 none, 1 snappy), count << 2 (1 to 15, or 0 and a varint),
              0x40 sparse, 0x80 never
    set       messages, as a whole compressed as a raw block of snappy, or not
    message   flags | [gap varint] | [time ms u64] | [length u8, key] | length, value
              flags: 1 key, 2 the same time as the message before, 4 no gap

A message has the number that follows the one before it. Only a sparse bundle says its
own: that of its first and last message, and how many numbers are left out before each
one between them. Compressed bundles are expanded first; then the kernel walks over all
of them at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_spark import kernel
from lance_spark.errors import (
    LocalProtocolError,
    PayloadOverLimit,
    RecordError,
    RemoteProtocolError,
    RowError,
)
from lance_spark.model import Buffer
from lance_spark.records import Records, Spans, as_bytes
from lance_spark.value import dataclass
from lance_spark.wire.schema import Cursor
from lance_spark.wire.tank.frame import FORM

KEY_BYTES_MAX = 255
# What a chunk or bundle may have when its compressed sets are expanded.
EXPANDED_BYTES_MAX = 256 * 1024 * 1024
SEQ_FIRST = 1

_CODEC, _SNAPPY, _SPARSE, _RESERVED = 0x03, 0x01, 0x40, 0x80
_COUNT_SHIFT, _COUNT_MAX = 2, 15
_KEY, _SAME_TIME, _NO_GAP = 1, 2, 4
_NS_PER_MS = 1_000_000
_TIME_MS_MAX = (2**64 - 1) // _NS_PER_MS
# Three bytes of snappy become 64 at most.
_EXPANSION_MAX = 22
_VARINT_BYTES_MAX = 5
# No message has this number or a higher one.
_SEQ_LIMIT = 2**62

_Bytes = NDArray[np.uint8]
_Positions = NDArray[np.int64]
_Times = NDArray[np.uint64]


# Heads of bundles.


@dataclass(frozen=True, slots=True)
class Bundle:
    """The head of a bundle, and where its messages are.

    Args:
        flags: its flags.
        count: how many messages it has.
        numbers: the bytes of the count and of the first and last number.
        data: its messages, maybe compressed.
        expanded_bytes: how many bytes these have when they are not.
    """

    flags: int
    count: int
    numbers: memoryview
    data: memoryview
    expanded_bytes: int

    @property
    def is_compressed(self) -> bool:
        """Whether its messages have to be expanded."""
        return bool(self.flags & _CODEC)

    @property
    def stored_bytes_max(self) -> int:
        """The most that its records take as TLV: a header and a time each."""
        return self.expanded_bytes + 13 * self.count


def inspect_bundle(bundle: Buffer) -> Bundle:
    """Read the head of a bundle; nothing is expanded or allocated.

    For a broker, which reserves memory before it reads the records.

    Raises:
        RemoteProtocolError: it is malformed.
    """
    cursor = Cursor(bundle, "Bundle", FORM)
    if not cursor.remaining:
        # The broker in the field stores such bundles too.
        return Bundle(0, 0, cursor.take(0), cursor.take(0), 0)
    flags = cursor.one("B")
    if flags & _RESERVED or flags & _CODEC > _SNAPPY:
        raise cursor.error(f"flags 0x{flags:02X} are unknown")
    count = flags >> _COUNT_SHIFT & _COUNT_MAX or cursor.one("v")
    if flags & _SPARSE:
        cursor.read("Qv" if count > 1 else "Q")
    numbers = memoryview(bundle)[1 : cursor.position]
    data = cursor.take(cursor.remaining)
    size = len(data)
    if flags & _CODEC:
        size = Cursor(data, "Snappy", FORM).one("v")
        if size > _EXPANSION_MAX * len(data):
            raise cursor.error(f"{len(data)} bytes of snappy can't become {size}")
    if 2 * count > size:
        raise cursor.error(f"{count} messages in {size} bytes")
    return Bundle(flags, count, numbers, data, size)


def _expand(bundle: Bundle) -> Buffer:
    try:
        return pa.Codec("snappy").decompress(bundle.data, bundle.expanded_bytes)
    except (pa.ArrowException, OSError) as error:
        raise RemoteProtocolError(f"not snappy: {error}") from None


# Bytes to records.


@dataclass(frozen=True, slots=True)
class Chunk:
    """What was read of a chunk.

    Args:
        records: its records within the bounds; positions are sequence numbers. Their
            `fault` says why nothing behind them could be read, unless that is cut off.
        next_seq: the number behind the last whole bundle. What is missing between it
            and the numbers of the records was left out by a sparse bundle.
        cut_bytes: the size of the bundle that is cut off, with its length; 0 if none
            is. Ask for as much if no whole bundle came.
    """

    records: Records
    next_seq: int
    cut_bytes: int = 0


def read_records(
    bundle: Buffer, *, expanded_bytes_max: int = EXPANDED_BYTES_MAX
) -> Records:
    """Read one bundle, as Produce has it; positions are sequence numbers.

    Those of a sparse bundle are its own, else they count from 0.

    Args:
        bundle: all of it.
        expanded_bytes_max: the most that its messages may have without compression.

    Returns:
        The records. Their `fault` says why there are none, or where a time is too late
        for a record; then those before it are there.
    """
    return _read(as_bytes(bundle), 0, True, expanded_bytes_max).records


def read_chunk(
    chunk: Buffer,
    base_seq: int,
    *,
    start: int = 0,
    end: int | None = None,
    expanded_bytes_max: int = EXPANDED_BYTES_MAX,
) -> Chunk:
    """Read the whole bundles of a chunk, as Consume answers it.

    Args:
        chunk: bundles; the last one may be cut.
        base_seq: the number of its first message; 0 if that is in a sparse bundle.
        start: leave out the messages before this number, as the first bundle may start
            earlier than was asked for.
        end: leave out the messages from this number on. That is `hwm + 1`, or less.
        expanded_bytes_max: the most that its bundles may have without compression.
    """
    found = _read(as_bytes(chunk), base_seq, False, expanded_bytes_max)
    records = found.records
    if len(records) and records.position(0) < SEQ_FIRST:
        fault = RecordError("the first message has no sequence number", 0)
        records = replace(records.cut(0, 0), fault=fault)
    bounds = [min(start, _SEQ_LIMIT), _SEQ_LIMIT if end is None else end]
    bounds[1] = max(bounds[0], min(bounds[1], _SEQ_LIMIT))
    first, stop = np.searchsorted(records.find_positions(), bounds)
    return replace(found, records=records.cut(int(first), int(stop)))


def _read(data: _Bytes, base: int, single: bool, bytes_max: int) -> Chunk:
    base = min(base, _SEQ_LIMIT)
    table, at, next_seq = kernel.walk_tank(data, base, single)
    fault, cut_bytes = None, 0
    if at < len(data):
        # From here on are compressed bundles, or one that makes no sense.
        parts, fault, cut_bytes = _make_plain(data, at, single, bytes_max)
        data = data[:at]
        if len(parts) > 1:
            data = as_bytes(b"".join(parts))
            # A bundle that was expanded has got a length in front.
            is_same = single and len(parts) == 2
            table, at, next_seq = kernel.walk_tank(data, base, is_same)
        if at < len(data):
            reason = "a bundle has other messages or numbers than its head says"
            fault, cut_bytes = RecordError(reason, at), 0
    return Chunk(_lay_out(data, table, fault), next_seq, cut_bytes)


def _make_plain(
    data: _Bytes, at: int, single: bool, bytes_max: int
) -> tuple[list[Buffer], RecordError | None, int]:
    """Expand compressed bundles, from a position on to the first that can't be read.

    Returns the parts of a chunk without compression; why it ends before the data does,
    if something is malformed there; and the size of the bundle that the data ends in.
    """
    parts: list[Buffer] = [data[:at]]
    view, expanded = data.data, 0
    while at < len(data):
        rest = view[at:]
        is_short = not single and len(rest) < _VARINT_BYTES_MAX
        if is_short and all(byte > 0x7F for byte in rest):
            return parts, None, _VARINT_BYTES_MAX
        try:
            cursor = Cursor(rest, "Chunk", FORM)
            size = len(rest) if single else cursor.one("v")
            if size > cursor.remaining:
                return parts, None, cursor.position + size
            bundle = inspect_bundle(cursor.take(size))
            if bundle.flags & _CODEC:
                expanded += bundle.expanded_bytes
                if expanded > bytes_max:
                    raise PayloadOverLimit("expanded bundle", expanded, bytes_max)
                head = bytes([bundle.flags & ~_CODEC]) + bytes(bundle.numbers)
                size = len(head) + bundle.expanded_bytes
                parts += [FORM.encode_one("v", size), head, _expand(bundle)]
            else:
                parts.append(rest[: cursor.position])
        except RemoteProtocolError as error:
            return parts, RecordError(error.reason, at), 0
        at += cursor.position
    return parts, None, 0


def _lay_out(data: _Bytes, table: _Positions, fault: RecordError | None) -> Records:
    starts, ends, keys, times, seqs = table
    times = times.view(np.uint64)
    late = times > _TIME_MS_MAX
    if late.any():
        row = int(late.argmax())
        reason = f"message {seqs[row]} has the time {times[row]} ms, which is too late"
        fault = RecordError(reason, int(starts[row]))
        return _lay_out(data, table[:, :row], fault)
    keyed = np.flatnonzero(keys >= 0)
    key_starts = keys[keyed]
    base = int(seqs[0]) if len(seqs) else 0
    is_dense = not len(seqs) or seqs[-1] - base == len(seqs) - 1
    return Records(
        Spans(data, starts, ends),
        base,
        None if is_dense else seqs - base,
        keyed=keyed,
        keys=Spans(data, key_starts, key_starts + data[key_starts - 1]),
        stamped=np.arange(len(seqs)),
        stamps_ns=times * np.uint64(_NS_PER_MS),
        fault=fault,
    )


# Records to bytes.


def find_long_key(records: Records) -> int | None:
    """Give the first row whose key is too long for TANK; None if all fit.

    A broker sends the rows before it: `records.cut(0, row)`.
    """
    too_long = records.keys.lengths > KEY_BYTES_MAX
    return int(records.keyed[too_long.argmax()]) if too_long.any() else None


def write_records(
    records: Records,
    *,
    stamps_ns: _Times | int = 0,
    sparse: bool = False,
    compress: bool = False,
    framed: bool = False,
) -> Buffer:
    """Write records as one bundle.

    Types and parts of a millisecond are not carried; a null becomes an empty value.

    Args:
        records: at least one.
        stamps_ns: the time of records that have none: one for all, or one per row.
        sparse: write the positions as sequence numbers; else they count on from
            wherever the bundle comes to be.
        compress: compress with snappy if that makes it smaller.
        framed: put the length in front, which makes it a chunk.

    Raises:
        RowError: the key of a record is too long; its row is the record's position.
        LanceError: the `fault` of the records.
        LocalProtocolError: there are no records, or their positions do not rise.
    """
    row = find_long_key(records)
    if row is not None:
        key = np.searchsorted(records.keyed, row)
        raise RowError(
            f"a key of {records.keys.lengths[key]} bytes, TANK takes {KEY_BYTES_MAX}",
            records.position(row),
        )
    if records.fault is not None:
        raise records.fault
    if not len(records):
        raise LocalProtocolError("a bundle has at least one message")
    times = np.empty(len(records), np.uint64)
    times[:] = stamps_ns
    times[records.stamped] = records.stamps_ns
    gaps = _find_gaps(records) if sparse else None
    parts = _make_parts(records, times // np.uint64(_NS_PER_MS), gaps)
    size = sum(int((ends - starts).sum()) for _, starts, ends in parts)
    head = _encode_head(records, gaps)
    if compress:
        messages = np.empty(size, np.uint8)
        kernel.weave(messages, parts)
        packed = pa.Codec("snappy").compress(messages)
        if len(packed) < size:
            head = bytes([head[0] | _SNAPPY]) + head[1:]
            return b"".join((_frame(head, len(packed), framed), packed))
    head = _frame(head, size, framed)
    out = np.empty(len(head) + size, np.uint8)
    out[: len(head)] = as_bytes(head)
    kernel.weave(out[len(head) :], parts)
    return out


def _frame(head: bytes, size: int, framed: bool) -> bytes:
    return FORM.encode_one("v", len(head) + size) + head if framed else head


def _find_gaps(records: Records) -> _Positions:
    """Count the numbers that are left out before each record but the first."""
    gaps = np.diff(records.find_positions()) - 1
    if (gaps < 0).any() or records.position(0) < 0:
        raise LocalProtocolError("sequence numbers have to rise")
    return gaps


def _encode_head(records: Records, gaps: _Positions | None) -> bytes:
    count = len(records)
    few = count if count <= _COUNT_MAX else 0
    flags = few << _COUNT_SHIFT | (_SPARSE if gaps is not None else 0)
    head = bytes([flags]) + (b"" if few else FORM.encode_one("v", count))
    if gaps is not None:
        head += FORM.encode_one("Q", records.position(0))
        if count > 1:
            head += FORM.encode_one("v", int(gaps.sum()) + count - 2)
    return head


def _make_parts(
    records: Records, times: _Times, gaps: _Positions | None
) -> list[kernel.Part]:
    """Write what stands around key and value; returns what messages are woven of."""
    count, keyed = len(records), records.keyed
    flags = np.zeros(count, np.uint8)
    flags[keyed] = _KEY
    flags[1:][times[1:] == times[:-1]] |= _SAME_TIME
    timed = np.flatnonzero(flags & _SAME_TIME == 0)
    lengths = records.values.lengths
    if int(lengths.max()) >= 1 << 32:
        raise LocalProtocolError("a value has 4 GiB or more")
    # Where each field ends, in a buffer with the fields of all rows.
    sizes = np.ones(count, np.int64)
    between = _NO_ROWS
    if gaps is not None:
        # Of the last message the head says the number.
        between = np.flatnonzero(gaps[:-1]) + 1
        flags[1:-1][gaps[:-1] == 0] |= _NO_GAP
        sizes[between] += kernel.size_varints(gaps[between - 1])
    gap_sizes = sizes.copy()
    sizes[timed] += 8
    sizes[keyed] += 1
    value_sizes = kernel.size_varints(lengths)
    ends = np.cumsum(sizes + value_sizes)
    starts = ends - sizes - value_sizes
    middles = ends - value_sizes
    out = np.empty(int(ends[-1]), np.uint8)
    out[starts] = flags
    if len(between) and gaps is not None:
        kernel.put_varints(out, starts[between] + 1, gaps[between - 1].view(np.uint64))
    # Item i is the integer at byte i. The first message has a time, so there is room.
    everywhere: NDArray[Any] = np.ndarray(len(out) - 7, "<u8", out, 0, (1,))
    everywhere[starts[timed] + gap_sizes[timed]] = times[timed]
    out[middles[keyed] - 1] = records.keys.lengths
    kernel.put_varints(out, middles, lengths.view(np.uint64))
    values = records.values
    tail = (values.data, values.starts, values.ends)
    if not len(keyed):
        return [(out, starts, ends), tail]
    key_starts, key_ends = np.zeros((2, count), np.int64)
    key_starts[keyed], key_ends[keyed] = records.keys.starts, records.keys.ends
    keys = (records.keys.data, key_starts, key_ends)
    return [(out, starts, middles), keys, (out, middles, ends), tail]


_NO_ROWS = np.empty(0, np.int64)
