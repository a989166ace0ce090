"""Opening a log: each rule once. Damage of all sorts is in test_damage."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from lance_spark.model import Location, Retention
from lance_spark.store import Fsync, Point, Store, StoreConfig, check_store
from lance_spark.store.files import OsFiles
from lance_spark.store.format import (
    HEADER_BYTES,
    ROW_BYTES,
    IndexHeader,
    IndexMark,
    SegmentName,
    decode_header,
    decode_mark,
    encode_header,
    encode_mark,
    mark_position,
)
from lance_spark.store.log import Tail
from lance_spark.store.recovery import Found, list_segments, reset_files
from lance_spark.store.repair import Answers, repairing
from lance_spark.wire.lwp import scan
from tests.store.disk import DiskFiles, Inode
from tests.store.jobs import Clock, content, kill, reopen
from tests.store.kit import (
    ROOT,
    SMALL,
    batch,
    check_clean,
    corrupt_ranges,
    damage,
    open_store,
    record,
)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_segments_are_listed_by_number(tmp_path: Path) -> None:
    for name in ("10_5.lnc", "10_5.idx", "9_7.lnc", "8_1.idx", "metadata.json"):
        (tmp_path / name).write_bytes(b"12")
    assert list_segments(OsFiles(), tmp_path) == [
        Found(SegmentName(8, 1), None, 2),
        Found(SegmentName(9, 7), 2, None),
        Found(SegmentName(10, 5), 2, 2),
    ]


def fill(store: Store, *tags: str, records: int = 20) -> Path:
    if store.find_topic("one") is None:
        store.create_topic("one")
    for tag in tags:
        store.append(1, batch(tag, records))
    return store.path / "segments" / "1"


# Rule 1.


def test_files_before_the_start_are_removed(store: Store) -> None:
    directory = fill(store, "a", "b", "c")
    old = {n: (directory / n).read_bytes() for n in names(directory) if n[0] == "0"}
    assert len(old) == 2
    store.topic(1).drop_before(Point(900, 20, 1))
    store.close()
    for name, data in old.items():
        (directory / name).write_bytes(data)
    (directory / "1_1.idx.tmp").write_bytes(b"left over")
    with open_store(store.path) as again:
        assert again.findings == []
        assert content(again, "one") == batch("b", 20) + batch("c", 20)
    assert not [n for n in names(directory) if n[0] == "0" or n.endswith("tmp")]


# Rule 3.


@pytest.mark.parametrize(
    ("ending", "size", "notes"),
    [
        (".idx", 128 + 2 * 48, ["written but never acknowledged; cut off"]),
        (".lnc", 140, ["written but never acknowledged; cut off"]),
        (".lnc", 135, []),
    ],
)
def test_what_was_never_acknowledged_is_cut_off(
    files: DiskFiles, ending: str, size: int, notes: list[str]
) -> None:
    """A batch whose row did not make it, and one whose bytes did not."""
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    store.append(1, batch("b"), wait=False)
    left = DiskFiles(files.disk.killed())
    for name, number in left.disk.seen.items():
        if "/segments/1/" in name and name.endswith(ending):
            left.disk.inodes[number].truncate(size)
    with open_store(files=left) as again:
        assert [finding.text for finding in again.findings] == notes
        assert damage(again.findings) == []
        assert content(again, "one") == batch("a")
        assert again.append(1, batch("c")).start == 135
    check_clean(files=left)


def test_whole_batches_behind_the_mark_are_kept(files: DiskFiles) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    for tag in "bcd":
        store.append(1, batch(tag), wait=False)
    with kill(store) as again:
        assert again.findings == []
        assert content(again, "one") == b"".join(map(batch, "abcd"))
    check_clean(files=again._files)


@pytest.mark.parametrize("harmed", [0, 1, 2])
def test_up_to_the_first_batch_whose_bytes_differ(
    files: DiskFiles, harmed: int
) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    for tag in "bcd":
        store.append(1, batch(tag), wait=False)
    left = DiskFiles(files.disk.killed())
    for name, number in left.disk.seen.items():
        if "/segments/1/" in name and name.endswith(".lnc"):
            left.disk.inodes[number].seen[135 * (1 + harmed) + 9] ^= 1
    with open_store(files=left) as again:
        assert damage(again.findings) == []
        assert content(again, "one") == b"".join(map(batch, "abcd"[: 1 + harmed]))
        again.append(1, batch("z"))
    check_clean(files=left)


def test_rows_cut_in_the_middle_of_a_batch(files: DiskFiles) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    store.append(1, batch("b", 20), wait=False)
    for cut in range(1, 10):
        disk = files.disk.killed()
        for name, number in disk.seen.items():
            if "/segments/1/" in name and name.endswith(".idx"):
                disk.inodes[number].truncate(128 + 48 * (2 + cut) + 7)
        left = DiskFiles(disk)
        with open_store(files=left) as again:
            assert damage(again.findings) == []
            assert content(again, "one") == batch("a")
        check_clean(files=left)


@pytest.mark.parametrize("cut", range(1, 8))
def test_rows_of_a_first_batch_without_any_of_its_bytes(
    files: DiskFiles, cut: int
) -> None:
    """A loss of power may leave some of its rows: they are cut off."""
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a", 8), wait=False)
    left = DiskFiles(files.disk.killed())
    for name, number in left.disk.seen.items():
        if "/segments/1/" in name and name.endswith(".lnc"):
            left.disk.inodes[number].truncate(0)
        elif "/segments/1/" in name and name.endswith(".idx"):
            left.disk.inodes[number].truncate(HEADER_BYTES + cut * ROW_BYTES)
    with open_store(files=left) as again:
        assert damage(again.findings) == []
        assert content(again, "one") == b""
    check_clean(files=left)


# Lazy segments, of which each whole row is a promise.


def lazy(**options: object) -> StoreConfig:
    return StoreConfig(fsync=Fsync.NONE, **{**SMALL, **options})  # type: ignore[arg-type]


def index_of(files: DiskFiles) -> Inode:
    [name] = [n for n in files.disk.seen if "/segments/1/" in n and n.endswith(".idx")]
    return files.disk.inodes[files.disk.seen[name]]


def killed_with_rows(files: DiskFiles, tags: str) -> DiskFiles:
    """Append batches of one row each with `fsync=none`, and kill the process."""
    store = open_store(files=files, config=lazy())
    store.create_topic("one")
    for tag in tags:
        store.append(1, batch(tag, 1))
    return DiskFiles(files.disk.killed())


@pytest.mark.parametrize("row", range(5))
@pytest.mark.parametrize("later", list(Fsync))
def test_a_damaged_row_of_a_killed_lazy_store(
    files: DiskFiles, row: int, later: Fsync
) -> None:
    """All was acknowledged and is intact: all is kept, whatever the policy is now."""
    left = killed_with_rows(files, "abcde")
    index_of(left).seen[HEADER_BYTES + row * ROW_BYTES + 20] ^= 1
    findings = check_store(ROOT, framing=scan, files=left)
    assert [f.text for f in damage(findings)] == [f"row {row} is damaged"]
    config = StoreConfig(fsync=later, **SMALL)  # type: ignore[arg-type]
    with open_store(files=left, config=config) as again:
        assert content(again, "one") == b"".join(batch(tag, 1) for tag in "abcde")
        said = "\n".join(map(str, again.findings))
        assert "acknowledged" not in said and "cut off" not in said
        # Only behind the last row that can be read, nothing proves what was written.
        assert bool(damage(again.findings)) == (row == 4)
        again.append(1, batch("f", 1))
    check_clean(files=left)


def test_a_damaged_row_of_a_killed_store_of_0_5(files: DiskFiles) -> None:
    """Its header does not say that it is lazy; the policy of today does."""
    left = killed_with_rows(files, "abcde")
    index = index_of(left)
    header = decode_header(bytes(index.seen))
    assert isinstance(header, IndexHeader) and header.lazy
    index.seen[:HEADER_BYTES] = encode_header(replace(header, lazy=False), IndexMark())
    index.seen[HEADER_BYTES + 2 * ROW_BYTES] ^= 1
    with open_store(files=left, config=lazy()) as again:
        assert content(again, "one") == b"".join(batch(tag, 1) for tag in "abcde")
        assert damage(again.findings) == []
        again.append(1, batch("f", 1))
        # From here on the index says which policy it is written with.
        assert [s.lazy for s in again.topic(1).log.segments()] == [False, True]


@pytest.mark.parametrize(
    "policies", [(Fsync.NONE, Fsync.BATCH), (Fsync.BATCH, Fsync.NONE)]
)
def test_a_segment_is_written_under_one_policy(
    files: DiskFiles, policies: tuple[Fsync, Fsync]
) -> None:
    for round_, fsync in enumerate(policies * 2):
        config = StoreConfig(fsync=fsync, **SMALL)  # type: ignore[arg-type]
        with open_store(files=files, config=config) as store:
            if not round_:
                store.create_topic("one")
            for tag in "ab":
                store.append(1, batch(f"{round_}{tag}"))
            assert store.findings == []
            segments = store.topic(1).log.segments()
            assert [s.size for s in segments] == [270] * (round_ + 1)
            assert segments[-1].lazy == (fsync is Fsync.NONE)
    check_clean(files=files)


def test_a_lazy_store_that_was_killed_in_the_middle_of_an_append(
    files: DiskFiles,
) -> None:
    """Half a batch, and whole bytes with half of their rows, were not acknowledged."""
    store = open_store(files=files, config=lazy())
    store.create_topic("one")
    store.append(1, batch("a", 6))
    before = files.disk.killed()
    store.append(1, batch("b", 6))
    rows = (len(index_of(files).seen) - HEADER_BYTES) // ROW_BYTES // 2
    for data_bytes in (271, 400, 540):
        for index_bytes in range(0, rows * ROW_BYTES, 24):
            if index_bytes and data_bytes < 540:
                continue  # The rows are written behind the bytes.
            disk = files.disk.killed()
            for name, number in disk.seen.items():
                if name.endswith(".lnc"):
                    disk.inodes[number].truncate(data_bytes)
                elif name.endswith(".idx"):
                    size = len(before.inodes[number].seen)
                    disk.inodes[number].truncate(size + index_bytes)
            left = DiskFiles(disk)
            findings = check_store(ROOT, framing=scan, files=left)
            assert findings and not damage(findings)
            with open_store(files=left, config=lazy()) as again:
                assert content(again, "one") == batch("a", 6)
                [found] = again.findings
                assert str(found) == (
                    f"note: segments/1 [270, {data_bytes}): there is no index row for "
                    "it; cut off"
                )
            check_clean(files=left)


def test_a_lazy_store_that_lost_power(files: DiskFiles) -> None:
    """Rows promise bytes that are gone: that is damage, and offsets stay taken."""
    left = killed_with_rows(files, "abcde")
    [data] = [n for n in left.disk.seen if "/segments/1/" in n and n.endswith(".lnc")]
    left.disk.inodes[left.disk.seen[data]].truncate(3 * 45)
    assert damage(check_store(ROOT, framing=scan, files=left))
    with open_store(files=left, config=lazy()) as again:
        assert damage(again.findings)
        assert corrupt_ranges(again.topic(1).log) == [(135, 225)]
        assert again.append(1, batch("f", 1)).start == 225
    assert damage(check_store(ROOT, framing=scan, files=left))


@pytest.mark.parametrize("slots", [1, 2])
def test_a_mark_that_can_not_be_read(files: DiskFiles, slots: int) -> None:
    """It may have been the newest, so that the rows behind the other one count."""
    store = open_store(files=files)
    store.create_topic("one")
    for tag in "abc":
        store.append(1, batch(tag, 1))
    left = DiskFiles(files.disk.killed())
    index = index_of(left)
    newest = mark_position(decode_mark(bytes(index.seen)).count)
    for at in [newest, mark_position(0), mark_position(1)][: 1 if slots == 1 else 3]:
        index.seen[at : at + 32] = bytes(32)
    index.seen[HEADER_BYTES + 2 * ROW_BYTES :] = bytes(ROW_BYTES)
    assert damage(check_store(ROOT, framing=scan, files=left))
    with open_store(files=left) as again:
        assert damage(again.findings)
        assert content(again, "one") == b"".join(batch(tag, 1) for tag in "abc")
    check_clean(files=left)


# Half-made segments.


def test_an_index_whose_data_file_was_never_made(store: Store) -> None:
    directory = fill(store, "a")
    fill(store, "b")
    store.close()
    [data] = directory.glob("1_*.lnc")
    [index] = directory.glob("1_*.idx")
    os.truncate(index, HEADER_BYTES)
    index.write_bytes(index.read_bytes()[:64] + bytes(64))
    data.unlink()
    with open_store(store.path) as again:
        assert again.findings == []
        assert content(again, "one") == batch("a", 20)
        again.append(1, batch("c"))


def test_an_empty_segment(store: Store) -> None:
    log = store.create_topic("one").log
    store.append(1, batch("a"))
    log.close_segment()
    log.roll_if_aged(10**18)
    assert [segment.size for segment in log.segments()] == [135, 0]
    with reopen(store) as again:
        assert again.findings == []
        assert again.append(1, batch("b")).start == 135
        assert content(again, "one") == batch("a") + batch("b")


# Going back.


def test_files_are_set_back_to_an_earlier_end(store: Store) -> None:
    directory = fill(store, "a", records=3)
    log = store.topic(1).log
    end = log.end()
    assert end == Tail(135, 3, 0, 135, 2, 1)
    fill(store, "b", "c", "d")
    store.close()
    reset_files(log.context, directory, end)
    assert len(names(directory)) == 3
    with open_store(store.path) as again:
        assert again.findings == []
        assert content(again, "one") == batch("a")
        again.append(1, batch("z"))


def test_segments_before_the_end_stay(store: Store) -> None:
    directory = fill(store, "a", "b")
    log = store.topic(1).log
    end = log.end()
    fill(store, "c", "d")
    store.close()
    reset_files(log.context, directory, end)
    with open_store(store.path) as again:
        assert again.findings == []
        assert content(again, "one") == batch("a", 20) + batch("b", 20)


def test_both_marks_come_down(store: Store) -> None:
    directory = fill(store, "a", "b", records=3)
    log = store.topic(1).log
    store.close()
    [index] = directory.glob("*.idx")
    with index.open("r+b") as file:
        for count in (7, 8):
            file.seek(mark_position(count))
            file.write(encode_mark(IndexMark(270, 4, count)))
    reset_files(log.context, directory, Tail(135, 3, 0, 135, 2, 1))
    data = index.read_bytes()
    assert len(data) == HEADER_BYTES + 2 * 48
    assert decode_mark(data) == IndexMark(135, 2, 10)
    torn = bytearray(data)
    torn[mark_position(10)] ^= 1
    assert decode_mark(bytes(torn)) == IndexMark(135, 2, 9)
    with open_store(store.path) as again:
        assert again.findings == []
        assert content(again, "one") == batch("a")


def test_an_end_without_segments(store: Store) -> None:
    store.create_topic("one")
    log = store.topic(1).log
    end = log.end()
    assert end == Tail(0, 0, -1, 0, 0, 0)
    fill(store, "a", "b")
    store.close()
    reset_files(log.context, log.directory, end)
    assert names(log.directory) == ["metadata.json"]


# Without metadata, or an index.


def repair(path: Path) -> None:
    """Mend topic 1 as `lance-spark check --repair` does."""
    answers = Answers({1: "again"}, {1: Retention()}, {1: None})
    with repairing(path, answers, framing=scan) as [step]:
        assert step.run is not None
        step.run()


def test_records_without_metadata_are_found_again(store: Store) -> None:
    directory = fill(store, "a", "b", "c")
    store.topic(1).drop_before(Point(900, 20, 1))
    store.close()
    (directory / "metadata.json").unlink()
    repair(store.path)
    with open_store(store.path) as again:
        assert again.topic(1).log.start == Point(900, 20, 1)
        assert content(again, "again") == batch("b", 20) + batch("c", 20)


def lose(directory: Path, number: int, ending: str) -> None:
    [path] = directory.glob(f"{number}_*.{ending}")
    path.unlink()


def test_without_metadata_and_first_index_the_offsets_are_the_same(
    tmp_path: Path,
) -> None:
    """They are known from the segment behind."""
    store = open_store(tmp_path)
    directory = fill(store, "a", "b", "c")
    store.topic(1).drop_before(Point(900, 20, 1))
    store.close()
    (directory / "metadata.json").unlink()
    lose(directory, 1, "idx")
    repair(store.path)
    with open_store(store.path) as again:
        assert again.topic(1).log.start.offset == 900
        assert again.view(1).read(900, 900).read() == batch("b", 20)
        assert again.view(1).read(1800, 900).read() == batch("c", 20)


@pytest.mark.parametrize("segments", [1, 2])
def test_without_metadata_and_any_index_offsets_start_at_0(
    store: Store, segments: int
) -> None:
    directory = fill(store, *"ab"[:segments])
    store.close()
    (directory / "metadata.json").unlink()
    for index in directory.glob("*.idx"):
        index.unlink()
    repair(store.path)
    with open_store(store.path) as again:
        expected = b"".join(batch(tag, 20) for tag in "ab"[:segments])
        assert content(again, "again") == expected


def test_nothing_but_an_index_that_can_not_be_read(store: Store) -> None:
    directory = fill(store, "a")
    store.close()
    (directory / "metadata.json").unlink()
    lose(directory, 0, "lnc")
    [index] = directory.glob("*.idx")
    index.write_bytes(b"")
    repair(store.path)
    with open_store(store.path) as again:
        assert content(again, "again") == b""
        again.append(1, batch("z"))


def test_a_segment_that_goes_on_behind_the_next_one(files: DiskFiles) -> None:
    """Nothing behind it moves; its data is left for a person to look at."""
    with open_store(files=files) as store:
        fill(store, "a", "b", "c")
    for name, number in files.disk.seen.items():
        if "/segments/1/1_" in name and name.endswith(".lnc"):
            files.disk.inodes[number].write(900, batch("more"))
    for _ in range(2):
        with open_store(files=files) as again:
            [found] = damage(again.findings)
            assert "goes on behind the start of the next segment" in found.text
            assert content(again, "one") == b"".join(batch(t, 20) for t in "abc")
            assert again.view(1).locate_record(40).offset == 1800


def test_times_when_an_index_was_rebuilt_and_the_clock_went_back(
    files: DiskFiles,
) -> None:
    clock = Clock()
    store = open_store(files=files, clock_ns=clock)
    latest = clock()
    log = store.create_topic("one").log
    store.append(1, batch("a", 20))
    clock.forward(-500)
    store.append(1, batch("b", 20))
    store.close()
    files.unlink(log.directory / log.segments()[1].name.index_file)
    with open_store(files=files, clock_ns=clock) as again:
        view = again.view(1)
        assert [s.last_append_ns for s in view.segments] == [latest, latest]
        assert view.locate_time(latest - 1).offset == 0
        again.topic(1).drop_before(Point(900, 20, 1))
        again.append(1, batch("c"))
        # The new index says that its batches are not older than those before them.
        for _ in range(2):
            view = again.view(1)
            assert view.locate_start() == Location(900, 20, latest)
            for time_ns in (0, latest - 1, latest):
                assert view.locate_time(time_ns) == view.locate_start()
            assert view.locate_time(latest + 1) == view.locate_end()
            again = reopen(again)
        again.close()


def test_times_when_the_clock_went_back_behind_a_segments_start(
    files: DiskFiles,
) -> None:
    """A row that is made anew does not count as later than the one behind it."""
    clock = Clock()
    with open_store(files=files, clock_ns=clock) as store:
        log = store.create_topic("one").log
        store.append(1, batch("a"))
        first = clock()
        log.close_segment()
        clock.forward(500)
        log.roll_if_aged(clock())
        clock.forward(-400)
        for tag in "bc":
            store.append(1, batch(tag))
        index = log.directory / log.segments()[1].name.index_file
    files.open(index).pwrite(bytes(48), 128)
    with open_store(files=files) as again:
        assert content(again, "one") == b"".join(map(batch, "abc"))
        view = again.view(1)
        assert view.locate_time(first + 1) == Location(135, 3, clock())
    check_clean(files=files)


def test_an_empty_file_without_index_is_forgotten(store: Store) -> None:
    directory = fill(store, "a")
    store.close()
    (directory / "1_9.lnc").write_bytes(b"")
    with open_store(store.path) as again:
        assert damage(again.findings) == []
        assert content(again, "one") == batch("a", 20)
        again.append(1, batch("b"))


def test_a_torn_record_at_the_end_of_data_without_index(store: Store) -> None:
    directory = fill(store, "a")
    store.close()
    [index] = directory.glob("*.idx")
    index.unlink()
    [data] = directory.glob("*.lnc")
    with data.open("ab") as file:
        file.write(record(b"torn")[:-1])
    with open_store(store.path) as again:
        assert damage(again.findings) == []
        assert content(again, "one") == batch("a", 20)
        assert again.append(1, batch("b")).start == 900
