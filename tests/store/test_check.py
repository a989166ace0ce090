"""The checker: each kind of finding once."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from lance_spark.errors import RecordError, StoreError
from lance_spark.model import Buffer, Scan
from lance_spark.store import Point, Severity, check_store
from lance_spark.store.document import encode_document
from lance_spark.store.entrylog import HEAD_BYTES
from lance_spark.store.format import (
    HEADER_BYTES,
    ROW_BYTES,
    IndexHeader,
    IndexMark,
    Kind,
    SegmentName,
    decode_rows,
    encode_header,
    encode_mark,
    mark_position,
    seal_rows,
)
from lance_spark.store.journal import encode_entry
from lance_spark.store.stage import decode_stage, encode_stage
from lance_spark.store.topic import decode_topic, encode_topic
from lance_spark.wire.lwp import scan
from tests.store.jobs import commit, stage
from tests.store.kit import IN_FILES, batch, check_clean, newer, open_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Topic 1 with three segments of one, one and two batches; a stage; an offset."""
    path = tmp_path / "data"
    with open_store(path, config=IN_FILES) as store:
        store.create_topic("one")
        for tag, records in [("a", 20), ("b", 20), ("c", 20), ("d", 3)]:
            store.append(1, batch(tag, records))
        stage(store, "two", "w", 2, batch("s"))
        commit(store, "three", "w", 1, batch("t"))
        store.commit_offset(7, 1, 900)
    assert check(path) == []
    return path


def check(path: Path) -> list[str]:
    return [str(finding) for finding in check_store(path, framing=scan)]


def segment(
    path: Path, number: int, ending: str, directory: str = "segments/1"
) -> Path:
    [found] = (path / directory).glob(f"{number}_*.{ending}")
    return found


def stage_directory(path: Path) -> Path:
    [found] = (path / "stages").iterdir()
    return found


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def set_mark(index: Path, position: int, rows: int) -> None:
    data = bytearray(index.read_bytes())
    for count in (10, 11):
        at = mark_position(count)
        data[at : at + 32] = encode_mark(IndexMark(position, rows, count))
    index.write_bytes(data)


def change_rows(index: Path, change: Callable[[np.ndarray], object]) -> None:
    """Change rows and make them whole again."""
    data = index.read_bytes()
    rows = decode_rows(data[HEADER_BYTES:]).copy()
    changed = change(rows)
    rows = rows if changed is None else changed  # type: ignore[assignment]
    index.write_bytes(data[:HEADER_BYTES] + seal_rows(rows.copy()))


# The files of the store.


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store here"):
        check_store(tmp_path / "nothing", framing=scan)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_can_not_be_read(path: Path) -> None:
    (path / "consumers.log").unlink()
    (path / "consumers.log").mkdir()
    with pytest.raises(StoreError, match="could not check"):
        check_store(path, framing=scan)


def test_identity(path: Path) -> None:
    (path / "store.json").unlink()
    assert check(path) == ["damage: store.json: missing"]
    (path / "store.json").write_text("{}")
    [found] = check(path)
    assert found.startswith("damage: store.json: ") and "check --repair" in found
    (path / "store.json").write_bytes(newer(encode_document({})))
    [found] = check(path)
    assert "format 99 is not supported" in found and "--repair" not in found


def test_a_lost_journal(path: Path) -> None:
    (path / "journal.log").write_bytes(b"")
    assert check(path) == [
        "damage: journal.log: 0 bytes are no journal: earlier commits are forgotten"
    ]
    (path / "journal.log").unlink()
    assert check(path) == [
        "damage: journal.log: missing: earlier commits are forgotten"
    ]


def test_a_journal_or_offsets_of_another_version(path: Path) -> None:
    for name in ("journal.log", "consumers.log"):
        data = (path / name).read_bytes()
        head = data[:8] + (9).to_bytes(4, "little")
        crc = crc32c(head).to_bytes(4, "little")
        (path / name).write_bytes(head + crc + data[16:])
    first, second = check(path)
    assert first.startswith("damage: journal.log: the journal has version 9")
    assert second.startswith("damage: consumers.log: the offsets have version 9")


def test_a_damaged_head_or_mark(path: Path) -> None:
    """The head is damage; of the two marks a crash may leave one half-written."""
    for name in ("journal.log", "consumers.log"):
        good = (path / name).read_bytes()
        flip(path / name, 9)
        assert check(path) == [
            f"damage: {name}: its head is damaged; the next opening writes it anew"
        ]
        (path / name).write_bytes(good)
        flip(path / name, 20)
        assert not any(found.startswith("damage") for found in check(path))
        flip(path / name, 44)
        assert check(path)[0] == (
            f"damage: {name}: both of its marks are damaged; the next opening writes "
            "it anew"
        )
        (path / name).write_bytes(good)


def test_a_damaged_entry_of_the_journal(path: Path) -> None:
    flip(path / "journal.log", HEAD_BYTES + 12 + 20)
    [found, *_] = check(path)
    assert found.startswith(f"damage: journal.log [{HEAD_BYTES}, ")
    assert found.endswith("not an entry")


def test_the_last_entry_of_the_journal_is_damaged(path: Path) -> None:
    """It was answered for: the mark behind it says so."""
    flip(path / "journal.log", (path / "journal.log").stat().st_size - 3)
    [found, *_] = check(path)
    assert found.startswith("damage: journal.log [") and found.endswith("not an entry")


def test_an_unfinished_entry_of_the_journal(path: Path) -> None:
    size = (path / "journal.log").stat().st_size
    with (path / "journal.log").open("ab") as file:
        file.write(b"LSJE torn")
    assert check(path) == [
        f"note: journal.log [{size}, {size + 9}): an entry is not finished; "
        "the next opening cuts it off"
    ]


def test_a_commit_that_is_begun(path: Path) -> None:
    with (path / "journal.log").open("ab") as file:
        file.write(encode_entry({"kind": "begin", "writer": "w", "sequence": 1}))
    assert check(path) == [
        "note: journal.log: a commit is begun; the next opening ends it"
    ]


def test_an_entry_of_another_version(path: Path) -> None:
    with (path / "journal.log").open("ab") as file:
        file.write(encode_entry({"kind": "done"}))
    [found] = check(path)
    assert found.startswith("damage: journal.log: a journal entry of another version")


def test_a_journal_that_was_lost_once(path: Path) -> None:
    with (path / "journal.log").open("ab") as file:
        file.write(encode_entry({"kind": "lost", "at_ns": 5}))
    assert check(path) == [
        "damage: journal.log: it was lost at 5 ns; commits before that are forgotten"
    ]


def test_consumer_offsets(path: Path) -> None:
    log = path / "consumers.log"
    good = log.read_bytes()
    where = f"consumers.log [{HEAD_BYTES}, {HEAD_BYTES + 24})"
    flip(log, HEAD_BYTES + 4)
    assert check(path) == [f"damage: {where}: an entry is damaged"]
    log.write_bytes(good[:-1])
    assert check(path) == [f"damage: {where}: an entry is damaged"]
    log.write_bytes(good + b"torn")
    assert check(path) == [
        f"note: consumers.log [{len(good)}, {len(good) + 4}): an entry is not "
        "finished; the next opening leaves it out"
    ]
    log.write_bytes(b"")
    assert check(path) == [
        "damage: consumers.log: 0 bytes are no file of consumer offsets"
    ]
    (path / "consumers.log").unlink()
    assert check(path) == [
        "note: consumers.log: missing: no consumer has committed anything"
    ]


# Topics and stages.


def test_a_half_made_topic(path: Path) -> None:
    (path / "segments" / "9").mkdir()
    assert check(path) == [
        "note: segments/9: half-made topic; the next opening removes it"
    ]


def test_what_is_no_topic_is_passed_over(path: Path) -> None:
    for directory in ("segments", "stages"):
        (path / directory / "notes").mkdir()
        (path / directory / "77").write_text("")
    assert check(path) == []


def test_metadata_of_a_topic(path: Path) -> None:
    metadata = path / "segments" / "1" / "metadata.json"
    where = "damage: segments/1/metadata.json: "
    text = metadata.read_text()
    metadata.write_text(text.replace('"id": 1', '"id": 5'))
    assert check(path)[0].startswith(f"{where}the checksum does not hold")
    old = decode_topic(text.encode())
    metadata.write_bytes(encode_topic(replace(old, id=5)))
    assert check(path)[0].startswith(f"{where}it is that of topic 5")
    metadata.write_text("{}")
    [found] = check(path)
    assert found.startswith(where) and "check --repair" in found
    metadata.unlink()
    assert check(path)[0].startswith(f"{where}missing")


def test_format_1_in_a_store_that_is_upgraded(path: Path) -> None:
    """No release writes such a file any more."""
    for metadata in (
        path / "segments" / "1" / "metadata.json",
        stage_directory(path) / "stage.json",
    ):
        fields = json.loads(good := metadata.read_bytes())
        del fields["crc32c"]
        metadata.write_text(json.dumps({**fields, "format": 1}))
        [found] = check(path)
        assert "it has format 1 and no checksum, in an upgraded store" in found
        metadata.write_bytes(good)


def test_metadata_of_a_stage(path: Path) -> None:
    directory = stage_directory(path)
    where, metadata = f"stages/{directory.name}", directory / "stage.json"
    text = metadata.read_text()
    metadata.write_text(text.replace(f'"id": {directory.name}', '"id": 5'))
    [found] = check(path)
    assert found.startswith(f"damage: {where}/stage.json: the checksum does not hold")
    metadata.write_bytes(encode_stage(replace(decode_stage(text.encode()), id=5)))
    [found] = check(path)
    assert found.startswith(f"damage: {where}/stage.json: it is that of stage 5")
    metadata.write_text("{}")
    [found] = check(path)
    assert found.startswith(f"damage: {where}/stage.json: ")
    metadata.unlink()
    assert check(path) == [
        f"note: {where}: half-made or dropped; the next opening removes it"
    ]


def test_damage_in_a_stage(path: Path) -> None:
    directory = stage_directory(path)
    where = f"stages/{directory.name}"
    flip(segment(path, 0, "lnc", where), 7)
    assert check(path) == [f"damage: {where} [0, 135): the checksum differs"]


def test_segments_before_the_start(path: Path) -> None:
    metadata = path / "segments" / "1" / "metadata.json"
    old = decode_topic(metadata.read_bytes())
    metadata.write_bytes(encode_topic(replace(old, start=Point(900, 20, 1))))
    assert check(path) == [
        "note: segments/1: segments before the start; the next opening drops"
    ]


# Segments.


def test_a_missing_index(path: Path) -> None:
    index = segment(path, 1, "idx")
    index.unlink()
    assert check(path) == [
        f"damage: segments/1/{index.name}: missing; the next opening rebuilds it"
    ]


def test_a_half_made_segment(path: Path) -> None:
    data = path / "segments" / "1" / "3_5.lnc"
    data.write_bytes(b"")
    assert check(path) == [
        "note: segments/1/3_5.idx: half-made segment; the next opening mends it"
    ]
    data.with_suffix(".idx").write_bytes(b"LSIND")
    assert check(path) == [
        "note: segments/1/3_5.idx: half-made segment; the next opening mends it"
    ]
    data.unlink()
    header = IndexHeader(1, SegmentName(3, 5), 2835, 63)
    data.with_suffix(".idx").write_bytes(encode_header(header, IndexMark()))
    assert check(path) == [
        "note: segments/1/3_5.idx: half-made segment; the next opening removes it"
    ]


def test_a_damaged_header(path: Path) -> None:
    index = segment(path, 1, "idx")
    flip(index, 40)
    assert check(path) == [f"damage: segments/1/{index.name}: header checksum differs"]


def test_a_foreign_index(path: Path) -> None:
    index = segment(path, 2, "idx")
    shutil.copy(segment(path, 1, "idx"), index)
    assert check(path) == [f"damage: segments/1/{index.name}: it belongs to other data"]


def test_a_segment_that_is_missing(path: Path) -> None:
    for ending in ("lnc", "idx"):
        segment(path, 1, ending).unlink()
    [found] = check(path)
    assert "[900, 1800): starts at (1800, 40), the log before it ends at (900" in found


def test_a_missing_data_file(path: Path) -> None:
    data = segment(path, 1, "lnc")
    data.unlink()
    assert check(path) == [
        f"damage: segments/1 [900, 1800): the data file {data.name} is missing"
    ]


def test_missing_rows(path: Path) -> None:
    index = segment(path, 2, "idx")
    size = index.stat().st_size
    os.truncate(index, size - 2 * ROW_BYTES)
    found = check(path)
    assert found[0] == (
        f"damage: segments/1/{index.name} [1800, 2835): 2 rows are missing"
    )
    assert "damage: segments/1 [2700, 2835): bytes without index rows" in found


def test_a_damaged_row(path: Path) -> None:
    index = segment(path, 0, "idx")
    flip(index, HEADER_BYTES + 2 * ROW_BYTES + 3)
    assert check(path) == [f"damage: segments/1/{index.name}: row 2 is damaged"]


def test_flipped_bits_of_data(path: Path) -> None:
    flip(segment(path, 2, "lnc"), 7)
    assert check(path) == ["damage: segments/1 [1800, 2700): the checksum differs"]


def test_data_that_is_too_short(path: Path) -> None:
    os.truncate(segment(path, 2, "lnc"), 900 + 100)
    assert check(path) == [
        "damage: segments/1 [2700, 2835): 35 bytes are missing from the file"
    ]


def test_bytes_without_rows(path: Path) -> None:
    with segment(path, 0, "lnc").open("ab") as file:
        file.write(b"12345")
    with segment(path, 2, "lnc").open("ab") as file:
        file.write(b"12345")
    assert check(path) == [
        "damage: segments/1 [900, 905): bytes without index rows",
        "note: segments/1 [2835, 2840): bytes without index rows; "
        "the next opening cuts them",
    ]


def test_a_batch_that_was_never_acknowledged(path: Path) -> None:
    rows = (segment(path, 2, "idx").stat().st_size - HEADER_BYTES) // ROW_BYTES
    set_mark(segment(path, 2, "idx"), 900, rows - 2)
    flip(segment(path, 2, "lnc"), 900 + 7)
    assert check(path) == [
        "note: segments/1 [2700, 2835): the checksum differs; not acknowledged, "
        "the next opening cuts it off"
    ]
    flip(segment(path, 2, "idx"), HEADER_BYTES + (rows - 1) * ROW_BYTES + 5)
    [found] = check(path)
    assert found.startswith("note: segments/1 [2700, 2835): ")


# Rows that are whole and wrong.


def test_lost_bytes(path: Path) -> None:
    index = segment(path, 2, "idx")

    def lose(rows: np.ndarray) -> np.ndarray:
        rows["kind"][-2] = Kind.LOST
        return rows

    change_rows(index, lose)
    assert check(path) == [
        "damage: segments/1 [2700, 2835): missing, or could not be framed, when the "
        "index was rebuilt"
    ]


@pytest.mark.parametrize(
    ("name", "row", "value", "text"),
    [
        ("position", -2, 901, "the row is for position 901, not 900"),
        ("record", -2, 21, "the row is for position 900, not 900"),
        ("append_ns", -2, 0, "the append time goes back"),
        ("records", -2, 4, "3 records, not 4"),
        ("inner", -2, 2, "inner rows are missing"),
        ("position", -1, 946, "an inner row is not at a record's start"),
        ("record", -1, 99, "an inner row is not at a record's start"),
        ("record", -1, 1, "an inner row is not at a record's start"),
    ],
)
def test_a_row_that_does_not_fit(
    path: Path, name: str, row: int, value: int, text: str
) -> None:
    def change(rows: np.ndarray) -> None:
        rows[name][row] = value

    change_rows(segment(path, 2, "idx"), change)
    found = check(path)
    assert found[0] == f"damage: segments/1 [2700, 2835): {text}"


def test_an_inner_row_that_is_a_batch(path: Path) -> None:
    def change(rows: np.ndarray) -> None:
        rows["kind"][-1] = Kind.BATCH

    change_rows(segment(path, 2, "idx"), change)
    assert "damage: segments/1 [2700, 2835): inner rows are missing" in check(path)


def test_records_that_can_not_be_framed(path: Path) -> None:
    def picky(data: bytes) -> Scan:
        if b"d/1" in data:
            raise RecordError("no such type", 45)
        found = scan(data)
        if b"a/1" in data:
            return Scan(found.starts[:1], 45, RecordError("odd", 45))
        return found

    found = [str(f) for f in check_store(path, framing=picky)]
    assert found == [
        "damage: segments/1 [0, 900): malformed record at byte 45: odd",
        "damage: segments/1 [2700, 2835): malformed record at byte 45: no such type",
    ]


def test_a_batch_of_one_record_may_hold_anything(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        store.append(0, bytes(100), np.zeros(1, np.int64))
    assert check(tmp_path / "data") == [
        "note: segments/0 [0, 100): a batch of one record that does not follow the "
        "framing"
    ]

    def refuse(data: Buffer) -> Scan:
        raise RecordError("not one of mine", 0)

    (note,) = check_store(tmp_path / "data", framing=refuse)
    assert note.severity is Severity.NOTE


def test_progress_is_told(path: Path) -> None:
    verified: list[int] = []
    check_store(path, framing=scan, progress=verified.append)
    assert verified == [900, 900, 900, 135, 135, 135]


def test_the_checker_changes_nothing(path: Path) -> None:
    flip(segment(path, 2, "lnc"), 7)
    segment(path, 1, "idx").unlink()

    def everything() -> dict[str, bytes]:
        return {
            str(p): p.read_bytes()
            for p in path.rglob("*")
            if p.is_file() and p.name != "lock"
        }

    before = everything()
    assert len(check(path)) == 2
    assert everything() == before


def test_a_store_after_retention_is_clean(path: Path) -> None:
    with open_store(path) as store:
        store.topic(1).drop_before(Point(900, 20, 1))
    assert check(path) == []


# Small stages.


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Three stages in `stages.log`, one of which is over."""
    path = tmp_path / "data"
    with open_store(path) as store:
        for topic in ("one", "two"):
            stage(store, topic, "w", 1, batch("a"))
        commit(store, "three", "v", 1, batch("b"))
    check_clean(path)
    return path


def test_the_log_of_small_stages_is_damaged(small: Path) -> None:
    log = small / "stages.log"
    good = log.read_bytes()
    at = good.index(batch("a"))
    flip(log, at + 7)
    [found] = check(small)
    assert found.startswith("damage: stages.log [") and "checksum differs" in found
    log.write_bytes(good)
    flip(log, at - 1)
    [found] = check(small)
    assert found.endswith("index rows are damaged")
    log.write_bytes(good)
    flip(log, good.index(b"LSSE"))
    [found] = check(small)
    assert found == f"damage: stages.log [{HEAD_BYTES}, {len(good)}): not an entry"
    log.write_bytes(good)
    flip(log, 9)
    assert "its head is damaged; the next opening writes it anew" in check(small)[0]
    log.write_bytes(good[:-1])
    assert "not an entry" in check(small)[0]
    log.write_bytes(b"")
    assert "0 bytes are no log of stages: the stages in it are gone" in check(small)[0]


def test_the_log_of_small_stages_after_a_crash(small: Path) -> None:
    log = small / "stages.log"
    good = log.read_bytes()
    log.write_bytes(good + b"LSSE")
    assert check(small) == [
        f"note: stages.log [{len(good)}, {len(good) + 4}): an entry is not finished; "
        "the next opening cuts it off"
    ]
    log.write_bytes(good)
    flip(log, 20)
    assert check(small) == [
        "note: stages.log: a mark is not finished; the next opening sets it"
    ]
    log.write_bytes(good[:8] + (9).to_bytes(4, "little") + b"????" + good[16:])
    assert "its head is damaged" in check(small)[0]
