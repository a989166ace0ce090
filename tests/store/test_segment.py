"""One segment: its open files, its index in memory, and the cache of open ones."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from lance_spark.errors import Corrupt
from lance_spark.store import Store, StoreConfig
from lance_spark.store.format import (
    HEADER_BYTES,
    ROW,
    IndexMark,
    Kind,
    SegmentName,
    decode_mark,
    decode_rows,
    encode_header,
    make_batch_rows,
)
from lance_spark.store.segment import (
    Boundary,
    Column,
    DamagedIndex,
    IndexedBatch,
    IndexTable,
    OpenSegment,
    Segment,
    SegmentCache,
    SegmentKey,
    check_batch,
    verify_range,
)
from tests.store.disk import Disk, DiskFiles
from tests.store.jobs import hooked, refusing
from tests.store.kit import SMALL, batch, check_clean, open_store, read_all, record

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


# The index of a segment in memory.


def rows_of(position: int, record: int, append_ns: int, starts: list[int], length: int):  # type: ignore[no-untyped-def]
    array = np.array(starts, np.int64)
    return decode_rows(
        make_batch_rows(position, record, append_ns, length, array, 77, 64)
    )


def two_batches() -> IndexTable:
    """[0, 100) with records at 0 and 70, [100, 130) with one, at times 5 and 9."""
    table = IndexTable()
    table.extend(rows_of(0, 0, 5, [0, 70], 100))
    table.extend(rows_of(100, 2, 9, [0], 30))
    return table


def test_a_column_grows() -> None:
    column = Column(np.int64)
    column.extend(np.arange(10))
    before = column.values
    column.extend(np.arange(10, 100))
    assert column.values.tolist() == list(range(100))
    assert before.tolist() == list(range(10))
    column.extend(np.array([7]))
    assert column.values.tolist() == [*range(100), 7]
    assert len(column._data) == 200  # Doubled, so that growing stays cheap.


def test_batches() -> None:
    table = two_batches()
    assert (table.batches, table.rows) == (2, 3)
    assert table.batch(0) == IndexedBatch(0, 0, 100, 0, 2, 5, 77, lost=False)
    assert table.batch(1) == IndexedBatch(1, 100, 30, 2, 1, 9, 77, lost=False)
    assert table.batch(1).end == 130


def test_the_batch_that_holds_a_position() -> None:
    table = two_batches()
    assert [table.batch_at(p) for p in (0, 99, 100, 129)] == [0, 0, 1, 1]


def test_the_batch_at_a_time() -> None:
    table = two_batches()
    assert [table.batch_at_time(t) for t in (0, 5, 6, 9, 10)] == [0, 0, 1, 1, 2]


def test_boundaries() -> None:
    table = two_batches()
    assert table.boundary_before(0) == Boundary(0, 0)
    assert table.boundary_before(69) == Boundary(0, 0)
    assert table.boundary_before(70) == Boundary(70, 1)
    assert table.boundary_after(0) == Boundary(70, 1)
    assert table.boundary_after(70) == Boundary(100, 2)
    assert table.boundary_after(100) is None
    assert table.boundary_of_record(0) == Boundary(0, 0)
    assert table.boundary_of_record(1) == Boundary(70, 1)
    assert table.boundary_of_record(9) == Boundary(100, 2)


def test_what_was_verified_is_not_listed_again() -> None:
    table = two_batches()
    assert table.unverified(0, 130) == [0, 1]
    assert table.unverified(99, 100) == [0]
    assert table.unverified(100, 130) == [1]
    table.set_verified(0)
    assert table.unverified(0, 130) == [1]
    table.set_verified(1)
    assert table.unverified(0, 130) == []


def test_lost_bytes() -> None:
    row = np.zeros(1, ROW)
    row["kind"], row["length"] = Kind.LOST, 50
    table = IndexTable()
    table.extend(row)
    assert table.batch(0).lost
    assert table.batch(0).records == 0


def test_memory_is_counted() -> None:
    """Not exactly, but never less than what a large table takes."""
    table = IndexTable()
    for number in range(2_050):
        table.extend(rows_of(number * 10, number, number, [0], 10))
    columns = [vars(table)[name] for name in vars(table) if name != "rows"]
    taken = sum(column._data.nbytes for column in columns)
    assert taken <= table.nbytes <= 2 * taken


class Interrupted:
    """A column that lets a reader run before it grows."""

    def __init__(self, column: Column, reader) -> None:  # type: ignore[no-untyped-def]
        self._column = column
        self._reader = reader

    def extend(self, values) -> None:  # type: ignore[no-untyped-def]
        self._reader()
        self._column.extend(values)

    @property
    def values(self):  # type: ignore[no-untyped-def]
        return self._column.values


def test_a_reader_never_meets_half_a_row() -> None:
    """Readers hold no lock: wherever the writer is, what they find is whole."""
    columns = [name for name in vars(IndexTable()) if name != "rows"]
    for name in columns:
        table = two_batches()

        def read(table: IndexTable = table) -> None:
            assert table.boundary_after(100) in (None, Boundary(130, 3))
            assert table.batch_at(120) == 1
            assert table.unverified(0, 130) == [0, 1]
            assert table.boundary_of_record(2) == Boundary(100, 2)
            assert [table.batch(n).records for n in range(table.batches)][:2] == [2, 1]

        setattr(table, name, Interrupted(getattr(table, name), read))
        table.extend(rows_of(130, 3, 12, [0], 30))
        assert table.boundary_after(100) == Boundary(130, 3)


# Open segments.


class Opened:
    """Stands for the files of a segment."""

    def __init__(self, *, dirty: bool = False, table_bytes: int = 0) -> None:
        self.dirty = dirty
        self.table_bytes = table_bytes
        self.syncs = 0
        self.failure: OSError | None = None

    def sync(self) -> None:
        self.syncs += 1
        if self.failure:
            raise self.failure
        self.dirty = False

    def drop_table(self) -> None:
        self.table_bytes = 0


def make(*opened: Opened, open_max: int = 4, table_bytes_max: int = 100):  # type: ignore[no-untyped-def]
    cache = SegmentCache(open_max=open_max, table_bytes_max=table_bytes_max)
    for number, segment in enumerate(opened):
        put(cache, number, segment)
    return cache


def put(cache: SegmentCache, number: int, segment: Opened) -> None:
    cache.get(SegmentKey(1, number), lambda: segment)  # type: ignore[arg-type, return-value]


def has(cache: SegmentCache, number: int, topic: int = 1) -> bool:
    missing = object()
    key = SegmentKey(topic, number)
    return cache._open.get(key, missing) is not missing  # type: ignore[arg-type]


def test_a_segment_is_opened_once() -> None:
    cache = make()
    opened: list[OpenSegment] = []
    for _ in range(3):
        segment = cache.get(SegmentKey(1, 0), lambda: Opened())  # type: ignore[arg-type, return-value]
        opened.append(segment)
    assert opened[0] is opened[1] is opened[2]
    assert len(cache._open) == 1


def test_the_least_recently_used_goes_first() -> None:
    cache = make(Opened(), Opened(), Opened(), Opened())
    put(cache, 0, Opened())  # Used once more.
    put(cache, 4, Opened())
    assert [has(cache, n) for n in range(5)] == [True, False, True, True, True]
    assert len(cache._open) == 4


def test_a_clean_one_goes_before_an_older_dirty_one() -> None:
    dirty = Opened(dirty=True)
    cache = make(dirty, Opened(), Opened(), Opened())
    put(cache, 4, Opened())
    assert has(cache, 0) and not has(cache, 1)
    assert dirty.syncs == 0


def test_a_dirty_one_is_synced_before_it_goes() -> None:
    dirty = [Opened(dirty=True) for _ in range(4)]
    cache = make(*dirty)
    put(cache, 4, Opened())
    assert not has(cache, 0)
    assert [segment.syncs for segment in dirty] == [1, 0, 0, 0]


def test_one_that_can_not_be_synced_stays() -> None:
    dirty = [Opened(dirty=True) for _ in range(4)]
    dirty[0].failure = OSError("no")
    cache = make(*dirty)
    put(cache, 4, Opened())
    assert has(cache, 0) and not has(cache, 1)
    for segment in dirty:
        segment.failure = OSError("no")
    put(cache, 4, Opened())
    put(cache, 5, Opened(dirty=True))
    put(cache, 6, Opened(dirty=True))
    assert [has(cache, n) for n in (0, 2, 3)] == [True] * 3


def test_tables_above_the_limit_are_freed_oldest_first() -> None:
    opened = [Opened(table_bytes=size) for size in (30, 60, 50, 40)]
    cache = make(*opened)
    cache.trim_tables()
    assert [segment.table_bytes for segment in opened] == [0, 0, 50, 40]


def test_forgetting() -> None:
    cache = make(Opened(), Opened())
    cache.get(SegmentKey(2, 0), lambda: Opened())  # type: ignore[arg-type, return-value]
    cache.drop(SegmentKey(1, 0))
    cache.drop(SegmentKey(1, 0))
    assert not has(cache, 0) and has(cache, 1)
    cache.drop_topic(1)
    assert not has(cache, 1) and has(cache, 0, topic=2)


def test_forgetting_everything() -> None:
    cache = make(Opened(), Opened())
    cache.clear()
    assert len(cache._open) == 0


def grow(store: Store, topics: int) -> None:
    for number in range(topics):
        topic = store.create_topic(f"t{number}").metadata.id
        for tag in "abc":
            store.append(topic, batch(tag, 20))


def test_open_files_are_bounded_with_many_topics(store: Store) -> None:
    grow(store, 20)
    for topic in store.topics():
        assert len(read_all(topic.log)) == 2700
        assert len(store._context.segments._open) <= SMALL["open_segments_max"]


def test_index_memory_is_bounded(files: DiskFiles) -> None:
    config = StoreConfig(index_cache_bytes=5_000, **SMALL)  # type: ignore[arg-type]
    with open_store(files=files, config=config) as store:
        grow(store, 6)
        for topic in store.topics():
            assert len(read_all(topic.log)) == 2700
            opened = store._context.segments._open.values()
            assert sum(segment.table_bytes for segment in opened) <= 5_000
    check_clean(files=files)


def test_a_sync_that_failed_while_making_room_reaches_its_log(
    files: DiskFiles,
) -> None:
    """Else a later descriptor would sync without an error, and prove nothing."""
    config = StoreConfig(**{**SMALL, "open_segments_max": 4})  # type: ignore[arg-type]
    store = open_store(files=files, config=config)
    ids = [store.create_topic(f"t{n}").metadata.id for n in range(6)]
    first, *_ = [store.append(topic, batch("a"), wait=False) for topic in ids[:4]]
    with refusing(files, "sync", f"segments/{ids[0]}/", times=1):
        store.append(ids[4], batch("b"))
    store.append(ids[5], batch("c"))
    with pytest.raises(Exception, match="read-only since a sync failed"):
        store.wait_durable(ids[0], first)
    assert store.view(ids[0]).end.offset == 0
