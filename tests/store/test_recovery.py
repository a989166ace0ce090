"""Opening a log: each rule once. Damage of all sorts is in test_damage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lance_spark.columnar.scan import scan
from lance_spark.model import Retention
from lance_spark.store import LogStart, Store
from lance_spark.store.extent import LogEnd
from lance_spark.store.files import OsFiles
from lance_spark.store.format import (
    HEADER_BYTES,
    Mark,
    SegmentName,
    decode_mark,
    encode_mark,
    mark_position,
)
from lance_spark.store.recovery import Found, list_segments, reset_files
from lance_spark.store.repair import Answers, repairing
from tests.store.disk import DiskFiles
from tests.store.jobs import Clock, content, kill, reopen
from tests.store.kit import batch, check_clean, damage, open_store, record


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
    store.topic(1).drop_before(LogStart(900, 20, 1))
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
    assert end == LogEnd(135, 3, 0, 135, 2, 1)
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
            file.write(encode_mark(Mark(270, 4, count)))
    reset_files(log.context, directory, LogEnd(135, 3, 0, 135, 2, 1))
    data = index.read_bytes()
    assert len(data) == HEADER_BYTES + 2 * 48
    assert decode_mark(data) == Mark(135, 2, 10)
    torn = bytearray(data)
    torn[mark_position(10)] ^= 1
    assert decode_mark(bytes(torn)) == Mark(135, 2, 9)
    with open_store(store.path) as again:
        assert again.findings == []
        assert content(again, "one") == batch("a")


def test_an_end_without_segments(store: Store) -> None:
    store.create_topic("one")
    log = store.topic(1).log
    end = log.end()
    assert end == LogEnd(0, 0, -1, 0, 0, 0)
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
    store.topic(1).drop_before(LogStart(900, 20, 1))
    store.close()
    (directory / "metadata.json").unlink()
    repair(store.path)
    with open_store(store.path) as again:
        assert again.topic(1).log.start == LogStart(900, 20, 1)
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
    store.topic(1).drop_before(LogStart(900, 20, 1))
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
        again.topic(1).drop_before(LogStart(900, 20, 1))
        assert again.view(1).locate_time(latest - 1) == view.locate_end()
        assert again.view(1).locate_time(0).offset == 900
        again.append(1, batch("c"))
        assert again.view(1).locate_time(latest).offset == 1800


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
