"""Committed offsets of consumers."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from crc32c import crc32c

from lance_spark.errors import StoreClosed, StoreError, StoreWriteFailed
from lance_spark.store import consumers
from lance_spark.store.consumers import (
    ConsumerKey,
    Consumers,
    ConsumersContent,
    GroupKey,
    encode_entry,
    parse_consumers,
)
from lance_spark.store.entrylog import HEAD_BYTES
from lance_spark.store.files import read_file
from tests.store.disk import DiskFiles
from tests.store.jobs import hooked, refusing

HEADER = b"LSCONSU0" + (1).to_bytes(4, "little") + bytes(4)
PATH = Path("/consumers.log")


def opened(files: DiskFiles, *, sync: bool = True) -> Consumers:
    parsed = parse_consumers(read_file(files, PATH) or b"")
    return Consumers(files, PATH, {**parsed.offsets, **parsed.records}, sync=sync)


def entry(consumer: int, topic: int, offset: int) -> bytes:
    return encode_entry(ConsumerKey(consumer, topic), offset)


def test_an_entry_on_disk() -> None:
    consumer, topic = (7).to_bytes(8, "little"), (1).to_bytes(4, "little")
    offset = (300).to_bytes(8, "little")
    crc = crc32c(consumer + topic + offset).to_bytes(4, "little")
    assert entry(7, 1, 300) == consumer + topic + crc + offset


def test_a_commit_that_is_late_writes_nothing(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may be another process's by then."""
    monkeypatch.setattr(consumers, "_COMPACT_ENTRIES", 2)
    late = opened(files)
    late.commit(7, 1, 10)
    late.commit(7, 1, 20)
    late.close()
    opened(files).commit(7, 1, 30)
    with pytest.raises(StoreClosed):
        late.commit(7, 2, 40)
    assert parse_consumers(read_file(files, PATH) or b"").offsets == {(7, 1): 30}


def test_the_last_entry_counts() -> None:
    data = HEADER + entry(7, 1, 10) + entry(7, 2, 20) + entry(7, 1, 30)
    assert parse_consumers(data) == ConsumersContent({(7, 1): 30, (7, 2): 20}, 3)


def test_a_damaged_entry_is_passed_over() -> None:
    damaged = bytearray(HEADER + entry(7, 1, 10) + entry(7, 2, 20) + entry(7, 1, 30))
    damaged[16 + 24 + 3] ^= 1
    assert parse_consumers(bytes(damaged)) == ConsumersContent(
        {(7, 1): 30}, 3, ((40, 64),)
    )


def test_a_torn_entry_is_left_out() -> None:
    data = HEADER + entry(7, 1, 10) + entry(7, 1, 30)
    for cut in range(1, 25):
        assert parse_consumers(data[:-cut]).offsets == {(7, 1): 10}


@pytest.mark.parametrize("data", [b"", HEADER[:15], b"X" + HEADER[1:]])
def test_another_file(data: bytes) -> None:
    assert "file of consumer offsets" in str(parse_consumers(data).lost)


def test_another_version_is_not_touched() -> None:
    head = b"LSCONSU0" + (4).to_bytes(4, "little")
    with pytest.raises(StoreError, match="version 4, which is not supported"):
        parse_consumers(head + crc32c(head).to_bytes(4, "little"))


# Version 2: a head that is checked, and marks.


def written(files: DiskFiles) -> bytes:
    place = opened(files)
    for consumer in (7, 8, 9):
        place.commit(consumer, 1, 10 * consumer)
    return read_file(files, PATH) or b""


def test_no_flipped_bit_makes_other_offsets(files: DiskFiles) -> None:
    good = written(files)
    expected = parse_consumers(good)
    assert expected == ConsumersContent({(7, 1): 70, (8, 1): 80, (9, 1): 90}, 3)
    for bit in range(len(good) * 8):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        found = parse_consumers(bytes(flipped))
        assert found.offsets.items() <= expected.offsets.items(), bit
        missing = len(expected.offsets) - len(found.offsets)
        assert missing == len(found.damaged) == (bit // 8 >= HEAD_BYTES), bit
        # Of a mark, the other one is left, and all entries are whole.
        in_mark = 16 <= bit // 8 < HEAD_BYTES
        assert bool(found.damaged or found.faults) is not in_mark, bit


def test_no_cut_makes_other_offsets(files: DiskFiles) -> None:
    good = written(files)
    for size in range(len(good)):
        found = parse_consumers(good[:size])
        assert found.lost or found.damaged or found.faults, size


def test_an_entry_behind_the_mark_may_be_torn(files: DiskFiles) -> None:
    good = written(files)
    for cut in range(1, 24):
        torn = parse_consumers(good + entry(5, 5, 2**64 - 1)[:cut])
        assert (torn.damaged, torn.torn) == ((), len(good))
        torn = parse_consumers(good + entry(5, 5, 2**64 - 1)[:cut] + bytes(24 - cut))
        assert (torn.damaged, torn.torn) == ((), len(good))
    between = parse_consumers(good + bytes(24) + entry(5, 5, 2**64 - 1))
    assert between.damaged == ((len(good), len(good) + 24),)


def test_no_room_to_write_the_file_anew(files: DiskFiles) -> None:
    written(files)
    with refusing(files, "pwrite", "consumers.log", code=errno.ENOSPC):
        place = opened(files)
        assert not place.is_written
        assert place.committed(8, 1) == 80
        with pytest.raises(StoreWriteFailed, match="could not commit offset 1"):
            place.commit(8, 1, 1)
        place.close()
    place = opened(files)
    place.commit(8, 1, 1)
    assert opened(files).all() == {(7, 1): 70, (8, 1): 1, (9, 1): 90}


def test_offsets_survive(files: DiskFiles) -> None:
    first = opened(files)
    assert first.committed(7, 1) is None
    first.commit(7, 1, 10)
    first.commit(8, 1, 11)
    first.commit(7, 1, 5)  # A consumer may go back.
    first.close()
    again = opened(DiskFiles(files.disk.killed()))
    assert again.committed(7, 1) == 5
    assert again.all() == {(7, 1): 5, (8, 1): 11}


def test_a_commit_is_synced_if_the_policy_says_so(files: DiskFiles) -> None:
    operations: list[str] = []
    for sync in (True, False):
        place = opened(files, sync=sync)
        with hooked(files, lambda operation, name: operations.append(operation)):
            place.commit(7, 1, 10)
    # With a sync, the mark follows it.
    assert operations == ["pwrite", "sync", "pwrite", "pwrite"]


@pytest.mark.parametrize("operation", ["pwrite", "sync"])
def test_a_refused_commit(files: DiskFiles, operation: str) -> None:
    place = opened(files)
    place.commit(7, 1, 10)
    with (
        refusing(files, operation, "consumers.log"),
        pytest.raises(StoreWriteFailed, match="could not commit offset 20 of topic 1"),
    ):
        place.commit(7, 1, 20)
    assert place.committed(7, 1) == 10
    place.commit(8, 1, 30)
    again = opened(DiskFiles(files.disk.killed()))
    assert again.all() == {(7, 1): 10, (8, 1): 30}


def test_a_deleted_topic_is_forgotten(files: DiskFiles) -> None:
    place = opened(files)
    place.commit(7, 1, 10)
    place.commit(7, 2, 20)
    place.forget_topic(1)
    assert place.all() == {(7, 2): 20}


def test_the_file_is_rewritten_when_most_of_it_is_old(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "_COMPACT_ENTRIES", 8)
    place = opened(files)
    sizes = set()
    for offset in range(50):
        place.commit(7, 1, offset)
        place.commit(7, 2, offset)
        sizes.add(len(read_file(files, PATH) or b""))
    assert max(sizes) == HEAD_BYTES + 8 * 24
    assert opened(files).all() == {(7, 1): 49, (7, 2): 49}


@pytest.mark.parametrize("operation", ["create", "pwrite", "replace", "sync_dir"])
def test_a_refused_rewrite_loses_nothing(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr(consumers, "_COMPACT_ENTRIES", 4)
    place = opened(files)
    for offset in range(4):
        place.commit(7, 1, offset)
    with refusing(files, operation, "/"), pytest.raises(StoreWriteFailed):
        place.commit(7, 1, 100)
    assert place.committed(7, 1) == 3
    place.commit(7, 1, 200)
    again = opened(DiskFiles(files.disk.killed()))
    assert again.all() == {(7, 1): 200}


# Version 3: groups by name, in record numbers.


def version(files: DiskFiles) -> int:
    return (read_file(files, PATH) or b"")[8]


def test_a_group_has_a_place_of_its_own(files: DiskFiles) -> None:
    """A file without one stays of the version that older releases read."""
    place = opened(files)
    place.commit(7, 1, 10)
    assert version(files) == 2
    names = ("spark", "7", "\N{GREEK SMALL LETTER PI}", "\ud800", "x" * 255, "y\0")
    for number, name in enumerate(names):
        place.commit(name, 1, number)
        place.commit(name, 2, 2**64 - 1)
    assert version(files) == 3
    for again in (place, opened(files)):
        assert [again.committed(name, 1) for name in names] == list(range(6))
        assert again.committed("spark", 2) == 2**64 - 1
        assert (again.committed("spark", 3), again.committed(7, 1)) == (None, 10)
        assert (len(again), again.all()) == (13, {(7, 1): 10})
    again.forget_topic(1)
    again.commit("spark", 2, 5)
    assert (len(again), again.committed("spark", 1)) == (len(names), None)
    assert opened(files).committed("spark", 2) == 5


def grouped(files: DiskFiles) -> bytes:
    place = opened(files)
    for consumer in (7, "spark", "another group", 8):
        place.commit(consumer, 1, 10)
    return read_file(files, PATH) or b""


def test_no_flipped_bit_makes_other_groups(files: DiskFiles) -> None:
    good = grouped(files)
    expected = parse_consumers(good)
    assert expected.records == {("spark", 1): 10, ("another group", 1): 10}
    for bit in range(len(good) * 8):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        found = parse_consumers(bytes(flipped))
        assert found.offsets.items() <= expected.offsets.items(), bit
        assert found.records.items() <= expected.records.items(), bit
        missing = 4 - len(found.offsets) - len(found.records)
        assert missing == len(found.damaged) == (bit // 8 >= HEAD_BYTES), bit


def test_a_group_that_was_not_written_to_its_end(files: DiskFiles) -> None:
    good = grouped(files)
    for size in range(len(good)):
        found = parse_consumers(good[:size])
        assert found.lost or found.damaged or found.faults, size
    entry = encode_entry(GroupKey("a third group", 2), 3)
    for cut in range(1, len(entry)):
        for tail in (entry[:cut], entry[:cut] + bytes(len(entry) - cut)):
            found = parse_consumers(good + tail)
            if found.records.get(GroupKey("a third group", 2)) is None:
                assert (found.damaged, found.torn) == ((), len(good)), cut
