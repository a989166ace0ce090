"""One segment: what is known of it, its index in memory, and its two open files.

`Segment` is the small value that a log keeps for each of its segments. `OpenSegment`
has the files and the index; it comes from the `SegmentCache`, which bounds the open
files and the memory of indexes over all topics, least recently used first out. It may
be dropped from there at any time: its files close when the last user lets go.

`IndexTable` has two tables: batches, and boundaries (every record start that the index
knows, those of the batches among them). Columns are separate arrays because a binary
search over a field of a structured array would copy the whole column each time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lance_spark.checksum import crc32c
from lance_spark.errors import Corrupt, StoreError
from lance_spark.store.files import File, Files, remove_if_there
from lance_spark.store.format import (
    HEADER_BYTES,
    ROW,
    ROW_BYTES,
    IndexHeader,
    IndexMark,
    Kind,
    Rows,
    SegmentName,
    decode_mark,
    decode_rows,
    encode_header,
    encode_mark,
    mark_position,
    valid_rows,
)


class Column:
    """An array that grows by doubling."""

    __slots__ = ("_data", "_length")

    def __init__(self, dtype: Any) -> None:
        self._data: NDArray[Any] = np.empty(16, dtype)
        self._length = 0

    def extend(self, values: NDArray[Any]) -> None:
        """Append values; arrays handed out before keep what they showed."""
        length = self._length + len(values)
        if length > len(self._data):
            grown = np.empty(max(length, 2 * len(self._data)), self._data.dtype)
            grown[: self._length] = self._data[: self._length]
            self._data = grown
        self._data[self._length : length] = values
        self._length = length

    @property
    def values(self) -> NDArray[Any]:
        """The values so far."""
        return self._data[: self._length]


# A batch has its row, two numbers and a flag, a boundary two numbers; columns may be
# half empty after they have grown.
_ROW_MEMORY_BYTES = 2 * (ROW_BYTES + 2 * 8 + 1 + 2 * 8)


class Boundary(NamedTuple):
    """A record start (or the end of the last record), inside a segment."""

    position: int
    record: int


class IndexedBatch(NamedTuple):
    """One batch of a segment."""

    number: int
    position: int
    length: int
    record: int
    records: int
    append_ns: int
    data_crc: int
    lost: bool

    @property
    def end(self) -> int:
        """Position behind the batch."""
        return self.position + self.length


class IndexTable:
    """The index of a segment, as far as it has been read."""

    def __init__(self) -> None:
        self.rows = 0
        self._batches = Column(ROW)
        self._position = Column(np.int64)
        self._append_ns = Column(np.int64)
        # Which batches were compared with their checksum since this was loaded.
        self._verified = Column(np.bool_)
        self._boundary_position = Column(np.int64)
        self._boundary_record = Column(np.int64)

    def extend(self, rows: Rows) -> None:
        """Take in further rows, in the order of the file."""
        batches = rows[rows["kind"] != Kind.INNER]
        self._batches.extend(batches)
        self._append_ns.extend(batches["append_ns"])
        self._verified.extend(np.zeros(len(batches), np.bool_))
        self._boundary_record.extend(rows["record"])
        # Last, because they are what is searched: a reader that finds a row,
        # while others are added, finds all of it.
        self._position.extend(batches["position"])
        self._boundary_position.extend(rows["position"])
        self.rows += len(rows)

    @property
    def nbytes(self) -> int:
        """Memory in use, about; asked often, so it is not added up."""
        return self.rows * _ROW_MEMORY_BYTES

    @property
    def batches(self) -> int:
        """How many batches there are."""
        return len(self._position.values)

    def batch(self, number: int) -> IndexedBatch:
        """Give a batch by its number in the segment."""
        row = self._batches.values[number].item()
        position, record, append_ns, length, records, data_crc, kind = row[:7]
        return IndexedBatch(
            *(number, position, length, record, records, append_ns, data_crc),
            lost=kind == Kind.LOST,
        )

    def batch_at(self, position: int) -> int:
        """Find the batch that holds a position."""
        found = np.searchsorted(self._position.values, position, "right")
        return int(found) - 1

    def batch_at_time(self, append_ns: int) -> int:
        """Find the first batch appended at or after a time."""
        return int(np.searchsorted(self._append_ns.values, append_ns, "left"))

    def append_times(
        self, start: int, end: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Give the first record and the time of each batch in [start, end)."""
        last = int(np.searchsorted(self._position.values, end, "left"))
        batches = slice(self.batch_at(start), last)
        records = self._batches.values["record"][batches].astype(np.int64)
        return records, self._append_ns.values[batches]

    def unverified(self, start: int, end: int) -> list[int]:
        """List the batches in [start, end) that were not verified yet."""
        first = self.batch_at(start)
        last = int(np.searchsorted(self._position.values, end, "left"))
        open_ones = np.flatnonzero(~self._verified.values[first:last])
        return [first + int(n) for n in open_ones]

    def set_verified(self, number: int) -> None:
        """Note that a batch's bytes have the checksum of its row."""
        self._verified.values[number] = True

    def boundary_before(self, position: int) -> Boundary:
        """Find the last known boundary at or before a position."""
        found = np.searchsorted(self._boundary_position.values, position, "right")
        return self._boundary(found - 1)

    def boundary_after(self, position: int) -> Boundary | None:
        """Find the first known boundary behind a position."""
        found = np.searchsorted(self._boundary_position.values, position, "right")
        if found == len(self._boundary_position.values):
            return None
        return self._boundary(found)

    def boundary_of_record(self, record: int) -> Boundary:
        """Find the last known boundary whose record number is at most this one."""
        found = np.searchsorted(self._boundary_record.values, record, "right")
        return self._boundary(found - 1)

    def _boundary(self, number: np.int64) -> Boundary:
        position, record = self._boundary_position, self._boundary_record
        return Boundary(int(position.values[number]), int(record.values[number]))


# Batches are verified in pieces of this size.
_PIECE_BYTES = 256 * 1024


@dataclass(slots=True)
class Segment:
    """A segment of a log: where it starts and how far it is written.

    Args:
        name: number and start time.
        base_offset: offset of its first byte.
        base_record: number of its first record.
        time_floor_ns: none of its batches counts as older.
        size: bytes written.
        rows: index rows written.
        records: records written.
        last_append_ns: time of the last batch, 0 if there is none.
        closed: nothing may be appended; set for a segment that lost bytes.
        lazy: written without syncs, see `format`.
        is_counted: `records` is what was appended. Else its last bytes are lost, and
            so many numbers are left out that none is given out twice.
    """

    name: SegmentName
    base_offset: int
    base_record: int
    time_floor_ns: int = 0
    size: int = 0
    rows: int = 0
    records: int = 0
    last_append_ns: int = 0
    closed: bool = False
    lazy: bool = False
    is_counted: bool = True

    @property
    def end(self) -> int:
        """Offset behind its last byte."""
        return self.base_offset + self.size

    @property
    def end_record(self) -> int:
        """Number of the record that would come next."""
        return self.base_record + self.records

    @property
    def index_bytes(self) -> int:
        """Length of the index file."""
        return HEADER_BYTES + self.rows * ROW_BYTES

    def go_back(self, old: Segment) -> None:
        """Become what a copy was made of earlier."""
        self.size, self.rows, self.records = old.size, old.rows, old.records
        self.last_append_ns, self.closed = old.last_append_ns, old.closed

    def lift(self, time_floor_ns: int) -> None:
        """Let no batch count as older than a time."""
        self.time_floor_ns = max(self.time_floor_ns, time_floor_ns)
        self.last_append_ns = max(self.last_append_ns, self.time_floor_ns)

    def header(self, topic: int) -> IndexHeader:
        """Make the header of this segment's index."""
        base = (self.base_offset, self.base_record)
        return IndexHeader(topic, self.name, *base, self.time_floor_ns, self.lazy)


class DamagedIndex(StoreError):
    """Rows of an index are not as they were written; its log has to rebuild it."""


class OpenSegment:
    """The open files of a segment and its index table."""

    def __init__(self, files: Files, directory: Path, name: SegmentName) -> None:
        self.data: File = files.open(directory / name.data_file)
        self.index: File = files.open(directory / name.index_file)
        # Appended to since the last sync. The files are synced before they are dropped:
        # a later descriptor might not be told of an earlier write's failure.
        self.dirty = False
        # A sync that failed once must never count as done: the kernel reports the
        # failure to a descriptor only the first time. So one thread syncs at a time:
        # of two, one would be told that all is well.
        self._sync_failure: OSError | None = None
        self._syncing = threading.Lock()
        self._mark: IndexMark | None = None
        self._table = IndexTable()
        self._table_lock = threading.Lock()

    @property
    def table_bytes(self) -> int:
        """Memory taken by the index table."""
        return self._table.nbytes if self._table.rows else 0

    def drop_table(self) -> None:
        """Free the index table; it is read again when it is needed."""
        self._table = IndexTable()

    def table(self, rows: int) -> IndexTable:
        """Give the index table with at least the first `rows` rows.

        Raises:
            DamagedIndex: a row is not as it was written.
        """
        with self._table_lock:
            table = self._table
            missing = rows - table.rows
            if missing > 0:
                position = HEADER_BYTES + table.rows * ROW_BYTES
                fresh = decode_rows(self.index.pread(missing * ROW_BYTES, position))
                if len(fresh) < missing or not valid_rows(fresh).all():
                    raise DamagedIndex("rows of the index are damaged")
                table.extend(fresh)
            return table

    def sync(self) -> None:
        """Make data and index survive the loss of power."""
        with self._syncing:
            if self._sync_failure is not None:
                raise self._sync_failure
            self.dirty = False
            try:
                self.data.sync()
                self.index.sync()
            except OSError as error:
                self._sync_failure = error
                self.dirty = True
                raise

    def write_mark(self, size: int, rows: int) -> None:
        """Note that the segment is durable up to here; only after `sync`."""
        if self._mark is None:
            self._mark = decode_mark(self.index.pread(HEADER_BYTES, 0))
        if (self._mark.position, self._mark.rows) != (size, rows):
            mark = IndexMark(size, rows, self._mark.count + 1)
            self.index.pwrite(encode_mark(mark), mark_position(mark.count))
            self._mark = mark

    def read(self, start: int, end: int) -> bytes:
        """Read the data in [start, end); fewer bytes only if the file was cut."""
        return self.data.pread(end - start, start)


def create_files(files: Files, directory: Path, header: IndexHeader) -> None:
    """Make the two files of a new segment, durably."""
    index = files.open(directory / header.name.index_file, create=True)
    index.pwrite(encode_header(header, IndexMark()), 0)
    # The header has to be there when a later sync makes rows durable.
    index.sync()
    index.close()
    files.open(directory / header.name.data_file, create=True).close()
    files.sync_dir(directory)


def remove_files(files: Files, directory: Path, name: SegmentName) -> None:
    """Remove the two files of a segment, as far as they are there."""
    remove_if_there(files, directory / name.data_file)
    remove_if_there(files, directory / name.index_file)


def check_batch(batch: IndexedBatch, data: File) -> str | None:
    """Compare a batch with its row; say what is wrong, None if nothing is.

    Batches may be large and many threads may look at one, so it is read in pieces.
    """
    if batch.lost:
        return "missing, or could not be framed, when the index was rebuilt"
    room = memoryview(bytearray(min(batch.length, _PIECE_BYTES)))
    crc, done = 0, 0
    while done < batch.length:
        piece = room[: min(len(room), batch.length - done)]
        size = data.pread_into(piece, batch.position + done)
        if size < len(piece):
            return f"{batch.length - done - size} bytes are missing from the file"
        crc = crc32c(piece, crc)
        done += size
    return None if crc == batch.data_crc else "the checksum differs"


def verify_range(
    where: str, base: int, opened: OpenSegment, table: IndexTable, start: int, end: int
) -> int:
    """Verify the batches of [start, end) that were not verified yet.

    Returns:
        Up to which position the range is sound.

    Raises:
        Corrupt: already the first batch is damaged.
    """
    for number in table.unverified(start, end):
        batch = table.batch(number)
        fault = check_batch(batch, opened.data)
        if fault is None:
            table.set_verified(number)
        elif batch.position > start:
            return batch.position
        else:
            raise Corrupt(where, base + batch.position, base + batch.end, fault)
    return end


class SegmentKey(NamedTuple):
    """A segment of a topic or stage."""

    topic: int
    number: int


class SegmentCache:
    """The open segments of a store."""

    def __init__(self, *, open_max: int, table_bytes_max: int) -> None:
        self._open_max = open_max
        self._table_bytes_max = table_bytes_max
        self._lock = threading.Lock()
        self._open: OrderedDict[SegmentKey, OpenSegment] = OrderedDict()

    def get(self, key: SegmentKey, opener: Callable[[], OpenSegment]) -> OpenSegment:
        """Give an open segment, opening it if need be."""
        with self._lock:
            opened = self._open.get(key)
            if opened is None:
                self._make_room()
                opened = self._open[key] = opener()
            else:
                self._open.move_to_end(key)
            return opened

    def trim_tables(self) -> None:
        """Free the tables of the least recently used segments above the limit."""
        with self._lock:
            used = 0
            for opened in reversed(self._open.values()):
                used += opened.table_bytes
                if used > self._table_bytes_max:
                    used -= opened.table_bytes
                    opened.drop_table()

    def drop(self, key: SegmentKey) -> None:
        """Forget a segment, without syncing it."""
        with self._lock:
            self._open.pop(key, None)

    def drop_topic(self, topic: int) -> None:
        """Forget all segments of a topic or stage, without syncing them."""
        with self._lock:
            for key in [k for k in self._open if k.topic == topic]:
                del self._open[key]

    def clear(self) -> None:
        """Forget everything; a file closes when the last slice of it is gone."""
        with self._lock:
            self._open.clear()

    def _make_room(self) -> None:
        # Those that need no sync go first.
        for key in sorted(self._open, key=lambda key: self._open[key].dirty):
            if len(self._open) < self._open_max:
                return
            try:
                if self._open[key].dirty:
                    self._open[key].sync()
            except OSError:
                # It stays, and above the limit: the failure has to reach the log
                # whose bytes these are, with its next sync.
                continue
            del self._open[key]
