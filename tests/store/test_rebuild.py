"""Index rows made from the data."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import numpy as np
import pytest

from lance_spark.errors import StoreError, StoreReadOnly
from lance_spark.store import recovery as module
from lance_spark.store.format import (
    ROW,
    Kind,
    decode_rows,
    make_batch_rows,
    seal_rows,
    valid_rows,
)
from lance_spark.store.recovery import Rebuilt, _mend, rebuild, sound_rows
from lance_spark.store.segment import Boundary
from lance_spark.wire.lwp import scan
from tests.store.disk import DiskFile, DiskFiles
from tests.store.jobs import content, refusing
from tests.store.kit import batch, check_clean, damage, open_store, record


def data_file(files: DiskFiles, data: bytes) -> DiskFile:
    file = files.open(Path("/data.lnc"), create=True)
    file.pwrite(data, 0)
    return file


def rows_of(*batches: tuple[int, int, list[int], int]):  # type: ignore[no-untyped-def]
    """Make the rows of batches: position, first record, starts, length."""
    parts = [
        make_batch_rows(position, number, 9, length, np.array(starts), 77, 64)
        for position, number, starts, length in batches
    ]
    return decode_rows(b"".join(parts)).copy()


def made(files: DiskFiles, data: bytes, *, cut_tail: bool = False) -> Rebuilt:
    file = data_file(files, data)
    rebuilt = Rebuilt(file, scan, 64, last_append_ns=5)
    rebuilt.make(len(data), cut_tail=cut_tail)
    return rebuilt


def rows_in(rebuilt: Rebuilt):  # type: ignore[no-untyped-def]
    rows = decode_rows(b"".join(rebuilt.parts))
    assert len(rows) == rebuilt.rows
    assert valid_rows(rows).all()
    return rows


# Rows from data.


def test_rows_are_what_they_were(files: DiskFiles) -> None:
    data = batch("a", 10)
    rebuilt = made(files, data)
    starts = np.arange(0, 450, 45)
    expected = make_batch_rows(0, 0, 5, 450, starts, module.crc32c(data), 64)
    assert b"".join(rebuilt.parts) == expected
    assert rebuilt.end == Boundary(450, 10)
    assert (rebuilt.made, rebuilt.lost) == ([(0, 450)], [])


def test_nothing_is_made_from_nothing(files: DiskFiles) -> None:
    rebuilt = made(files, b"")
    assert (rebuilt.rows, rebuilt.made, rebuilt.lost) == (0, [], [])


def test_a_window_grows_for_a_long_record_only(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WINDOW_BYTES", 100)
    data = batch("a", 6) + record(b"x" * 995) + batch("b", 20)
    rebuilt = made(files, data)
    heads = rows_in(rebuilt)
    heads = heads[heads["kind"] == Kind.BATCH]
    assert heads["length"].tolist() == [90, 90, 90, 1000 + 585, 90, 90, 90, 45]
    assert rebuilt.end == Boundary(len(data), 27)
    assert rebuilt.lost == []


def test_bytes_that_can_not_be_framed_are_lost(files: DiskFiles) -> None:
    data = batch("a") + bytes(50) + batch("b")
    rebuilt = made(files, data)
    assert rebuilt.made == [(0, 320)]
    assert rebuilt.lost == [(135, 320)]
    assert rows_in(rebuilt)["kind"].tolist() == [Kind.BATCH, Kind.INNER, Kind.LOST]
    assert rebuilt.end == Boundary(320, 3)


def test_a_last_record_that_is_not_whole(files: DiskFiles) -> None:
    data = batch("a") + record(b"torn")[:-1]
    assert made(files, data).lost == [(135, 143)]


def test_a_last_record_that_is_not_whole_may_be_cut(files: DiskFiles) -> None:
    data = batch("a") + record(b"torn")[:-1]
    rebuilt = made(files, data, cut_tail=True)
    assert rebuilt.lost == []
    assert rebuilt.end == Boundary(135, 3)


def test_a_long_loss_has_several_rows(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOST_BYTES_MAX", 100)
    rebuilt = Rebuilt(data_file(files, b""), scan, 64)
    rebuilt.lose(250)
    assert rows_in(rebuilt)["length"].tolist() == [100, 100, 50]
    assert rebuilt.lost == [(0, 250)]
    assert rebuilt.end == Boundary(250, 0)


# Which rows are sound.

# Batches of 100, 30 and 200 bytes; the first has one inner row, the last two.
SOUND = rows_of((0, 0, [0, 70], 100), (100, 2, [0], 30), (130, 3, [0, 70, 140], 200))


def test_all_rows_are_sound() -> None:
    assert len(SOUND) == 6
    assert sound_rows(SOUND, 0, 330) == 6
    assert sound_rows(SOUND[:0], 0, 330) == 0


@pytest.mark.parametrize(
    ("row", "count"), [(0, 0), (1, 0), (2, 2), (3, 3), (4, 3), (5, 3)]
)
def test_up_to_a_damaged_row(row: int, count: int) -> None:
    rows = SOUND.copy()
    rows["row_crc"][row] ^= 1
    assert sound_rows(rows, 0, 330) == count


@pytest.mark.parametrize(("keep", "count"), [(1, 0), (2, 2), (4, 3), (5, 3)])
def test_up_to_a_batch_that_is_not_whole(keep: int, count: int) -> None:
    assert sound_rows(SOUND[:keep], 0, 330) == count


def test_up_to_a_gap() -> None:
    assert sound_rows(SOUND[3:], 130, 330) == 3
    assert sound_rows(SOUND[3:], 0, 330) == 0
    assert sound_rows(np.concatenate([SOUND[:2], SOUND[3:]]), 0, 330) == 2


def test_up_to_the_end_of_the_data() -> None:
    assert sound_rows(SOUND, 0, 329) == 3
    assert sound_rows(SOUND, 0, 99) == 0


def test_inner_rows_without_their_batch() -> None:
    assert sound_rows(SOUND[1:], 0, 330) == 0
    assert sound_rows(np.concatenate([SOUND[:2], SOUND[1:]]), 0, 330) == 0


# Old rows and new ones.


def sample(files: DiskFiles) -> tuple[DiskFile, object]:
    batches = [batch(tag) for tag in "abcd"]
    rows = rows_of(*((n * 135, n * 3, [0, 45, 90], 135) for n in range(4)))
    return data_file(files, b"".join(batches)), rows


def run(rows, file: DiskFile, end: int = 540, **options: bool) -> Rebuilt:  # type: ignore[no-untyped-def]
    return rebuild(Rebuilt(file, scan, 64, 5), rows, end, **options)


def test_sound_rows_are_kept(files: DiskFiles) -> None:
    file, rows = sample(files)
    rebuilt = run(rows, file)
    assert b"".join(rebuilt.parts) == rows.tobytes()  # type: ignore[attr-defined]
    assert (rebuilt.made, rebuilt.lost) == ([], [])
    assert rebuilt.last_append_ns == 9


def test_rows_between_sound_ones_are_made(files: DiskFiles) -> None:
    file, rows = sample(files)
    rows["row_crc"][2] ^= 1  # type: ignore[index]
    rebuilt = run(rows, file)
    assert rebuilt.made == [(135, 270)]
    assert rows_in(rebuilt)["position"].tolist() == rows["position"].tolist()  # type: ignore[index]
    assert rebuilt.end == Boundary(540, 12)


def test_a_kept_row_knows_how_many_records_were_lost(files: DiskFiles) -> None:
    file, rows = sample(files)
    rows["row_crc"][2] ^= 1  # type: ignore[index]
    file.pwrite(bytes(100), 135)
    rebuilt = run(rows, file)
    assert rebuilt.lost == [(135, 270)]
    heads = rows_in(rebuilt)
    heads = heads[heads["kind"] != Kind.INNER]
    assert heads["kind"].tolist() == [Kind.BATCH, Kind.LOST, Kind.BATCH, Kind.BATCH]
    assert heads["record"].tolist() == [0, 3, 6, 9]


def test_a_batch_that_comes_twice_counts_once(files: DiskFiles) -> None:
    file, rows = sample(files)
    twice = np.concatenate([rows[:4], rows[2:]])  # type: ignore[index]
    rebuilt = run(twice, file)
    assert b"".join(rebuilt.parts) == rows.tobytes()  # type: ignore[attr-defined]
    assert rebuilt.made == []


def test_rows_at_the_end_are_made(files: DiskFiles) -> None:
    file, rows = sample(files)
    rebuilt = run(rows[:4], file)  # type: ignore[index]
    assert rebuilt.made == [(270, 540)]
    assert rebuilt.end == Boundary(540, 12)
    torn = run(rows[:4], file, 500, cut_tail=True)  # type: ignore[index]
    assert torn.end == Boundary(495, 11)


def test_rows_behind_the_end_are_left_out(files: DiskFiles) -> None:
    file, rows = sample(files)
    rebuilt = run(rows, file, 270)
    assert rebuilt.end == Boundary(270, 6)
    assert rebuilt.made == []


# An index that is damaged while the store is open.


def damage_row(files: DiskFiles, topic: int = 1, row: int = 0) -> None:
    for name, number in files.disk.seen.items():
        if name.startswith(f"/data/segments/{topic}/") and name.endswith(".idx"):
            files.disk.inodes[number].seen[128 + 48 * row] ^= 1


def test_a_damaged_row_is_mended_by_the_reader(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        store.append(1, batch("a"))
        store.append(1, batch("b"))
        damage_row(files)
        assert content(store, "one") == batch("a") + batch("b")
        assert [f.text for f in store.findings] == [
            "index rows were rebuilt from the data"
        ]
        store.append(1, batch("c"))
        assert store.view(1).locate_record(7).offset == 315
        log = store.topic(1).log
        _mend(log, log.snapshot()[2][0])  # Another thread that comes too late.
        assert len(store.findings) == 1
        assert content(store, "one") == batch("a") + batch("b") + batch("c")
    check_clean(files=files)


def test_a_mended_index_does_not_promise_what_is_not_durable(files: DiskFiles) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    store.append(1, batch("b"), wait=False)
    store._context.segments._open.clear()
    damage_row(files)
    store.read(1, 0, 10)
    left = DiskFiles(files.disk.without_power("drop", random.Random(0)))
    with open_store(files=left) as again:
        assert damage(again.findings) == []
        assert content(again, "one").startswith(batch("a"))
    check_clean(files=left)


@pytest.mark.parametrize("operation", ["create", "replace", "sync_dir"])
def test_an_index_that_can_not_be_mended(files: DiskFiles, operation: str) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    damage_row(files)
    with (
        refusing(files, operation, "segments/1"),
        pytest.raises(StoreError, match="could not read"),
    ):
        store.read(1, 0, 100)
    with pytest.raises(StoreReadOnly, match="an index could not be rebuilt"):
        store.append(1, batch("b"))


@pytest.mark.parametrize("operation", ["create", "sync_dir"])
def test_an_index_that_is_mended_when_a_descriptor_is_free(
    files: DiskFiles, operation: str
) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        store.append(1, batch("a"))
        damage_row(files)
        with refusing(files, operation, "segments/1", times=3, code=errno.EMFILE):
            assert content(store, "one") == batch("a")
        store.append(1, batch("b"))
    check_clean(files=files)


def test_a_lost_row_is_zero_where_nothing_is_known() -> None:
    row = np.zeros(1, ROW)
    row["kind"] = Kind.LOST
    assert valid_rows(decode_rows(seal_rows(row))).all()
