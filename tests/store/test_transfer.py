"""How a stage's segments become part of a topic."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from lance_spark.errors import StoreWriteFailed
from lance_spark.store import Fsync, Store, StoreConfig
from lance_spark.store.files import OsFiles
from tests.store.disk import DiskFiles
from tests.store.jobs import commit, content, hooked, reopen, stage
from tests.store.kit import SMALL, batch, check_clean, damage, open_store


def data_files(store: Store, directory: str) -> list[Path]:
    found = (store.path / directory).glob("*.lnc")
    return sorted(found, key=lambda path: int(path.name.split("_")[0]))


def inodes(paths: list[Path]) -> list[int]:
    return [os.stat(path).st_ino for path in paths]


def test_a_large_stage_is_linked_not_copied(store: Store) -> None:
    named = stage(store, "one", "w", 1, batch("a", 30))
    before = inodes(data_files(store, f"stages/{named.id}"))
    store.commit_stages("w", 1, [named])
    after = data_files(store, "segments/1")
    assert inodes(after) == before
    assert [os.stat(path).st_nlink for path in after] == [1]
    assert content(store, "one") == batch("a", 30)


def test_a_large_stage_of_several_segments(store: Store) -> None:
    store.create_topic("one")
    store.append(1, batch("0"))
    named = stage(store, "one", "w", 1, *(batch(tag, 30) for tag in "abcd"))
    before = inodes(data_files(store, f"stages/{named.id}"))
    assert len(before) == 4
    store.commit_stages("w", 1, [named])
    assert inodes(data_files(store, "segments/1"))[1:] == before
    store.append(1, batch("z"))
    expected = [batch("0"), *(batch(tag, 30) for tag in "abcd"), batch("z")]
    with reopen(store) as again:
        assert content(again, "one") == b"".join(expected)
        assert again.view(1).locate_record(33).offset == 135 + 1350
        again.append(1, batch("y"))


@pytest.mark.parametrize("fsync", list(Fsync))
@pytest.mark.parametrize("sizes", ["sl", "sls", "lsl", "ssl", "sll"])
def test_small_and_large_stages_of_one_commit_are_durable(
    files: DiskFiles, sizes: str, fsync: Fsync
) -> None:
    """What is copied is synced before a segment is adopted behind it."""
    config = StoreConfig(fsync=fsync, **SMALL)  # type: ignore[arg-type]
    with open_store(files=files, config=config) as store:
        store.create_topic("one")
        store.append(1, batch("0"))
        named = [
            stage(store, "one", "w", 1, batch(f"{n}", 20 if size == "l" else 3))
            for n, size in enumerate(sizes)
        ]
        store.commit_stages("w", 1, named)
        committed = content(store, "one")
        left = DiskFiles(files.disk.without_power("drop", random.Random(0)))
    with open_store(files=left, config=config) as again:
        assert damage(again.findings) == []
        assert content(again, "one") == committed


def test_the_next_batch_does_not_go_into_an_adopted_file(store: Store) -> None:
    commit(store, "one", "w", 1, batch("a", 20))
    [adopted] = data_files(store, "segments/1")
    store.append(1, batch("b"))
    assert adopted.stat().st_size == 900
    assert len(data_files(store, "segments/1")) == 2


def test_a_small_stage_is_copied_behind_the_last_record(store: Store) -> None:
    store.create_topic("one")
    store.append(1, batch("0"))
    commit(store, "one", "w", 1, batch("a"), batch("b"))
    [only] = data_files(store, "segments/1")
    assert only.read_bytes() == batch("0") + batch("a") + batch("b")
    assert len(store.topic(1).log.segments()) == 1


def test_a_small_stage_that_does_not_fit_starts_a_segment(store: Store) -> None:
    store.create_topic("one")
    store.append(1, batch("0", 30))
    commit(store, "one", "w", 1, batch("a", 5))
    assert [p.stat().st_size for p in data_files(store, "segments/1")] == [1350, 225]


def test_the_limit_between_copy_and_adoption(store: Store) -> None:
    """SMALL adopts from 500 bytes on."""
    for sequence, size in enumerate([499, 500]):
        data = batch("a", 1, size - 5)
        assert len(data) == size
        named = stage(store, f"t{size}", "w", sequence, data)
        before = inodes(data_files(store, f"stages/{named.id}"))
        store.commit_stages("w", sequence, [named])
        topic = store.find_topic(f"t{size}")
        assert topic is not None
        after = inodes(data_files(store, f"segments/{topic.metadata.id}"))
        assert (after == before) is (size == 500)


def test_a_small_stage_of_several_segments(files: DiskFiles) -> None:
    config = StoreConfig(**{**SMALL, "segment_bytes": 100})  # type: ignore[arg-type]
    with open_store(files=files, config=config) as store:
        commit(store, "one", "w", 1, batch("a"), batch("b"), batch("c"))
        assert content(store, "one") == batch("a") + batch("b") + batch("c")
        assert store.view(1).locate_record(4).offset == 180
    check_clean(files=files)


def test_an_adopted_segment_is_found_in_every_way(store: Store) -> None:
    store.create_topic("one")
    store.append(1, batch("0"))
    commit(store, "one", "w", 1, batch("a", 30))
    with reopen(store) as again:
        view = again.view(1)
        for number in range(33):
            assert view.locate_record(number).offset == number * 45
            assert view.locate_offset(number * 45).record == number


class NoLinks(OsFiles):
    def link(self, source: Path, target: Path) -> None:
        raise OSError("Operation not supported")


def test_a_file_system_without_links(tmp_path: Path) -> None:
    with open_store(tmp_path, NoLinks()) as store:
        commit(store, "one", "w", 1, batch("a", 30), batch("b", 30))
        assert content(store, "one") == batch("a", 30) + batch("b", 30)
    check_clean(tmp_path)


def flip(files: DiskFiles, part: str, ending: str, position: int) -> None:
    for name, number in files.disk.seen.items():
        if part in name and name.endswith(ending):
            files.disk.inodes[number].seen[position] ^= 1


@pytest.mark.parametrize(
    ("ending", "position", "records"),
    [
        (".idx", 130, 2),  # A row of a stage that is copied,
        (".idx", 130, 30),  # of one that is adopted,
        (".lnc", 3, 2),  # and the first batch,
        (".lnc", 100, 2),  # and the second one.
    ],
)
def test_a_stage_damaged_before_its_commit_is_refused(
    files: DiskFiles, ending: str, position: int, records: int
) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        store.append(1, batch("0"))
        named = stage(store, "one", "w", 1, batch("a", records), batch("b", records))
        flip(files, "/stages/", ending, position)
        with pytest.raises(StoreWriteFailed, match="undone"):
            store.commit_stages("w", 1, [named])
        assert content(store, "one") == batch("0")
        store.append(1, batch("c"))
        store.abort_stages("w", 1)
    check_clean(files=files)


def test_an_index_that_was_cut_is_refused(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        named = stage(store, "one", "w", 1, batch("a", 30))
        for name, number in files.disk.seen.items():
            if "/stages/" in name and name.endswith(".idx"):
                files.disk.inodes[number].truncate(128 + 48)
        with pytest.raises(StoreWriteFailed, match="rows of the index are damaged"):
            store.commit_stages("w", 1, [named])
        store.abort_stages("w", 1)


def test_a_commit_is_durable_under_any_policy(files: DiskFiles) -> None:
    config = StoreConfig(fsync=Fsync.NONE, **SMALL)  # type: ignore[arg-type]
    store = open_store(files=files, config=config)
    batches = [batch(str(n), 20) for n in range(5)]
    commit(store, "one", "w", 1, *batches)
    commit(store, "two", "w", 2, *(batch("a", 5) for _ in range(2)))
    left = DiskFiles(files.disk.without_power("drop", random.Random(0)))
    with open_store(files=left, config=config) as again:
        assert content(again, "one") == b"".join(batches)
        assert content(again, "two") == 2 * batch("a", 5)
    check_clean(files=left)


def test_data_of_a_large_stage_is_written_once(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        named = stage(store, "one", "w", 1, batch("a", 30))
        written: list[str] = []

        def note(operation: str, name: str) -> None:
            if operation == "pwrite" and name.endswith(".lnc"):
                written.append(name)

        with hooked(files, note):
            store.commit_stages("w", 1, [named])
        assert written == []
