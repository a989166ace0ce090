"""One segment and its open files."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from lance_spark.errors import Corrupt
from lance_spark.store.format import (
    HEADER_BYTES,
    IndexMark,
    SegmentName,
    decode_mark,
    encode_header,
    make_batch_rows,
)
from lance_spark.store.segment import (
    DamagedIndex,
    IndexedBatch,
    OpenSegment,
    Segment,
    check_batch,
    verify_range,
)
from tests.store.disk import Disk, DiskFiles
from tests.store.jobs import hooked, refusing
from tests.store.kit import record

NAME = SegmentName(0, 5)
BATCHES = [record(b"a" * 5), record(b"b" * 15), record(b"c" * 25)]  # 10, 20, 30 bytes.


@pytest.fixture
def opened(files: DiskFiles) -> OpenSegment:
    """A segment with three batches."""
    rows = b"".join(
        make_batch_rows(position, number, 9, len(data), np.array([0]), crc32c(data), 64)
        for number, (position, data) in enumerate(
            zip((0, 10, 30), BATCHES, strict=True)
        )
    )
    header = encode_header(Segment(NAME, 1_000, 0).header(7), IndexMark())
    files.open(Path("/0_5.idx"), create=True).pwrite(header + rows, 0)
    files.open(Path("/0_5.lnc"), create=True).pwrite(b"".join(BATCHES), 0)
    return OpenSegment(files, Path("/"), NAME)


def test_what_is_known_of_a_segment() -> None:
    segment = Segment(NAME, 1_000, 40, size=60, rows=3, records=2)
    assert (segment.end, segment.end_record) == (1_060, 42)
    assert segment.index_bytes == 128 + 3 * 48
    header = segment.header(7)
    assert (header.topic, header.name, header.base_offset) == (7, NAME, 1_000)


def test_going_back() -> None:
    old = Segment(NAME, 1_000, 40, size=60, rows=3, records=2, last_append_ns=8)
    segment = Segment(NAME, 1_000, 40, 0, 99, 9, 9, 99, closed=True)
    segment.go_back(old)
    assert segment == old


def test_the_table_grows_with_the_index(opened: OpenSegment) -> None:
    assert opened.table_bytes == 0
    assert opened.table(1).batches == 1
    table = opened.table(3)
    assert table.batches == 3
    assert opened.table(2) is table
    assert opened.table_bytes > 0
    opened.drop_table()
    assert opened.table_bytes == 0
    assert opened.table(3).batches == 3


def test_a_damaged_row(opened: OpenSegment) -> None:
    opened.index.pwrite(b"\xff", HEADER_BYTES + 48 + 5)
    assert opened.table(1).batches == 1
    with pytest.raises(DamagedIndex):
        opened.table(2)


def test_missing_rows(opened: OpenSegment) -> None:
    opened.index.truncate(HEADER_BYTES + 2 * 48 + 47)
    with pytest.raises(DamagedIndex):
        opened.table(3)
    assert opened.table(2).batches == 2


def test_a_mark_is_written_once(files: DiskFiles, opened: OpenSegment) -> None:
    writes: list[str] = []
    with hooked(files, lambda operation, name: writes.append(operation)):
        opened.write_mark(10, 1)
        opened.write_mark(10, 1)
        opened.write_mark(30, 2)
    assert writes == ["pwrite", "pwrite"]
    assert decode_mark(opened.index.pread(HEADER_BYTES, 0)) == IndexMark(30, 2, 2)
    again = OpenSegment(files, Path("/"), NAME)
    again.write_mark(60, 3)
    assert decode_mark(again.index.pread(HEADER_BYTES, 0)) == IndexMark(60, 3, 3)


@pytest.mark.parametrize("ending", ["lnc", "idx"])
def test_a_failed_sync_never_counts_as_done(
    files: DiskFiles, opened: OpenSegment, ending: str
) -> None:
    opened.dirty = True
    with refusing(files, "sync", f"0_5.{ending}", times=1), pytest.raises(OSError):
        opened.sync()
    assert opened.dirty
    with pytest.raises(OSError, match="Input/output error"):
        opened.sync()


def test_sync(files: DiskFiles, opened: OpenSegment) -> None:
    opened.dirty = True
    opened.sync()
    assert not opened.dirty
    inode = files.disk.inodes[files.disk.seen["/0_5.lnc"]]
    assert inode.durable == b"".join(BATCHES)


def test_a_batch_compared_with_its_row() -> None:
    batch = IndexedBatch(0, 0, 4, 0, 1, 9, crc32c(b"data"), lost=False)

    def check(content: bytes, batch: IndexedBatch = batch) -> str | None:
        file = DiskFiles(Disk()).open(Path("/file"), create=True)
        file.pwrite(content, 0)
        return check_batch(batch, file)

    assert check(b"data") is None
    assert check(b"data, and more behind it") is None
    assert check(b"dat") == "1 bytes are missing from the file"
    assert check(b"dada") == "the checksum differs"
    lost = check(b"data", batch._replace(lost=True))
    assert lost == "missing, or could not be framed, when the index was rebuilt"


@pytest.mark.parametrize("size", [256 * 1024, 600 * 1024])
def test_a_large_batch_is_compared_in_pieces(size: int) -> None:
    content = bytes(size)
    file = DiskFiles(Disk()).open(Path("/file"), create=True)
    file.pwrite(content, 0)
    batch = IndexedBatch(0, 0, size, 0, 1, 9, crc32c(content), lost=False)
    assert check_batch(batch, file) is None
    file.pwrite(b"\xff", size - 1)
    assert check_batch(batch, file) == "the checksum differs"
    file.truncate(size - 5)
    assert check_batch(batch, file) == "5 bytes are missing from the file"


def verify(opened: OpenSegment, start: int, end: int) -> int:
    return verify_range("segments/7", 1_000, opened, opened.table(3), start, end)


def test_a_sound_range_is_read_once(opened: OpenSegment) -> None:
    assert verify(opened, 5, 35) == 35
    opened.data.pwrite(b"\xff" * 60, 0)
    assert verify(opened, 0, 60) == 60


def test_damage_behind_the_first_batch_ends_the_range(opened: OpenSegment) -> None:
    opened.data.pwrite(b"\xff", 40)
    assert verify(opened, 0, 60) == 30
    assert verify(opened, 10, 30) == 30


def test_damage_at_the_start(opened: OpenSegment) -> None:
    opened.data.pwrite(b"\xff", 15)
    with pytest.raises(Corrupt):
        verify(opened, 10, 60)
    with pytest.raises(Corrupt) as caught:
        verify(opened, 15, 60)
    assert (caught.value.start, caught.value.end) == (1_010, 1_030)
    assert str(caught.value) == (
        "segments/7: damaged bytes [1010, 1030): the checksum differs"
    )


def test_a_sync_that_fails_is_told_to_all_who_sync(
    files: DiskFiles, opened: OpenSegment
) -> None:
    """The kernel tells a descriptor once: no other sync may return well meanwhile."""
    begun, go_on = threading.Event(), threading.Event()

    def fail_once(operation: str, name: str) -> None:
        if operation == "sync" and not begun.is_set():
            begun.set()
            assert go_on.wait(30)
            raise OSError(errno.EIO, "Input/output error")

    with hooked(files, fail_once), ThreadPoolExecutor(2) as pool:
        first = pool.submit(opened.sync)
        assert begun.wait(30)
        second = pool.submit(opened.sync)
        # It waits for the first one; if it did not, it would be done by then.
        wait([second], 0.2)
        go_on.set()
        for future in (first, second):
            with pytest.raises(OSError, match="Input/output error"):
                future.result(30)
