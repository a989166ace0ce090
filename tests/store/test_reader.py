"""Reading and locating, compared with the plainest way to do it."""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lance_spark.errors import Corrupt, OutOfRange, StoreError, UnknownTopic
from lance_spark.model import Location, Retention
from lance_spark.store import Point, Store, StoreConfig, View
from lance_spark.store.reader import Boundaries, combine_crc32c
from lance_spark.store.segment import Boundary
from tests.store.disk import Disk, DiskFiles
from tests.store.jobs import DAY_S, SECOND_NS, Clock, commit, reopen
from tests.store.kit import SMALL, batch, check_clean, open_store, record

PROPERTY = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

# Many tiny ones, empty values, and now and then one over several strides.
VALUE_SIZES = st.one_of(st.integers(0, 12), st.just(0), st.sampled_from([70, 300, 900]))
BATCHES = st.lists(st.lists(VALUE_SIZES, min_size=1, max_size=12), max_size=8)


@dataclass
class Plain:
    """A topic as one string, and where its records start."""

    data: bytes = b""
    starts: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    # Where readers have to stop, as a slice never spans two segments.
    segments: list[int] = field(default_factory=list)
    first: int = 0  # The first record that retention has left.

    def append(self, sizes: list[int], now_ns: int) -> bytes:
        added = b""
        for size in sizes:
            self.starts.append(len(self.data) + len(added))
            self.times.append(now_ns)
            added += record(bytes([65 + len(self.starts) % 26]) * size)
        self.data += added
        return added

    @property
    def start(self) -> int:
        return [*self.starts, len(self.data)][self.first]

    def boundary(self, number: int) -> Location:
        if number >= len(self.starts):
            return Location(len(self.data), len(self.starts), 0)
        return Location(self.starts[number], number, self.times[number])

    def locate_offset(self, offset: int) -> Location:
        return self.boundary(max(self.first, bisect_left(self.starts, offset)))

    def locate_record(self, number: int) -> Location:
        return self.boundary(max(self.first, number))

    def locate_time(self, now_ns: int) -> Location:
        return self.boundary(max(self.first, bisect_left(self.times, now_ns)))

    def read(self, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """Whole records up to a size, at least one; nothing of the next segment."""
        ends = [*self.starts[1:], len(self.data)]
        stop = next((end for end in self.segments if end > offset), len(self.data))
        fit = [end for end in ends if offset < end <= min(offset + max_bytes, stop)]
        end = fit[-1] if fit else next(end for end in ends if end > offset)
        return self.data[offset:end], sum(offset <= s < end for s in self.starts)


def fill(store: Store, clock: Clock, batches: list[list[int]]) -> Plain:
    plain = Plain()
    topic = store.create_topic("one")
    for sizes in batches:
        clock.ns += 10
        store.append(topic.metadata.id, plain.append(sizes, clock()))
    plain.segments = [segment.end for segment in topic.log.segments()]
    return plain


def compare(view: View, plain: Plain) -> None:
    """Compare every place of a log, or all that matter in a long one."""
    offsets = set(range(plain.start, len(plain.data) + 2))
    if len(offsets) > 1_000:
        near = {start + n for start in plain.starts for n in (-1, 0, 1)}
        offsets &= near | set(range(0, len(plain.data) + 2, 50)) | {len(plain.data) + 1}
    for offset in sorted(offsets):
        assert view.locate_offset(offset) == plain.locate_offset(offset)
    for number in range(plain.first, len(plain.starts) + 2):
        assert view.locate_record(number) == plain.locate_record(number)
    for now_ns in {0, *plain.times, *(time + 1 for time in plain.times)}:
        assert view.locate_time(now_ns) == plain.locate_time(now_ns)
    assert view.locate_start() == plain.boundary(plain.first)
    assert view.locate_end() == plain.boundary(len(plain.starts))


def open_plain(files: DiskFiles, clock: Clock) -> Store:
    return open_store(files=files, clock_ns=clock)


@PROPERTY
@given(batches=BATCHES, data=st.data())
def test_reading_gives_whole_records(
    batches: list[list[int]], data: st.DataObject
) -> None:
    clock = Clock()
    with open_plain(DiskFiles(Disk()), clock) as store:
        plain = fill(store, clock, batches)
        view = store.view(1)
        for _ in range(20):
            offset = data.draw(st.integers(0, len(plain.data)))
            max_bytes = data.draw(
                st.one_of(st.integers(0, 80), st.integers(0, len(plain.data) + 9))
            )
            piece = view.read(offset, max_bytes)
            assert (piece.start, piece.end - piece.start) == (offset, len(piece))
            if offset == len(plain.data):
                assert (piece.read(), piece.records) == (b"", 0)
            else:
                assert (piece.read(), piece.records) == plain.read(offset, max_bytes)


@PROPERTY
@given(batches=BATCHES, max_bytes=st.integers(1, 2_000))
def test_reads_one_after_another_give_the_stream(
    batches: list[list[int]], max_bytes: int
) -> None:
    clock = Clock()
    with open_plain(DiskFiles(Disk()), clock) as store:
        plain = fill(store, clock, batches)
        view = store.view(1)
        parts, records, offset = [], 0, 0
        while offset < len(plain.data):
            piece = view.read(offset, max_bytes)
            assert len(piece) <= max_bytes or piece.records == 1
            assert piece.records >= 1
            parts.append(piece.read())
            offset, records = piece.end, records + piece.records
        assert b"".join(parts) == plain.data
        assert records == len(plain.starts)


@PROPERTY
@given(batches=BATCHES.filter(bool), data=st.data())
def test_append_times_of_slices(batches: list[list[int]], data: st.DataObject) -> None:
    """Those of each record's batch, wherever the slice begins and ends."""
    clock = Clock()
    store = open_plain(DiskFiles(Disk()), clock)
    plain = fill(store, clock, batches)
    with reopen(store) as again:
        view = again.view(1)
        for _ in range(10):
            first = data.draw(st.integers(0, len(plain.starts) - 1))
            piece = view.read(plain.starts[first], data.draw(st.integers(0, 500)))
            times = view.find_append_times(piece, first).tolist()
            assert times == plain.times[first : first + piece.records]
        nothing = view.read(len(plain.data), 100)
        assert len(view.find_append_times(nothing, len(plain.starts))) == 0


@PROPERTY
@given(batches=BATCHES)
def test_every_place_of_a_log(batches: list[list[int]]) -> None:
    clock = Clock()
    files = DiskFiles(Disk())
    store = open_plain(files, clock)
    plain = fill(store, clock, batches)
    compare(store.view(1), plain)
    with reopen(store) as again:
        compare(again.view(1), plain)
    check_clean(files=files)


@PROPERTY
@given(batches=BATCHES.filter(bool), data=st.data())
def test_every_place_after_retention(
    batches: list[list[int]], data: st.DataObject
) -> None:
    clock = Clock()
    files = DiskFiles(Disk())
    store = open_plain(files, clock)
    plain = fill(store, clock, batches)
    topic = store.topic(1)
    segment = data.draw(st.sampled_from(topic.log.segments()))
    number = segment.name.number
    topic.drop_before(Point(segment.base_offset, segment.base_record, number))
    plain.first = segment.base_record
    compare(store.view(1), plain)
    with reopen(store) as again:
        view = again.view(1)
        compare(view, plain)
        for offset in {0, plain.start // 2, plain.start - 1} - {-1, plain.start}:
            with pytest.raises(OutOfRange):
                view.read(offset, 100)
            assert view.locate_offset(offset) == view.locate_start()
        piece = view.read(plain.start, 100)
        assert (piece.read(), piece.records) == plain.read(plain.start, 100)
    check_clean(files=files)


@PROPERTY
@given(durable=BATCHES, waiting=BATCHES)
def test_what_is_not_durable_is_not_there(
    durable: list[list[int]], waiting: list[list[int]]
) -> None:
    clock = Clock()
    config = StoreConfig(**{**SMALL, "segment_bytes": 10**6})  # type: ignore[arg-type]
    with open_store(files=DiskFiles(Disk()), config=config, clock_ns=clock) as store:
        plain = fill(store, clock, durable)
        later = Plain(plain.data, [*plain.starts], [*plain.times])
        for sizes in waiting:
            clock.ns += 10
            store.append(1, later.append(sizes, clock()), wait=False)
        view = store.view(1)
        assert view.end == (len(plain.data), len(plain.starts), 0)
        compare(view, plain)
        with pytest.raises(OutOfRange):
            view.read(len(plain.data) + 1, 100)
        for offset in plain.starts:
            piece = view.read(offset, 10**6)
            assert (piece.read(), piece.records) == plain.read(offset, 10**6)
        store.topic(1).log.sync()
        compare(store.view(1), later)


def test_a_record_larger_than_asked_for(store: Store) -> None:
    store.create_topic("one")
    store.append(1, record(b"x" * 5_000))
    for max_bytes in (-1, 0, 1, 4_999):
        piece = store.read(1, 0, max_bytes)
        assert (len(piece), piece.records) == (5_005, 1)


def test_an_offset_inside_a_record_is_served_from_that_byte(store: Store) -> None:
    store.create_topic("one")
    store.append(1, batch("a", 2))
    piece = store.read(1, 10, 40)
    assert (piece.start, piece.end, piece.records) == (10, 45, 0)
    assert piece.read() == batch("a", 2)[10:45]
    piece = store.read(1, 10, 90)
    assert (piece.start, piece.end, piece.records) == (10, 90, 1)


@pytest.mark.parametrize("offset", [-1, 136, 10**9])
def test_offsets_outside_the_log(store: Store, offset: int) -> None:
    store.create_topic("one")
    store.append(1, batch("a"))
    with pytest.raises(OutOfRange, match=rf"offset {offset} is outside the log \[0,"):
        store.read(1, offset, 100)


def test_an_empty_log(store: Store) -> None:
    store.create_topic("one")
    view = store.view(1)
    nothing = Location(0, 0, 0)
    assert view.read(0, 100).read() == b""
    assert view.locate_offset(0) == view.locate_record(0) == nothing
    assert view.locate_time(0) == view.locate_start() == view.locate_end() == nothing


def test_times_of_a_log_that_begins_with_an_empty_segment(files: DiskFiles) -> None:
    """Maintenance rolls an empty segment, and retention drops those before it."""
    clock = Clock()
    store = open_plain(files, clock)
    for sequence in (1, 2):
        commit(store, "one", "w", sequence, batch("large", 20))  # Adopted, as it is.
        clock.forward(2 * DAY_S)
        store.maintain()
    last = clock() - 2 * DAY_S * SECOND_NS
    store.set_retention(1, Retention(max_bytes=1000))
    store.maintain()
    for _ in range(2):
        view = store.view(1)
        assert [s.size for s in view.segments] == [0, 900, 0]
        assert view.start == (900, 20, 1)
        assert view.locate_start() == Location(900, 20, last)
        for time_ns in (0, 1, last - 2 * DAY_S * SECOND_NS, last - 1, last):
            assert view.locate_time(time_ns) == view.locate_start()
        assert view.locate_time(last + 1) == view.locate_end() == Location(1800, 40, 0)
        store = reopen(store)
    store.close()


def test_a_time_whose_batch_is_taken_back_meanwhile(files: DiskFiles) -> None:
    """A commit that is undone takes its rows back before a search has seen them."""
    clock = Clock()
    with open_plain(files, clock) as store:
        fill(store, clock, [[1], [2]])
        view = store.view(1)
        view.segments[0].last_append_ns += 10
        assert view.locate_time(clock() + 1) == view.locate_end()


def test_a_slice_can_be_sent_by_the_kernel(store: Store) -> None:
    store.create_topic("one")
    for tag in "ab":
        store.append(1, batch(tag))
    piece = store.read(1, 135, 1000)
    assert piece.file is not None
    sent = os.pread(piece.file.fileno(), len(piece), piece.position)
    assert sent == piece.read() == batch("b")


def test_a_slice_keeps_its_file(store: Store) -> None:
    store.create_topic("one")
    store.append(1, batch("a"))
    piece = store.read(1, 0, 1000)
    store.delete_topic(1)
    assert piece.read() == batch("a")


def test_a_view_of_a_topic_that_was_deleted(store: Store) -> None:
    store.create_topic("one")
    store.append(1, batch("a"))
    view = store.view(1)
    store.delete_topic(1)
    with pytest.raises(UnknownTopic, match="topic 1 was deleted"):
        view.read(0, 100)


def test_a_view_stays_as_it_was(store: Store) -> None:
    store.create_topic("one")
    store.append(1, batch("a"))
    view = store.view(1)
    store.append(1, batch("b"))
    assert view.end == (135, 3, 0)
    assert view.read(0, 10**6).read() == batch("a")
    assert view.read(135, 100).read() == b""


def test_a_file_that_became_shorter(files: DiskFiles) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    piece = store.read(1, 0, 1000)
    assert piece.file is not None
    piece.file.truncate(100)
    with pytest.raises(Corrupt, match=r"\[100, 135\): the file is too short"):
        piece.read()


def test_a_disk_that_can_not_be_read(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        store.append(1, batch("a"))
        piece = store.read(1, 0, 1000)
        view = store.view(1)

        def refuse(operation: str, name: str) -> None:
            raise OSError(5, "Input/output error", name)

        files.before_read = refuse
        with pytest.raises(StoreError, match="could not read 135 bytes"):
            piece.read()
        store._context.segments._open.clear()
        with pytest.raises(StoreError, match="segments/1: could not read"):
            view.read(0, 100)
        files.before_read = lambda operation, name: None


def test_a_file_that_is_missing(files: DiskFiles) -> None:
    store = open_store(files=files)
    log = store.create_topic("one").log
    store.append(1, batch("a"))
    store._context.segments.drop_topic(1)
    [segment] = log.segments()
    files.unlink(log.directory / segment.name.data_file)
    with pytest.raises(Corrupt, match=r"\[0, 135\): the file .*\.lnc is missing"):
        store.read(1, 0, 100)


# Bytes, cut anywhere.


@PROPERTY
@given(batches=BATCHES, data=st.data())
def test_reading_bytes(batches: list[list[int]], data: st.DataObject) -> None:
    clock = Clock()
    with open_plain(DiskFiles(Disk()), clock) as store:
        plain = fill(store, clock, batches)
        view = store.view(1)
        for _ in range(20):
            offset = data.draw(st.integers(0, len(plain.data)))
            max_bytes = data.draw(
                st.one_of(st.integers(0, 80), st.integers(0, len(plain.data) + 9))
            )
            piece = view.read_bytes(offset, max_bytes)
            # Up to the end of the segment, and not a byte less.
            stop = next((end for end in plain.segments if end > offset), offset)
            end = min(offset + max_bytes, stop)
            assert (piece.start, piece.end) == (offset, end)
            assert piece.read() == plain.data[offset:end]
            assert piece.records == sum(offset <= s < end for s in plain.starts)


def test_reading_bytes_of_what_is_no_record(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        for text in (b"Hello, LANCE!", b"\x01\x05\0\0\0cut"):
            store.append(1, text, np.zeros(1, np.int64))
        view = store.view(1)
        assert view.read_bytes(3, 7).read() == b"lo, LAN"
        assert view.read_bytes(3, 100).read() == b"lo, LANCE!\x01\x05\0\0\0cut"
        assert view.read_bytes(3, 100).records == 1
        assert view.read_bytes(0, 100).records == 2


@pytest.mark.parametrize("offset", [-1, 136, 10**9])
def test_reading_bytes_outside_the_log(store: Store, offset: int) -> None:
    store.create_topic("one")
    store.append(1, batch("a"))
    with pytest.raises(OutOfRange, match=f"offset {offset} is outside the log"):
        store.view(1).read_bytes(offset, 100)


def test_reading_bytes_stops_before_damaged_ones(files: DiskFiles) -> None:
    store = open_store(files=files)
    log = store.create_topic("one").log
    for tag in "abc":
        store.append(1, batch(tag))
    store.close()
    [segment] = log.segments()
    data = files.open(log.directory / segment.name.data_file)
    data.pwrite(b"?", 140)
    with open_store(files=files) as store:
        view = store.view(1)
        piece = view.read_bytes(100, 1000)
        assert (piece.end, piece.records, piece.read()) == (135, 0, batch("a")[100:])
        with pytest.raises(Corrupt, match=r"\[135, 270\)"):
            view.read_bytes(140, 10)
        assert view.read_bytes(270, 10).read() == batch("c")[:10]


# Piece by piece.


@pytest.mark.parametrize("size", [1, 7, 134, 135, 136, 1000])
def test_a_slice_in_pieces(store: Store, size: int) -> None:
    store.create_topic("one")
    store.append(1, batch("a"))
    buffer = memoryview(bytearray(size))
    pieces = []
    for piece in store.read(1, 0, 1000).pieces(buffer):
        # The same memory each time.
        assert piece.obj is buffer.obj
        pieces.append(bytes(piece))
    assert b"".join(pieces) == batch("a")
    assert {len(piece) for piece in pieces[:-1]} <= {size}
    assert list(store.read(1, 135, 1000).pieces(buffer)) == []


def test_a_disk_that_reads_less_than_asked_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_topic("one")
    store.append(1, batch("a"))
    piece = store.read(1, 0, 1000)
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, to, at: preadv(fd, [to[0][:50]], at))
    [whole] = piece.pieces(memoryview(bytearray(135)))
    assert whole == batch("a")


def test_a_file_that_became_shorter_in_pieces(store: Store) -> None:
    store.create_topic("one")
    store.append(1, batch("a"))
    piece = store.read(1, 0, 1000)
    # As if it ended earlier: the slice says more than the file has.
    longer = replace(piece, end=200)
    pieces = longer.pieces(memoryview(bytearray(100)))
    assert bytes(next(pieces)) == batch("a")[:100]
    with pytest.raises(Corrupt, match=r"\[135, 200\): the file is too short"):
        next(pieces)


def test_a_disk_that_can_not_be_read_in_pieces(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        store.append(1, batch("a"))
        piece = store.read(1, 0, 1000)

        def refuse(operation: str, name: str) -> None:
            raise OSError(5, "Input/output error", name)

        files.before_read = refuse
        with pytest.raises(StoreError, match="could not read 100 bytes"):
            list(piece.pieces(memoryview(bytearray(100))))
        files.before_read = lambda operation, name: None


# Ending with a batch.


@PROPERTY
@given(batches=BATCHES, data=st.data())
def test_reading_whole_batches_loses_less_than_half(
    batches: list[list[int]], data: st.DataObject
) -> None:
    clock = Clock()
    with open_plain(DiskFiles(Disk()), clock) as store:
        plain = fill(store, clock, batches)
        view = store.view(1)
        ends, end = set(), 0
        for sizes in batches:
            end += len(Plain().append(sizes, 0))
            ends.add(end)
        for _ in range(20):
            offset = data.draw(st.integers(0, max(0, len(plain.data) - 1)))
            max_bytes = data.draw(st.integers(0, len(plain.data) + 9))
            most = view.read(offset, max_bytes)
            piece = view.read(offset, max_bytes, whole_batches=True)
            assert piece.start == most.start
            assert 2 * len(piece) >= len(most)
            assert piece.end == most.end or piece.end in ends
            assert piece.read() == plain.data[offset : piece.end]
            starts = [s for s in plain.starts if offset <= s < piece.end]
            assert piece.records == len(starts)


def large(name: str, size: int) -> bytes:
    return record(name[:1].encode() * (size - 5))


def test_the_checksum_of_whole_batches_is_known(files: DiskFiles) -> None:
    with open_store(files=files, config=StoreConfig()) as store:
        topic = store.create_topic("one").metadata.id
        batches = [large(name, 200_000) * 2 for name in "abc"]
        for batch in batches:
            store.append(topic, batch)
        view = store.view(topic)
        first = view.read(0, 1_000_000, whole_batches=True)
        assert (first.end, first.crc32c) == (800_000, crc32c(b"".join(batches[:2])))
        assert view.read(0, 1_200_000).crc32c == crc32c(b"".join(batches))
        # Inside a batch it would have to be computed.
        assert view.read(0, 1_000_000).crc32c is None
        assert view.read(200_000, 200_000).crc32c is None
        assert view.read(200_000, 600_000).crc32c is None
        assert view.read(1_200_000, 10).crc32c is None


def test_the_checksums_of_small_batches_are_not_put_together(files: DiskFiles) -> None:
    with open_store(files=files, config=StoreConfig()) as store:
        topic = store.create_topic("one").metadata.id
        for name in "abcd":
            store.append(topic, large(name, 50_000))
        assert store.view(topic).read(0, 200_000).crc32c is None


# Record boundaries inside one segment.


# Two batches of 200 and 145 bytes, with a record that is longer than two strides.
SIZES = [[10, 30, 100, 20, 40], [50, 5, 5, 60, 25]]


def starts() -> list[int]:
    return [0, *np.cumsum([n for sizes in SIZES for n in sizes]).tolist()]


@pytest.fixture
def found(store: Store) -> Boundaries:
    topic = store.create_topic("one")
    for sizes in SIZES:
        store.append(topic.metadata.id, b"".join(record(bytes(n - 5)) for n in sizes))
    view = View.of(topic.log)
    with view._boundaries(view.segments[0]) as found:
        return found


def test_every_position(found: Boundaries) -> None:
    expected = [Boundary(position, n) for n, position in enumerate(starts())]
    for position in range(starts()[-1] + 3):
        after = next((b for b in expected if b.position >= position), expected[-1])
        before = [b for b in expected if b.position <= position][-1]
        assert found.at_or_after(position) == after
        assert found.at_or_before(position) == before


def test_every_record(found: Boundaries) -> None:
    for number, position in enumerate(starts()):
        assert found.of_record(number) == Boundary(position, number)
    assert found.of_record(99) == Boundary(345, 10)


def test_nothing_behind_the_limit_is_found(found: Boundaries) -> None:
    limited = replace(found, limit=Boundary(200, 5))
    assert limited.at_or_after(190) == Boundary(200, 5)
    assert limited.at_or_after(300) == Boundary(200, 5)
    assert limited.at_or_before(300) == Boundary(200, 5)
    assert limited.of_record(7) == Boundary(200, 5)


def test_a_batch_of_one_record_may_hold_anything(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        topic = store.create_topic("one").metadata.id
        one = np.array([0], np.int64)
        for _ in range(3):
            store.append(topic, bytes(300), one)
        view = store.view(topic)
        assert view.locate_offset(1).offset == 300
        assert view.locate_offset(301).offset == 600
        assert view.locate_record(2).offset == 600
        assert view.read(0, 10).read() == bytes(300)
        assert len(view.read(0, 650)) == 600


def test_bytes_that_do_not_follow_the_framing(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        topic = store.create_topic("one").metadata.id
        store.append(topic, record(b"sound"))
        store.append(topic, record(b"x" * 20) + bytes(30), np.array([0, 25, 40]))
        with pytest.raises(Corrupt, match="type 0 is reserved") as caught:
            store.locate(topic, 38)
        assert (caught.value.start, caught.value.end) == (35, 65)


# Checksums that are put together.


@given(st.binary(max_size=2000), st.binary(max_size=2000))
def test_two_runs(first: bytes, second: bytes) -> None:
    whole = crc32c(first + second)
    assert combine_crc32c(crc32c(first), crc32c(second), len(second)) == whole


@given(st.binary(min_size=1, max_size=20), st.integers(0, 3_000_000))
def test_a_long_run(first: bytes, size: int) -> None:
    second = bytes(size)
    whole = crc32c(first + second)
    assert combine_crc32c(crc32c(first), crc32c(second), size) == whole


def test_many_runs() -> None:
    runs = [bytes([n]) * (n * n) for n in range(60)]
    crc = 0
    for run in runs:
        crc = combine_crc32c(crc, crc32c(run), len(run))
    assert crc == crc32c(b"".join(runs))
