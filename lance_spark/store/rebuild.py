"""Index rows made from the data, where an index is missing or damaged.

What a rebuilt row can't know is taken from what is left: the append time of the batch
before, a checksum of the bytes as they are now. Batches come out at other sizes than
they were appended in; offsets and records are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from lance_spark.model import Framing
from lance_spark.store.context import Context
from lance_spark.store.files import File, replace_file
from lance_spark.store.format import (
    HEADER_BYTES,
    ROW,
    IndexHeader,
    IndexMark,
    Kind,
    Rows,
    SegmentName,
    decode_rows,
    encode_header,
    make_batch_rows,
    seal_rows,
    valid_rows,
)
from lance_spark.store.log import Log
from lance_spark.store.segment import (
    Boundary,
    DamagedIndex,
    IndexTable,
    OpenSegment,
    Segment,
    SegmentKey,
)

# How much is framed at once; a longer record makes it grow.
_WINDOW_BYTES = 1024 * 1024
# A row's length field is a u32.
_LOST_BYTES_MAX = 2**31


_START = Boundary(0, 0)


@dataclass(slots=True)
class Rebuilt:
    """Rows of a segment, old and new, up to `end`.

    Args:
        data: the segment's data.
        framing: finds record starts.
        stride: distance of inner rows.
        last_append_ns: time of the last row.
        end: how far the rows reach.
        parts: the rows' bytes.
        rows: how many they are.
        made: ranges whose rows were made from the data.
        lost: ranges of bytes that could not be framed.
        unknown: how many bytes at the end are lost. Nothing tells how many records
            they held, but no record is shorter than a byte.
    """

    data: File
    framing: Framing
    stride: int
    last_append_ns: int = 0
    end: Boundary = _START
    parts: list[bytes] = field(default_factory=list)
    rows: int = 0
    made: list[tuple[int, int]] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    unknown: int = 0

    @classmethod
    def begin(cls, context: Context, data: File, name: SegmentName) -> Rebuilt:
        """Begin with no rows; the first ones are dated as the segment is."""
        stride = context.config.index_stride_bytes
        return cls(data, context.framing, stride, name.start_ns)

    def keep(self, rows: Rows) -> None:
        """Take over the rows of whole batches as they are."""
        if len(rows):
            last = rows[-1]  # Whatever its kind: it reaches to the end of its batch.
            record = int(last["record"] + last["records"])
            self.end = Boundary(int(last["position"] + last["length"]), record)
            self.last_append_ns = int(last["append_ns"])
            self.unknown = count_unknown(rows)
            self._add(rows.tobytes(), len(rows))

    def make(self, end: int, *, cut_tail: bool) -> None:
        """Make rows from the data up to a position.

        Args:
            end: where the data to look at ends.
            cut_tail: leave out a last record that is not whole, instead of counting
                it as lost.
        """
        first, window = self.end.position, _WINDOW_BYTES
        while self.end.position < end:
            start = self.end.position
            chunk = self.data.pread(min(window, end - start), start)
            scan = self.framing(chunk)
            if scan.end:
                self._make_batch(chunk[: scan.end], scan.starts)
                window = _WINDOW_BYTES
            elif not (scan.fault and scan.fault.truncated):
                self.lose(end)
            elif window == len(chunk) < end - start:
                window *= 2
            elif cut_tail:
                break
            else:
                self.lose(end)
        if self.end.position > first:
            self.made.append((first, self.end.position))

    def _make_batch(self, data: bytes, starts: NDArray[np.int64]) -> None:
        position, record = self.end.position, self.end_record
        rows = make_batch_rows(
            position,
            record,
            self.last_append_ns,
            len(data),
            starts,
            crc32c(data),
            self.stride,
        )
        self._add(rows, len(rows) // ROW.itemsize)
        self.end = Boundary(position + len(data), record + len(starts))
        self.unknown = 0

    def lose(self, end: int) -> None:
        """Cover everything up to a position with rows that say it is lost."""
        self.lost.append((self.end.position, end))
        self.unknown += end - self.end.position
        while self.end.position < end:
            length = min(end - self.end.position, _LOST_BYTES_MAX)
            row = np.zeros(1, ROW)
            row["position"], row["record"] = self.end
            row["append_ns"], row["length"] = self.last_append_ns, length
            row["kind"] = Kind.LOST
            self._add(seal_rows(row), 1)
            self.end = Boundary(self.end.position + length, self.end.record)

    @property
    def end_record(self) -> int:
        """A number that no record before the end has been given."""
        return self.end.record + self.unknown

    def _add(self, rows: bytes, count: int) -> None:
        self.parts.append(rows)
        self.rows += count


def rebuild(
    result: Rebuilt, rows: Rows, end: int, *, cut_tail: bool = False
) -> Rebuilt:
    """Keep the rows that are sound and make the others from the data.

    Args:
        result: takes the rows; its time is that of rows that have none before them.
        rows: what the index holds.
        end: where the data ends, or the part of it that is to be covered.
        cut_tail: see `Rebuilt.make`.
    """
    valid = valid_rows(rows)
    heads = valid & (rows["kind"] != Kind.INNER)
    number = 0
    while number < len(rows):
        if not heads[number]:
            # Behind damaged rows: go on with the next batch whose row is sound.
            behind = np.flatnonzero(heads[number:])
            number = number + int(behind[0]) if len(behind) else len(rows)
            continue
        row = rows[number]
        position = int(row["position"])
        size = 0
        if position >= result.end.position:
            size = sound_rows(rows[number:], position, end, valid[number:])
        if size and position > result.end.position:
            # A clock that went back may have dated the segment after its batches.
            result.last_append_ns = min(result.last_append_ns, int(row["append_ns"]))
            result.make(position, cut_tail=False)
        # A kept row knows how many records there were before it, also if some of the
        # bytes between could not be framed.
        result.keep(rows[number : number + size])
        number += max(size, 1)
    result.make(end, cut_tail=cut_tail)
    return result


def count_unknown(rows: Rows) -> int:
    """Count the bytes of the last rows, if nothing tells what they held."""
    known = np.flatnonzero((rows["kind"] != Kind.LOST) | (rows["records"] > 0))
    return int(rows["length"][known[-1] + 1 if len(known) else 0 :].sum())


def sound_rows(
    rows: Rows, start: int, end: int, valid: NDArray[np.bool_] | None = None
) -> int:
    """Count the first rows that are whole batches, in line within [start, end).

    Lost bytes need not be there. All rows are looked at together: an index may have
    hundreds of thousands. `valid` is what `valid_rows` says of them, where that is
    known.
    """
    if valid is None:
        valid = valid_rows(rows)
    rows = rows[: len(rows) if valid.all() else int(np.argmin(valid))]
    heads = np.flatnonzero(rows["kind"] != Kind.INNER)
    batches = rows[heads]
    next_head = heads + 1 + batches["inner"]
    ends = (batches["position"] + batches["length"]).astype(np.int64)
    begins = np.concatenate(([start], ends[:-1])) if len(ends) else ends
    there = (ends <= end) | (batches["kind"] == Kind.LOST)
    good = (batches["position"] == begins) & there & (next_head <= len(rows))
    good[:-1] &= next_head[:-1] == heads[1:]
    if len(heads) and heads[0] != 0:
        return 0
    whole = len(good) if good.all() else int(np.argmin(good))
    return int(next_head[whole - 1]) if whole else 0


class Promise(NamedTuple):
    """Up to where the rows of a lazy segment promise their batches.

    `damaged` rows behind that can't be read, or are missing before the mark. What they
    and later ones stood for was acknowledged as well: a process that is killed leaves
    half a row behind its last one, never a whole one that differs.
    """

    mark: IndexMark
    damaged: int


def find_promise(mark: IndexMark, rows: Rows) -> Promise:
    """Find what was acknowledged of a lazy segment, beyond its mark."""
    valid = valid_rows(rows)
    end = len(rows)
    heads = np.flatnonzero(valid & (rows["kind"] != Kind.INNER))
    if len(heads) and heads[-1] + 1 + rows[heads[-1]]["inner"] > end:
        # The rows of this batch were being written.
        end = int(heads[-1])
    known = np.flatnonzero(valid[:end])
    if len(known) and known[-1] >= mark.rows:
        # Whatever its kind: it reaches to the end of its batch.
        row = rows[known[-1]]
        count = int(known[-1]) + 1 + int(row["inner"])
        mark = IndexMark(int(row["position"] + row["length"]), count)
    return Promise(mark, abs(end - mark.rows))


def write_index(
    context: Context, directory: Path, header: IndexHeader, rebuilt: Rebuilt
) -> None:
    """Put a rebuilt index in the place of the old one."""
    mark = IndexMark(rebuilt.end.position, rebuilt.rows)
    data = encode_header(header, mark) + b"".join(rebuilt.parts)
    path = directory / header.name.index_file
    context.reserve.spend(lambda: replace_file(context.files, path, data))


def report_rebuilt(context: Context, where: str, base: int, rebuilt: Rebuilt) -> None:
    """Say what was rebuilt and what was lost."""
    for start, end in rebuilt.made:
        text = "index rows were rebuilt from the data"
        context.findings.note(where, text, base + start, base + end)
    for start, end in rebuilt.lost:
        text = "index rows are gone and the bytes can't be framed"
        context.findings.damage(where, text, base + start, base + end)


def open_with_table(log: Log, segment: Segment) -> tuple[OpenSegment, IndexTable]:
    """Open a segment with its index, rebuilding rows that have become damaged."""
    opened = log.open_segment(segment)
    try:
        table = opened.table(segment.rows)
    except DamagedIndex:
        with log.exclusive():
            _mend(log, segment)
        opened = log.open_segment(segment)
        table = opened.table(segment.rows)
    log.context.segments.trim_tables()
    return opened, table


def _mend(log: Log, segment: Segment) -> None:
    context = log.context
    opened = log.open_segment(segment)
    # The new index says that everything in it is durable.
    opened.sync()
    rows = decode_rows(opened.index.pread(segment.index_bytes, HEADER_BYTES))
    if len(rows) >= segment.rows and valid_rows(rows[: segment.rows]).all():
        return  # Another thread was here first.
    rebuilt = Rebuilt.begin(context, opened.data, segment.name)
    rebuild(rebuilt, rows[: segment.rows], segment.size)
    header = segment.header(log.topic)
    try:
        context.spare.insist(
            lambda: write_index(context, log.directory, header, rebuilt)
        )
    except OSError as error:
        # Which of the two indexes is there is not known: none may be written to.
        log.fail(f"an index could not be rebuilt ({error})")
        raise
    finally:
        context.segments.drop(SegmentKey(log.topic, segment.name.number))
    report_rebuilt(context, log.where, segment.base_offset, rebuilt)
    segment.rows = rebuilt.rows
