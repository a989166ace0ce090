"""The functions of the kernel in Python, for where pip could not compile it."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lance_spark.checksum import crc32c
from lance_spark.model import Buffer

_Bytes = NDArray[np.uint8]
_Positions = NDArray[np.int64]
_Part = tuple[Buffer, _Positions, _Positions]


class _Chain(NamedTuple):
    """How the header of a record says how long the record is.

    Args:
        header: reads the length.
        dtype: the length again, for NumPy; it is the end of the header.
        typed: whether the first byte is a type, which is never 0.
    """

    header: struct.Struct
    dtype: str
    typed: bool


_LENGTH_BYTES = 4
_TLV = _Chain(struct.Struct("<xI"), "<u4", True)
_BE32 = _Chain(struct.Struct(">I"), ">u4", False)

# The walk steps in Python for some records, then checks them in bulk and looks for a
# run of equal lengths. Few at first, so that a run is found early; then more, so that
# the checks cost little; never too many, as steps behind a fault are wasted.
_STEP_RECORDS_MIN = 64
_STEP_RECORDS_MAX = 4096
# A run is tested in windows that grow, so that a short one costs little.
_RUN_RECORDS_MIN = 512
_RUN_RECORDS_MAX = 1 << 18

# Rows that are larger on average are copied one by one: Arrow, which is faster with
# small ones, copies everything twice.
_SLICED_BYTES_MIN = 4096


def walk_tlv(data: _Bytes, length_max: int) -> tuple[_Positions, int]:
    """Do what `kernel.walk_tlv` says."""
    return _walk(_TLV, data, len(data), length_max)


def walk_be32(data: _Bytes, count: int) -> tuple[_Positions, int]:
    """Do what `kernel.walk_be32` says."""
    return _walk(_BE32, data, count, len(data))


def _walk(
    chain: _Chain, data: _Bytes, count: int, length_max: int
) -> tuple[_Positions, int]:
    """Follow a chain of at most `count` records."""
    parts: list[_Positions] = []
    position, limit = 0, _STEP_RECORDS_MIN
    while True:
        limit = min(limit, count)
        starts, end = _step(chain, data, position, limit, length_max)
        parts.append(starts)
        position = end
        count -= len(starts)
        if len(starts) < limit or not count:
            return np.concatenate(parts), position
        limit = min(2 * limit, _STEP_RECORDS_MAX)
        stride = end - int(starts[-1])
        if starts[-1] - starts[-3] == 2 * stride:
            run = min(_count_run(chain, data, position, stride), count)
            parts.append(np.arange(position, position + run * stride, stride))
            position += run * stride
            count -= run
            limit = _STEP_RECORDS_MIN


def _step(
    chain: _Chain, data: _Bytes, position: int, limit: int, length_max: int
) -> tuple[_Positions, int]:
    """Follow the lengths of up to `limit` records, then keep the good ones.

    Returns their starts, fewer than `limit` where the chain ends, and their end.
    """
    view = data.data
    unpack, header_bytes = chain.header.unpack_from, chain.header.size
    lengths = array("I")
    append = lengths.append
    at = position
    # The end of the data is met once, so an exception is cheaper than a test per step.
    with suppress(struct.error):
        for _ in range(limit):
            (length,) = unpack(view, at)
            append(length)
            at += length + header_bytes
    sizes = np.frombuffer(lengths, np.uintc).astype(np.int64) + header_bytes
    ends = position + np.cumsum(sizes)
    starts = ends - sizes
    good = (ends <= len(data)) & (sizes <= header_bytes + length_max)
    if chain.typed:
        good &= data[starts] != 0
    if not good.all():
        starts = starts[: good.argmin()]
    return starts, int(ends[len(starts) - 1]) if len(starts) else position


def _count_run(chain: _Chain, data: _Bytes, position: int, stride: int) -> int:
    """Count the records from a position on that all have the same length.

    Each header is looked at where the one before it says, so the count is certain.
    """
    most = (len(data) - position) // stride
    length = stride - chain.header.size
    length_at = chain.header.size - _LENGTH_BYTES
    count, window = 0, _RUN_RECORDS_MIN
    while count < most:
        shape, at = min(window, most - count), position + count * stride
        lengths = np.ndarray(shape, chain.dtype, data, at + length_at, (stride,))
        good = lengths == length
        if chain.typed:
            good &= np.ndarray(shape, np.uint8, data, at, (stride,)) != 0
        if not good.all():
            return count + int(good.argmin())
        count += shape
        window = min(4 * window, _RUN_RECORDS_MAX)
    return count


def measure(starts: _Positions, ends: _Positions, offsets: NDArray[np.int32]) -> int:
    """Do what `kernel.measure` says."""
    fits = len(starts) == len(ends) == len(offsets) - 1
    if not fits or (ends < starts).any():
        raise ValueError("measure: argument out of range")
    lengths = ends - starts
    offsets[0] = 0
    np.cumsum(lengths, out=offsets[1:])
    return int(lengths.sum())


def put_varints(out: Buffer, at: _Positions, values: NDArray[np.uint64]) -> None:
    """Do what `kernel.put_varints` says."""
    target = np.frombuffer(out, np.uint8)
    if len(at) != len(values) or (at < 0).any():
        raise ValueError("put_varints: argument out of range")
    while len(values):
        if at.max() >= len(target):
            raise ValueError("put_varints: argument out of range")
        more = values > 0x7F
        target[at] = values & 0x7F | more.astype(np.uint64) << 7
        at, values = at[more] + 1, values[more] >> np.uint64(7)


def sum_spans(data: Buffer, starts: _Positions, ends: _Positions) -> NDArray[np.uint32]:
    """Do what `kernel.sum_spans` says."""
    view = np.frombuffer(data, np.uint8).data
    fits = len(starts) == len(ends) and not (ends < starts).any()
    if not fits or (starts < 0).any() or (ends > len(view)).any():
        raise ValueError("sum_spans: argument out of range")
    bounds = zip(starts.tolist(), ends.tolist(), strict=True)
    sums = [crc32c(view[start:end]) for start, end in bounds]
    return np.array(sums, np.uint32)


def weave(out: Buffer, parts: tuple[_Part, ...]) -> None:
    """Do what `kernel.weave` says."""
    target = np.frombuffer(out, np.uint8)
    if not target.flags.writeable:
        raise TypeError("weave: the output is read-only")
    if not 1 <= len(parts) <= 8:
        raise ValueError("weave: 1 to 8 parts are needed")
    if any(len(starts) != len(ends) for _, starts, ends in parts) or (
        len({len(starts) for _, starts, _ in parts}) > 1
    ):
        raise ValueError("weave: parts differ in their number of spans")
    views = [np.frombuffer(data, np.uint8) for data, _, _ in parts]
    for view, (_, starts, ends) in zip(views, parts, strict=True):
        if np.may_share_memory(target, view):
            raise ValueError("weave: the output overlaps an input")
        if ((starts < 0) | (ends < starts) | (ends > len(view))).any():
            raise ValueError("weave: a span is out of range")
    total = sum(int((ends - starts).sum()) for _, starts, ends in parts)
    if total > len(target):
        raise ValueError("weave: a span is out of range")
    if total < len(target):
        raise ValueError("weave: the spans do not fill the output")
    rows = len(parts[0][1])
    if total >= rows * _SLICED_BYTES_MIN:
        _copy_slices(target, views, parts)
    else:
        _take(target, views, parts, rows)


def _copy_slices(target: _Bytes, views: list[_Bytes], parts: tuple[_Part, ...]) -> None:
    memory, at = target.data, 0
    sources = [view.data for view in views]
    bounds = zip(
        *(zip(s.tolist(), e.tolist(), strict=True) for _, s, e in parts), strict=True
    )
    for row in bounds:
        for source, (start, end) in zip(sources, row, strict=True):
            memory[at : at + end - start] = source[start:end]
            at += end - start


def _take(
    target: _Bytes, views: list[_Bytes], parts: tuple[_Part, ...], rows: int
) -> None:
    """Let Arrow gather the spans, as elements of one array over all data."""
    # Here, as the codec can do without Arrow where the kernel is compiled.
    import pyarrow as pa
    import pyarrow.compute as pc

    everything, count = views[0], len(parts)
    bases = [0] * count
    if count > 1:
        # Only what the spans cover: they may be few of a large buffer.
        lows = [int(starts.min()) for _, starts, _ in parts]
        highs = [int(ends.max()) for _, _, ends in parts]
        pieces = [v[low:high] for v, low, high in zip(views, lows, highs, strict=True)]
        sizes = np.cumsum([0, *(len(piece) for piece in pieces)])
        bases = [int(size) - low for size, low in zip(sizes, lows, strict=False)]
        everything = np.concatenate(pieces)
    # The offsets are 0, start, end, start, end, …, size: every other element is a span,
    # and those between, which may be of negative length, are never looked at.
    is_small = len(everything) < 2**31
    offsets = np.empty(2 * rows * count + 2, np.int32 if is_small else np.int64)
    offsets[0], offsets[-1] = 0, len(everything)
    for i, (base, (_, starts, ends)) in enumerate(zip(bases, parts, strict=True)):
        offsets[1 + 2 * i : -1 : 2 * count] = starts + base if base else starts
        offsets[2 + 2 * i : -1 : 2 * count] = ends + base if base else ends
    spans = pa.Array.from_buffers(
        pa.binary() if is_small else pa.large_binary(),
        len(offsets) - 1,
        [None, pa.py_buffer(offsets), pa.py_buffer(everything)],
    )
    wanted = pa.array(np.arange(1, len(offsets) - 1, 2, dtype=np.uint32))
    taken = pc.take(spans, wanted, boundscheck=False).buffers()[2]
    target[:] = np.frombuffer(taken, np.uint8, len(target))


_U64 = struct.Struct("<Q")
# As the table has it: the bits of a u64 in an int64.
_TIME = struct.Struct("<q")
_TANK_SEQ_MAX = (2**63 - 1) // 2
# So many items of the same size, one after the other, are taken for a run.
_ALIKE = 64


class _Bundle(NamedTuple):
    start: int
    end: int
    messages: int
    first: int
    last: int
    sparse: bool


def walk_tank(data: _Bytes, seq: int, single: bool) -> tuple[_Positions, int, int]:
    """Do what `kernel.walk_tank` says."""
    table = _TankTable(data)
    position = rows = 0
    # The end of the data is met once, so an exception is cheaper than tests per step.
    with suppress(IndexError, struct.error, _Malformed):
        while position < len(data):
            bundle = _read_bundle(data, position, seq, single)
            table.follow(bundle)
            position, seq = bundle.end, bundle.last + 1
            rows += bundle.messages
    return table.take(rows), position, seq


class _Malformed(Exception):
    pass


def _read_varint(view: memoryview, at: int, bits: int = 32) -> tuple[int, int]:
    value = 0
    for shift in range(0, bits, 7):
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 and value < 1 << bits:
            return value, at
    raise _Malformed


def _read_bundle(data: _Bytes, at: int, seq: int, single: bool) -> _Bundle:
    view = data.data
    length, at = (len(view) - at, at) if single else _read_varint(view, at)
    end = at + length
    flags = count = 0
    gap = None
    if end > len(view) or seq > _TANK_SEQ_MAX:
        raise _Malformed
    view, first = view[:end], seq
    if length:
        flags = view[at]
        count, at = flags >> 2 & 0x0F, at + 1
        if flags & 0x83:
            raise _Malformed
        if not count:
            count, at = _read_varint(view, at)
    if flags & 0x40:
        ((first,), at) = _U64.unpack_from(view, at), at + 8
        if not seq <= first <= _TANK_SEQ_MAX:
            raise _Malformed
        if count > 1:
            gap, at = _read_varint(view, at)
    if count > (end - at) // 2:
        raise _Malformed
    last = first + (count - 1 if gap is None else gap + 1)
    return _Bundle(at, end, count, first, last, bool(flags & 0x40))


def _count_alike(data: _Bytes, fixed: Iterable[int], size: int, most: int) -> int:
    """Count the records of some size that have the same lengths as the one before.

    Each is looked at where the one before it ends, so the count is certain.

    Args:
        data: the records.
        fixed: where the bytes are that make its lengths.
        size: the size of each record.
        most: how many there may be.
    """
    count, window = 0, _RUN_RECORDS_MIN
    while count < most:
        shape, step = min(window, most - count), (count + 1) * size
        good = np.ones(shape, np.bool_)
        for at in fixed:
            there = np.ndarray(shape, np.uint8, data, at + step, (size,))
            good &= there == data[at]
        if not good.all():
            return count + int(good.argmin())
        count += shape
        window = min(4 * window, _RUN_RECORDS_MAX)
    return count


class _TankTable:
    """Messages as five columns: some stepped over in Python, runs found in bulk."""

    def __init__(self, data: _Bytes) -> None:
        self._data = data
        self._steps = array("q")
        self._parts: list[_Positions] = []

    def take(self, rows: int) -> _Positions:
        """Give the columns of the first records."""
        self._flush()
        parts = [np.empty((5, 0), np.int64), *self._parts]
        return np.concatenate(parts, axis=1)[:, :rows]

    def _flush(self) -> None:
        if self._steps:
            steps = np.frombuffer(self._steps, np.int64).reshape(-1, 5)
            self._parts.append(steps.T)
            self._steps = array("q")

    def _add_run(self, run: int, size: int, row: tuple[int, ...]) -> _Positions:
        """Add records like the one before them; returns their columns, to be mended.

        Args:
            run: how many.
            size: the size of each.
            row: what the table has of the one before them.
        """
        self._flush()
        steps = np.arange(1, run + 1) * size
        columns = np.empty((5, run), np.int64)
        for column, value in zip(columns, row, strict=True):
            column[:] = value
        columns[:2] += steps
        if row[2] >= 0:
            columns[2] += steps
        self._parts.append(columns)
        return columns

    def follow(self, bundle: _Bundle) -> None:
        at, end, count, first, last, sparse = bundle
        view = self._data[:end].data
        seq, time, number, size, alike = first - 1, 0, 0, 0, 0
        while number < count:
            start = at
            flags = view[at]
            at += 1
            seq += 1
            if seq > last or flags > 7:
                raise _Malformed
            if sparse and number and not flags & 4:
                if number == count - 1:
                    seq = last
                else:
                    gap, at = _read_varint(view, at)
                    seq += gap
            if not flags & 2:
                ((time,), at) = _TIME.unpack_from(view, at), at + 8
            key = -1
            if flags & 1:
                key = at + 1
                at = key + view[at]
            value, behind = at + 1, view[at]
            if behind > 0x7F:
                behind, value = _read_varint(view, at)
            behind += value
            if behind > end:
                raise _Malformed
            self._steps.extend((value, behind, key, time, seq))
            number += 1
            alike = alike + 1 if behind - start == size else 0
            size, at = behind - start, behind
            if alike == _ALIKE and (flags & 4 or not sparse):
                alike = 0
                # The last message of a sparse bundle is another kind.
                most = min(count - number - 1, (end - at) // size)
                fixed = self._find_fixed(start, value, key)
                run = _count_alike(self._data, fixed, size, most)
                if run:
                    row = value, behind, key, time, seq
                    columns = self._add_run(run, size, row)
                    if not flags & 2:
                        shape, place = (run,), start + size + 1
                        columns[3] = np.ndarray(
                            shape, "<i8", self._data, place, (size,)
                        )
                        time = int(columns[3, -1])
                    columns[4] += np.arange(1, run + 1)
                    at, seq, number = at + run * size, seq + run, number + run
        if at != end or seq != last:
            raise _Malformed

    def _find_fixed(self, start: int, value: int, key: int) -> list[int]:
        """Say which bytes of a message make its flags and lengths."""
        data = self._data
        time = range(start + 1, start + 1 if data[start] & 2 else start + 9)
        text = range(key, key + int(data[key - 1]) if key >= 0 else key)
        places = (at for at in range(start, value) if at not in time)
        return [at for at in places if at not in text]


_BATCH = struct.Struct(">8xi4xb4xh4xq22x")
_COUNT = struct.Struct(">i")
_TIME_MAX = 2**63 - 1


# So many records at once: their columns stay in the processor's cache.
_FLUVIO_ROWS = 1 << 15


def walk_fluvio(data: _Bytes) -> tuple[_Positions, _Positions, int]:
    """Do what `kernel.walk_fluvio` says."""
    starts, batches, times = array("q"), array("q"), array("q")
    position = rows = 0
    # Python only follows the lengths; fields are read of many records at once.
    with suppress(IndexError, struct.error, _Malformed):
        while position < len(data):
            end, count, time = _follow_batch(data, position, starts)
            batches.extend((position, rows))
            times.append(time)
            position = end
            rows += count
    places = np.frombuffer(batches, np.int64).reshape(-1, 2).T
    # Starts in a batch that is not whole are left out.
    table, good = _read_records(data, np.frombuffer(starts, np.int64)[:rows])
    if good < rows:
        batch = int(np.searchsorted(places[1], good, side="right")) - 1
        rows, position = int(places[1, batch]), int(places[0, batch])
        places, table = places[:, :batch], table[:, :rows]
    counts = np.diff(places[1], append=rows)
    bases = np.repeat(np.frombuffer(times, np.int64)[: len(counts)], counts)
    # Deltas become times; the sum of a base and the cut delta does not overflow.
    sums = bases + np.minimum(table[4], _TIME_MAX - np.maximum(bases, 0))
    table[4] = np.where(bases > 0, sums, -1)
    return table, places, position


def _follow_batch(data: _Bytes, at: int, starts: array[int]) -> tuple[int, int, int]:
    """Add where the records of a batch start; returns its end, their number and time.

    Lengths are not checked, but that together they are those of the batch.
    """
    length, magic, attributes, time = _BATCH.unpack_from(data.data, at)
    start = at + _BATCH.size + (4 if attributes & 0x10 else 0)
    end = at + 12 + length
    if magic != 2 or attributes & 7 or end > len(data) or start + 4 > end:
        raise _Malformed
    count = max(0, _COUNT.unpack_from(data.data, start)[0])
    at = start + 4
    if count > (end - at) // 7:
        raise _Malformed
    view, append = data.data[:end], starts.append
    for _ in range(count):
        byte = view[at]
        append(at)
        if byte < 0x80:
            at += 1 + (byte >> 1)
        elif (more := view[at + 1]) < 0x80:
            at += 2 + ((byte & 0x7F | more << 7) >> 1)
        else:
            length, at = _read_varint(view, at, 64)
            at += length >> 1
    if at != end:
        raise _Malformed
    return end, count, time


def _read_records(data: _Bytes, starts: _Positions) -> tuple[_Positions, int]:
    """Give the columns of records, with deltas for times, up to one that is wrong."""
    table = np.empty((5, len(starts)), np.int64)
    for first in range(0, len(starts), _FLUVIO_ROWS):
        some = slice(first, first + _FLUVIO_ROWS)
        bad = _fill(table[:, some], data, starts[some])
        if bad.any():
            return table, first + int(bad.argmax())
    return table, len(starts)


def _fill(table: _Positions, data: _Bytes, starts: _Positions) -> NDArray[np.bool_]:
    """Fill the columns of some records; returns which of them are wrong.

    What is read of a record behind its end means nothing, and makes it wrong.
    """
    lengths, at, bad = _read_zigzags(data, starts)
    stops = at + lengths
    bad |= lengths < 1
    table[4], at, is_long = _read_zigzags(data, at + 1)
    bad |= is_long
    _, at, is_long = _read_zigzags(data, at)
    tags = data.take(at, mode="clip")
    bad |= is_long | (tags > 1) | (at >= stops)
    at += 1
    table[2:4] = -1
    keyed = np.flatnonzero(tags)
    if len(keyed):
        lengths, keys, is_long = _read_zigzags(data, at[keyed])
        bad[keyed] |= is_long | (lengths < 0) | (lengths > stops[keyed] - keys)
        at[keyed] = table[3, keyed] = keys + lengths
        table[2, keyed] = keys
    lengths, at, is_long = _read_zigzags(data, at)
    bad |= is_long | (lengths < 0) | (lengths > stops - at)
    table[0] = at
    at += lengths
    table[1] = at
    headers, at, is_long = _read_zigzags(data, at)
    bad |= is_long | (at > stops) | ((headers == 0) & (at != stops))
    return bad


def _read_zigzags(
    data: _Bytes, at: _Positions
) -> tuple[_Positions, _Positions, NDArray[np.bool_]]:
    """Read a zigzag varint at each place; say where it ends, and if it is too long."""
    byte = data.take(at, mode="clip")
    found = (byte & 0x7F).astype(np.uint64)
    ends, is_long = at + 1, np.zeros(len(at), np.bool_)
    rows, shift = np.flatnonzero(byte > 0x7F), 7
    while len(rows):
        byte = data.take(ends[rows], mode="clip")
        found[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        ends[rows] += 1
        if shift == 63:
            is_long[rows[byte > 1]] = True
            break
        rows, shift = rows[byte > 0x7F], shift + 7
    signs = -(found & np.uint64(1)).view(np.int64)
    return (found >> np.uint64(1)).view(np.int64) ^ signs, ends, is_long


def walk_lengths(data: _Bytes, count: int, fixed: bool) -> tuple[_Positions, int]:
    """Do what `kernel.walk_lengths` says."""
    view, parts, steps = data.data, [np.empty((2, 0), np.int64)], array("q")
    at = size = alike = 0
    # The end of the data is met once, so an exception is cheaper than tests per step.
    with suppress(IndexError, struct.error, _Malformed):
        while count:
            if fixed:
                (length,), value = _U64.unpack_from(view, at), at + 8
            else:
                length, value = view[at], at + 1
                if length > 0x7F:
                    # Two bytes are usual enough to be worth their own line.
                    length, value = length - 0x80 | view[value] << 7, value + 1
                    if length >= 1 << 14:
                        length, value = _read_varint(view, at, 64)
            end = value + length
            if end > len(view):
                break
            steps.extend((value, end))
            count -= 1
            alike = alike + 1 if end - at == size else 0
            start, size, at = at, end - at, end
            if alike == _ALIKE:
                alike = 0
                most = min(count, (len(view) - at) // size)
                run = _count_alike(data, range(start, value), size, most)
                parts.append(np.frombuffer(steps, np.int64).reshape(-1, 2).T)
                steps = array("q")
                ends = end + size * np.arange(1, run + 1)
                parts.append(np.stack((ends - length, ends)))
                at, count = at + run * size, count - run
    parts.append(np.frombuffer(steps, np.int64).reshape(-1, 2).T)
    return np.concatenate(parts, axis=1), at
