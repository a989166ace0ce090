"""The side of a log that reads: ranges of whole records, and places in the log.

A `View` works on what was visible when it was made and takes none of the log's writing
locks. The index knows a record boundary every few KiB (`Boundaries`). Nothing here
looks at single records unless a boundary is asked for that lies between two of these,
and then only at the bytes between them.

Answers have a checksum. That of whole batches is put together from theirs, without
reading a byte. A CRC is linear: the CRC of `a + b` is that of `a`, moved along by as
many zero bytes as `b` has, exclusive or that of `b`. Moving along by 2^k bytes is a
fixed linear function of 32 bits, kept as four tables of 256 numbers, one for each byte
of its argument.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from lance_spark.errors import Corrupt, OutOfRange, StoreError, UnknownTopic
from lance_spark.model import Bounds, Location, Scan
from lance_spark.store.files import File
from lance_spark.store.log import Log, Point
from lance_spark.store.recovery import open_with_table
from lance_spark.store.segment import (
    Boundary,
    IndexTable,
    OpenSegment,
    Segment,
    verify_range,
)

_NO_RECORD = Scan(np.empty(0, np.int64), 0)


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Finds the record boundaries of a segment up to a limit.

    Args:
        log: the segment's log.
        segment: where it is in the log.
        opened: its files.
        table: its index.
        limit: the boundary behind the last record that may be seen.
    """

    log: Log
    segment: Segment
    opened: OpenSegment
    table: IndexTable
    limit: Boundary

    def verify(self, start: int, end: int) -> int:
        """Verify the batches of a range; see `verify_range`."""
        where, base = self.log.where, self.segment.base_offset
        return verify_range(where, base, self.opened, self.table, start, end)

    def at_or_after(self, position: int) -> Boundary:
        """Find the first boundary that is not before a position."""
        if position >= self.limit.position:
            return self.limit
        known = self.table.boundary_before(position)
        if known.position == position:
            return known
        following = self._known_after(position)
        scan = self._scan(known, following.position)
        inside = int(scan.starts.searchsorted(position - known.position, "left"))
        if inside == len(scan.starts):
            return following
        start = known.position + int(scan.starts[inside])
        return Boundary(start, known.record + inside)

    def at_or_before(self, position: int) -> Boundary:
        """Find the last boundary that is not behind a position."""
        if position >= self.limit.position:
            return self.limit
        known = self.table.boundary_before(position)
        if known.position == position:
            return known
        # The bytes up to the position are enough: what is whole in them ends at the
        # boundary that is looked for.
        scan = self._scan(known, position)
        return Boundary(known.position + scan.end, known.record + len(scan.starts))

    def of_record(self, record: int) -> Boundary:
        """Find where a record starts."""
        if record >= self.limit.record:
            return self.limit
        known = self.table.boundary_of_record(record)
        if known.record == record:
            return known
        scan = self._scan(known, self._known_after(known.position).position)
        inside = record - known.record
        return Boundary(known.position + int(scan.starts[inside]), record)

    def _known_after(self, position: int) -> Boundary:
        known = self.table.boundary_after(position)
        if known is None or known.position > self.limit.position:
            return self.limit
        return known

    def _scan(self, known: Boundary, end: int) -> Scan:
        start = known.position
        batch = self.table.batch(self.table.batch_at(start))
        if batch.records == 1 and not batch.lost:
            # Nothing to find inside, and its bytes need not follow the framing.
            return _NO_RECORD
        self.verify(start, end)
        scan = self.log.context.framing(self.opened.read(start, end))
        if scan.fault is not None and not scan.fault.truncated:
            base = self.segment.base_offset
            at = base + start + scan.fault.position
            raise Corrupt(self.log.where, at, base + end, scan.fault.reason)
        return scan


# Smaller batches are read faster than their checksums are put together.
_COMBINED_BYTES_MIN = 128 * 1024


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole records of a log, as a range of a file.

    The file stays open for as long as the slice is held. `file.fileno()`, `position`
    and `len` are what sendfile asks for; `read` gives the bytes.
    """

    start: int
    end: int
    records: int
    file: File | None = None
    position: int = 0
    # Of the bytes, where that is known without reading them.
    crc32c: int | None = None

    def __len__(self) -> int:
        return self.end - self.start

    def read(self) -> bytes:
        """Read the bytes of the slice.

        Raises:
            Corrupt: the file has become shorter since the slice was made.
        """
        if self.file is None:
            return b""
        try:
            data = self.file.pread(len(self), self.position)
        except OSError as error:
            raise StoreError(f"could not read {len(self)} bytes: {error}") from error
        self._check_whole(len(data), len(self))
        return data

    def pieces(self, buffer: memoryview) -> Iterator[memoryview]:
        """Read the slice piece by piece into a buffer that is used again for each.

        Raises:
            Corrupt: the file has become shorter since the slice was made.
        """
        done = 0
        while self.file is not None and done < len(self):
            piece = buffer[: min(len(buffer), len(self) - done)]
            try:
                size = self.file.pread_into(piece, self.position + done)
            except OSError as error:
                raise StoreError(f"could not read {len(piece)} bytes: {error}") from (
                    error
                )
            self._check_whole(done + size, done + len(piece))
            yield piece
            done += size

    def _check_whole(self, there: int, wanted: int) -> None:
        if there < wanted:
            at = self.start + there
            raise Corrupt("segment file", at, self.end, "the file is too short")


@dataclass(frozen=True, slots=True)
class View:
    """What is visible of a log at one moment."""

    log: Log
    start: Point
    end: Point
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, log: Log) -> View:
        """Look at a log."""
        return cls(log, *log.snapshot())

    @property
    def offsets(self) -> Bounds:
        """The first offset that can be read, and the next."""
        return Bounds(self.start.offset, self.end.offset)

    @property
    def records(self) -> Bounds:
        """The number of the first record that can be read, and the next."""
        return Bounds(self.start.record, self.end.record)

    def read(
        self, offset: int, max_bytes: int, *, whole_batches: bool = False
    ) -> Slice:
        """Give whole records from an offset on, at least one if there is any.

        An offset inside a record is served from that byte. A slice goes neither past
        the end of its segment nor into damaged bytes.

        Args:
            offset: the first byte.
            max_bytes: the most to give, unless the first record is larger.
            whole_batches: end where a batch does if that costs less than half of what
                could be given. Batches have checksums, and the slice has theirs then.

        Raises:
            OutOfRange: the offset is before the start or behind the end.
            Corrupt: the bytes at the offset are damaged.
        """
        if offset == self.end.offset:
            return Slice(offset, offset, 0)
        segment = self._segment_at(offset)
        with self._boundaries(segment) as found:
            start = offset - segment.base_offset
            wanted = min(start + max(max_bytes, 1), found.limit.position)
            end = found.at_or_before(found.verify(start, wanted))
            if end.position <= start:
                end = found.at_or_after(start + 1)
                found.verify(start, end.position)
            if whole_batches:
                end = _end_with_batch(found.table, start, end)
            records = max(0, end.record - found.at_or_after(start).record)
        return Slice(
            offset,
            segment.base_offset + end.position,
            records,
            found.opened.data,
            start,
            _find_crc32c(found.table, start, end.position),
        )

    def read_bytes(self, offset: int, max_bytes: int) -> Slice:
        """Give bytes from an offset on, cut wherever so many of them end.

        A slice goes neither past the end of its segment nor into damaged bytes. Its
        records are those that start in it, as far as the index knows.

        Raises:
            OutOfRange, Corrupt: as `read`.
        """
        if offset == self.end.offset or max_bytes == 0:
            return Slice(offset, offset, 0)
        segment = self._segment_at(offset)
        with self._boundaries(segment) as found:
            start = offset - segment.base_offset
            wanted = min(start + max_bytes, found.limit.position)
            end = found.verify(start, wanted)
            records = found.at_or_after(end).record - found.at_or_after(start).record
        stop = segment.base_offset + end
        return Slice(offset, stop, records, found.opened.data, start)

    def find_append_times(self, found: Slice, first: int) -> NDArray[np.int64]:
        """Tell when each record of a slice was appended, in ns since 1970.

        Args:
            found: what was read.
            first: the number of its first record.
        """
        if not found.records:
            return np.empty(0, np.int64)
        segment = self._segment_at(found.start)
        with self._boundaries(segment) as boundaries:
            at = found.start - segment.base_offset
            starts, times = boundaries.table.append_times(at, at + len(found))
        numbers = np.arange(found.records) + (first - segment.base_record)
        # Those of a stage that was adopted as it was count from its commit on.
        found_ns = times[np.searchsorted(starts, numbers, "right") - 1]
        return np.maximum(found_ns, segment.time_floor_ns)

    def locate_offset(self, offset: int) -> Location:
        """Find the first record boundary at or after an offset."""
        offset = max(offset, self.start.offset)
        if offset >= self.end.offset:
            return self.locate_end()
        segment = self._segment_at(offset)
        with self._boundaries(segment) as found:
            at = found.at_or_after(offset - segment.base_offset)
            return self._location(found, at)

    def locate_record(self, record: int) -> Location:
        """Find where a record starts; the log's start or end if it has none such."""
        record = max(record, self.start.record)
        if record >= self.end.record:
            return self.locate_end()
        behind = bisect_right(self.segments, record, key=lambda s: s.base_record)
        segment = self.segments[max(0, behind - 1)]
        with self._boundaries(segment) as found:
            at = found.of_record(max(0, record - segment.base_record))
            return self._location(found, at)

    def locate_time(self, append_ns: int) -> Location:
        """Find the first record appended at or after a time."""
        # Append times never go back, so neither do those of the segments' ends.
        first = bisect_left(self.segments, append_ns, key=lambda s: s.last_append_ns)
        for segment in self.segments[first:]:
            # A segment may be empty. Its time is then that of the one before it, and
            # the record that is looked for is in one behind it.
            if segment.size:
                with self._boundaries(segment) as found:
                    number = 0
                    if append_ns > segment.time_floor_ns:
                        number = found.table.batch_at_time(append_ns)
                    if number < found.table.batches:
                        batch = found.table.batch(number)
                        at = Boundary(batch.position, batch.record)
                        return self._location(found, at)
        return self.locate_end()

    def locate_start(self) -> Location:
        """Tell where the log starts."""
        return self.locate_offset(self.start.offset)

    def locate_end(self) -> Location:
        """Tell where the log ends."""
        return Location(self.end.offset, self.end.record, 0)

    def _location(self, found: Boundaries, at: Boundary) -> Location:
        segment = found.segment
        offset = segment.base_offset + at.position
        if at.position >= found.limit.position:
            # The end of this segment is the start of the next one, or of nothing.
            return self.locate_offset(offset)
        batch = found.table.batch(found.table.batch_at(at.position))
        append_ns = max(batch.append_ns, segment.time_floor_ns)
        # Records that have lost their numbers have that of the record behind them.
        record = segment.base_record + min(at.record, found.limit.record)
        return Location(offset, record, append_ns)

    def _segment_at(self, offset: int) -> Segment:
        if not self.start.offset <= offset < self.end.offset:
            raise OutOfRange(offset, self.start.offset, self.end.offset)
        at = bisect_right(self.segments, offset, key=lambda s: s.base_offset) - 1
        before = self.segments[at].end if at >= 0 else self.start.offset
        if at >= 0 and offset < before:
            return self.segments[at]
        following = self.segments[at + 1 :]
        end = following[0].base_offset if following else self.end.offset
        raise Corrupt(self.log.where, before, end, "the segment is missing")

    @contextmanager
    def _boundaries(self, segment: Segment) -> Iterator[Boundaries]:
        """Open a segment, and turn what the disk says into an error of the store."""
        position = self.end.offset - segment.base_offset
        if segment.size >= position:
            # The last one that is visible. It may be growing: only the visible end,
            # not its size, is known to belong to the record number beside it.
            limit = Boundary(position, self.end.record - segment.base_record)
        else:
            limit = Boundary(segment.size, segment.records)
        try:
            opened, table = open_with_table(self.log, segment)
            yield Boundaries(self.log, segment, opened, table, limit)
        except FileNotFoundError as error:
            start, end = segment.base_offset, segment.end
            if not self.log.context.files.exists(self.log.directory):
                raise UnknownTopic(self.log.topic, deleted=True) from error
            if start < self.log.start.offset:
                # Retention was quicker than this view.
                log_start = self.log.start.offset
                raise OutOfRange(start, log_start, self.end.offset) from error
            reason = f"the file {error.filename} is missing"
            raise Corrupt(self.log.where, start, end, reason) from error
        except OSError as error:
            raise StoreError(f"{self.log.where}: could not read: {error}") from error


def _end_with_batch(table: IndexTable, start: int, end: Boundary) -> Boundary:
    """Move an end inside a batch back to that batch's start, if much is left."""
    batch = table.batch(table.batch_at(end.position - 1))
    if batch.end == end.position or 2 * batch.position < start + end.position:
        return end
    return Boundary(batch.position, batch.record)


def _find_crc32c(table: IndexTable, start: int, end: int) -> int | None:
    """Put the checksum of [start, end) together; None if it is not whole batches."""
    first, last = table.batch_at(start), table.batch_at(end - 1)
    batches = last - first + 1
    if batches * _COMBINED_BYTES_MIN > end - start:
        return None
    if table.batch(first).position != start or table.batch(last).end != end:
        return None
    crc = 0
    for number in range(first, last + 1):
        batch = table.batch(number)
        crc = combine_crc32c(crc, batch.data_crc, batch.length)
    return crc


# CRC32C (Castagnoli), with its bits reversed as all implementations have them.
_POLYNOMIAL = 0x82F63B78
_Tables = tuple[tuple[int, ...], ...]


def combine_crc32c(first: int, second: int, second_bytes: int) -> int:
    """Give the CRC32C of two runs of bytes, one behind the other.

    Args:
        first: CRC32C of the first.
        second: CRC32C of the second.
        second_bytes: how long the second is.
    """
    power = 0
    while second_bytes:
        if second_bytes & 1:
            a, b, c, d = _moving(power)
            first = (
                a[first & 0xFF]
                ^ b[first >> 8 & 0xFF]
                ^ c[first >> 16 & 0xFF]
                ^ d[first >> 24]
            )
        second_bytes >>= 1
        power += 1
    return first ^ second


@cache
def _moving(power: int) -> _Tables:
    """Give the tables that move a CRC along by 2^power zero bytes."""
    factor = 1 << 23  # x^8, one byte: the bits are reversed, x^0 is the highest.
    for _ in range(power):
        factor = _multiply(factor, factor)
    return tuple(
        tuple(_multiply(byte << shift, factor) for byte in range(256))
        for shift in (0, 8, 16, 24)
    )


def _multiply(a: int, b: int) -> int:
    """Multiply two polynomials modulo that of the CRC."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product
