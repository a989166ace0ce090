"""One segment: what is known of it, and its two open files.

`Segment` is the small value that a log keeps for each of its segments. `OpenSegment`
has the files and the index table; it comes from the cache and may be dropped from it
at any time, its files close when the last user lets go.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from lance_spark.errors import Corrupt, StoreError
from lance_spark.store.files import File, Files
from lance_spark.store.format import (
    HEADER_BYTES,
    ROW_BYTES,
    Header,
    Mark,
    SegmentName,
    decode_mark,
    decode_rows,
    encode_header,
    encode_mark,
    mark_position,
    valid_rows,
)
from lance_spark.store.index import Batch, IndexTable

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

    def header(self, topic: int) -> Header:
        """Make the header of this segment's index."""
        return Header(
            topic,
            self.name,
            self.base_offset,
            self.base_record,
            self.time_floor_ns,
            self.lazy,
        )


class DamagedIndex(StoreError):
    """Rows of an index are not as they were written; its log has to rebuild it."""


class OpenSegment:
    """The open files of a segment and its index table."""

    def __init__(self, files: Files, directory: Path, name: SegmentName) -> None:
        self.data: File = files.open(directory / name.data_file)
        self.index: File = files.open(directory / name.index_file)
        # Appended to since the last sync. Whoever drops the files syncs them first:
        # a later descriptor might not be told of an earlier write's failure.
        self.dirty = False
        # A sync that failed once must never count as done: the kernel reports the
        # failure to a descriptor only the first time. So one thread syncs at a time:
        # of two, one would be told that all is well.
        self._sync_failure: OSError | None = None
        self._syncing = threading.Lock()
        self._mark: Mark | None = None
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
            mark = Mark(size, rows, self._mark.count + 1)
            self.index.pwrite(encode_mark(mark), mark_position(mark.count))
            self._mark = mark

    def read(self, start: int, end: int) -> bytes:
        """Read the data in [start, end); fewer bytes only if the file was cut."""
        return self.data.pread(end - start, start)


def create_files(files: Files, directory: Path, header: Header) -> None:
    """Make the two files of a new segment, durably."""
    index = files.open(directory / header.name.index_file, create=True)
    index.pwrite(encode_header(header, Mark()), 0)
    # The header has to be there when a later sync makes rows durable.
    index.sync()
    index.close()
    files.open(directory / header.name.data_file, create=True).close()
    files.sync_dir(directory)


def check_batch(batch: Batch, data: File) -> str | None:
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
