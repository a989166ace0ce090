"""Damage on disk: nothing else is lost, the damaged range answers an error, and the
checker names it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lance_spark.errors import Corrupt, DamagedFile
from lance_spark.store import (
    CommitStatus,
    NamedStage,
    Severity,
    Store,
    StoreConfig,
    check_store,
)
from lance_spark.store.entrylog import HEAD_BYTES
from lance_spark.store.format import HEADER_BYTES, ROW_BYTES
from lance_spark.wire.lwp import scan
from tests.store.kit import (
    IN_FILES,
    SMALL,
    batch,
    check_clean,
    corrupt_ranges,
    damage,
    open_store,
    read_all,
)

# One batch of 20 records of 45 bytes; a segment holds one of them.
BATCH_BYTES = 20 * 45
TAGS = [f"batch{n}" for n in range(5)]


def data_of(tags: list[str]) -> bytes:
    return b"".join(batch(tag, 20) for tag in tags)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A store with one topic of five segments, one batch each, and a commit."""
    with open_store(tmp_path) as store:
        store.create_topic("one")
        for tag in TAGS:
            store.append(1, batch(tag, 20))
        stage = store.open_stage("two", "w", 1)
        store.append_stage(stage, 1, batch("staged"))
        store.commit_stages("w", 1, [NamedStage(stage, 1, len(batch("staged")))])
        store.commit_offset(1, 1, 45)
    check_clean(tmp_path)
    return tmp_path


def segment_file(path: Path, number: int, ending: str, topic: int = 1) -> Path:
    (file,) = (path / "segments" / str(topic)).glob(f"{number}_*.{ending}")
    return file


def flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 0x10
    file.write_bytes(content)


def found(path: Path, severity: Severity = Severity.DAMAGE) -> list[str]:
    findings = check_store(path, framing=scan)
    return [str(f) for f in findings if f.severity is severity]


def test_a_flipped_bit_in_an_old_segment(filled: Path) -> None:
    flip(segment_file(filled, 2, "lnc"), 123)
    start, end = 2 * BATCH_BYTES, 3 * BATCH_BYTES
    (finding,) = found(filled)
    assert f"segments/1 [{start}, {end})" in finding and "checksum" in finding
    with open_store(filled) as store:
        log = store.topic(1).log
        assert corrupt_ranges(log) == [(start, end)]
        assert store.read(1, 0, 10**6).read() == data_of(TAGS[:1])
        assert store.read(1, end, 10**6).read() == data_of(TAGS[3:4])
        with pytest.raises(Corrupt) as caught:
            store.read(1, start + 50, 10)
        assert (caught.value.start, caught.value.end) == (start, end)
        store.append(1, batch("more"))
        assert store.read(1, 5 * BATCH_BYTES, 10**6).read() == batch("more")
    assert found(filled) == [finding]


def test_a_flipped_bit_behind_other_batches_of_its_segment(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.create_topic("one")
        for tag in ("a", "b", "c"):
            store.append(1, batch(tag))
    flip(segment_file(tmp_path, 0, "lnc"), 200)
    with open_store(tmp_path) as store:
        assert store.read(1, 0, 10**6).read() == batch("a")
        assert corrupt_ranges(store.topic(1).log) == [(135, 270)]
        assert store.read(1, 270, 10**6).read() == batch("c")


def test_a_flipped_bit_in_the_last_batch_of_a_killed_store(tmp_path: Path) -> None:
    """It was acknowledged: it is kept as damage, not cut off as a torn write."""
    live, killed = tmp_path / "live", tmp_path / "killed"
    with open_store(live) as store:
        store.create_topic("one")
        store.append(1, batch("a"))
        store.append(1, batch("b"))
        shutil.copytree(live, killed)
    flip(segment_file(killed, 0, "lnc"), 140)
    with open_store(killed) as store:
        assert store.view(1).end.offset == 270
        assert corrupt_ranges(store.topic(1).log) == [(135, 270)]
        assert store.append(1, batch("c")).start == 270
    assert len(found(killed)) == 1


@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_lost_index_is_rebuilt(filled: Path, number: int) -> None:
    segment_file(filled, number, "idx").unlink()
    assert any("missing" in finding for finding in found(filled))
    with open_store(filled) as store:
        assert read_all(store.topic(1).log) == data_of(TAGS)
        assert damage(store.findings) == []
        assert any("a new one was made" in str(f) for f in store.findings)
        assert store.view(1).locate_record(50).offset == 50 * 45
    check_clean(filled)


def test_all_indexes_lost(filled: Path) -> None:
    for number in range(5):
        segment_file(filled, number, "idx").unlink()
    with open_store(filled) as store:
        assert read_all(store.topic(1).log) == data_of(TAGS)
        assert store.view(1).end.record == 100
    check_clean(filled)


@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("size", [0, 60, HEADER_BYTES, HEADER_BYTES + ROW_BYTES + 7])
def test_a_cut_index_is_rebuilt(filled: Path, number: int, size: int) -> None:
    index = segment_file(filled, number, "idx")
    index.write_bytes(index.read_bytes()[:size])
    assert found(filled)
    with open_store(filled) as store:
        assert read_all(store.topic(1).log) == data_of(TAGS)
        assert damage(store.findings) == []
    check_clean(filled)


@pytest.mark.parametrize("number", [1, 4])
def test_a_foreign_index_is_rebuilt(filled: Path, number: int) -> None:
    foreign = segment_file(filled, 0, "idx")
    shutil.copy(foreign, segment_file(filled, number, "idx"))
    assert any("other data" in finding for finding in found(filled))
    with open_store(filled) as store:
        assert read_all(store.topic(1).log) == data_of(TAGS)
    check_clean(filled)


def test_an_index_of_another_store_is_rebuilt(filled: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    clock = iter(range(10**18, 10**19, 10**9)).__next__
    with open_store(other, clock_ns=clock) as store:
        store.create_topic("one")
        store.append(1, batch("other", 20))
    shutil.copy(segment_file(other, 0, "idx"), segment_file(filled, 0, "idx"))
    assert any("other data" in finding for finding in found(filled))
    with open_store(filled) as store:
        assert read_all(store.topic(1).log) == data_of(TAGS)
    check_clean(filled)


@pytest.mark.parametrize("row", [0, 3])
@pytest.mark.parametrize("number", [2, 4])
def test_a_flipped_bit_in_an_index_row(filled: Path, number: int, row: int) -> None:
    flip(segment_file(filled, number, "idx"), HEADER_BYTES + row * ROW_BYTES + 3)
    assert any(f"row {row} is damaged" in finding for finding in found(filled))
    with open_store(filled) as store:
        assert read_all(store.topic(1).log) == data_of(TAGS)
        assert any("rebuilt" in str(f) for f in store.findings)
    check_clean(filled)


def test_index_rows_damaged_between_sound_ones(tmp_path: Path) -> None:
    """Only what is damaged is made anew: the others keep checksum and time."""
    with open_store(tmp_path, clock_ns=iter(range(10**9)).__next__) as store:
        store.create_topic("one")
        for tag in "abcde":
            store.append(1, batch(tag, records=1))
        times = [store.view(1).locate_record(n).append_time_ns for n in range(5)]
    flip(segment_file(tmp_path, 0, "idx"), HEADER_BYTES + 2 * ROW_BYTES)
    with open_store(tmp_path) as store:
        view = store.view(1)
        after = [view.locate_record(n).append_time_ns for n in range(5)]
        assert after == [times[0], times[1], times[1], times[3], times[4]]
    check_clean(tmp_path)


def test_a_lost_index_and_bytes_that_are_no_records(filled: Path) -> None:
    """What can't be framed any more is damage; what is before it is not."""
    segment_file(filled, 2, "idx").unlink()
    data = segment_file(filled, 2, "lnc")
    content = bytearray(data.read_bytes())
    content[10 * 45] = 0
    data.write_bytes(content)
    start = 2 * BATCH_BYTES + 10 * 45
    with open_store(filled) as store:
        assert corrupt_ranges(store.topic(1).log) == [(start, 3 * BATCH_BYTES)]
        assert store.view(1).end.offset == 5 * BATCH_BYTES
    assert any(f"[{start}, {3 * BATCH_BYTES})" in finding for finding in found(filled))


@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_cut_data_file(filled: Path, number: int) -> None:
    data = segment_file(filled, number, "lnc")
    data.write_bytes(data.read_bytes()[:100])
    start = number * BATCH_BYTES
    assert found(filled)
    with open_store(filled) as store:
        ranges = corrupt_ranges(store.topic(1).log)
        assert ranges[-1][1] == start + BATCH_BYTES
        assert start <= ranges[0][0] <= start + 100
        assert store.view(1).end.offset == 5 * BATCH_BYTES
        # The offsets stay taken.
        assert store.append(1, batch("more")).start == 5 * BATCH_BYTES
    assert found(filled)
    with open_store(filled) as store:
        assert store.read(1, 5 * BATCH_BYTES, 10**6).read() == batch("more")


@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_lost_data_file(filled: Path, number: int) -> None:
    segment_file(filled, number, "lnc").unlink()
    start = number * BATCH_BYTES
    assert any("missing" in finding for finding in found(filled))
    with open_store(filled) as store:
        assert damage(store.findings)
        ranges = corrupt_ranges(store.topic(1).log)
        assert ranges == [(start, start + BATCH_BYTES)]
        others = [tag for n, tag in enumerate(TAGS) if n != number]
        assert all(batch(tag, 20) in everything(store) for tag in others)
    assert found(filled)


def everything(store: Store) -> bytes:
    """Read all that can be read of topic 1."""
    view, parts, offset = store.view(1), [], 0
    while offset < view.end.offset:
        try:
            piece = view.read(offset, 10**6)
            parts.append(piece.read())
            offset = piece.end
        except Corrupt as error:
            offset = error.end
    return b"".join(parts)


def test_a_lost_segment(filled: Path) -> None:
    for ending in ("lnc", "idx"):
        segment_file(filled, 2, ending).unlink()
    start, end = 2 * BATCH_BYTES, 3 * BATCH_BYTES
    assert any(f"[{start}, {end})" in finding for finding in found(filled))
    with open_store(filled) as store:
        assert corrupt_ranges(store.topic(1).log) == [(start, end)]


def test_a_lost_journal(filled: Path) -> None:
    (filled / "journal.log").unlink()
    assert any("journal.log: missing" in finding for finding in found(filled))
    with open_store(filled) as store:
        assert read_all(store.topic(1).log) == data_of(TAGS)
        assert read_all(store.topic(2).log) == batch("staged")
        assert any("earlier commits are forgotten" in str(f) for f in store.findings)
        stage = store.open_stage("two", "v", 1)
        store.append_stage(stage, 1, batch("new"))
        store.commit_stages("v", 1, [NamedStage(stage, 1, len(batch("new")))])
    assert any("it was lost" in finding for finding in found(filled))


@pytest.mark.parametrize("position", [3, 30, -5])
def test_a_damaged_journal(filled: Path, position: int) -> None:
    """Whatever is forgotten, the committed records stay."""
    journal = filled / "journal.log"
    flip(journal, position % journal.stat().st_size)
    with open_store(filled) as store:
        assert read_all(store.topic(1).log) == data_of(TAGS)
        assert read_all(store.topic(2).log) == batch("staged")
        assert store.findings


def test_a_lost_end_of_a_commit_does_not_undo_what_came_after(filled: Path) -> None:
    """Only `begin` is left in the journal, but somebody has written behind it."""
    with open_store(filled) as store:
        store.append(2, batch("after"))
    journal = filled / "journal.log"
    flip(journal, journal.stat().st_size - 5)
    with open_store(filled) as store:
        assert read_all(store.topic(2).log) == batch("staged") + batch("after")
        result = store.commit_stages("w", 1, [])
        assert result.status is CommitStatus.REPEATED
    check_clean(filled)


@pytest.mark.parametrize(
    "harm",
    [Path.unlink, lambda p: p.write_text("{"), lambda p: p.write_text('{"format": 1}')],
    ids=["lost", "cut", "empty"],
)
def test_lost_metadata_of_a_topic(filled: Path, harm: Callable[[Path], None]) -> None:
    harm(filled / "segments" / "1" / "metadata.json")
    said = found(filled)
    assert said
    with open_store(filled) as store:
        with pytest.raises(DamagedFile, match=r"topic 1 is closed: .*metadata.json"):
            store.topic(1)
        assert damage(store.findings)
        assert read_all(store.topic(2).log) == batch("staged")
    assert found(filled) == said


def test_a_lost_identity(filled: Path) -> None:
    (filled / "store.json").unlink()
    assert any("store.json" in finding for finding in found(filled))
    with open_store(filled) as store:
        assert read_all(store.topic(1).log) == data_of(TAGS)
        assert damage(store.findings)
        # Ids go on far above those that may have been given out.
        assert store.create_topic("new").metadata.id > 1000
    check_clean(filled)


def test_damaged_consumer_offsets(filled: Path) -> None:
    flip(filled / "consumers.log", HEAD_BYTES + 4)
    assert any("consumers.log" in finding for finding in found(filled))
    with open_store(filled) as store:
        assert store.committed_offset(1, 1) is None
        assert damage(store.findings)
    check_clean(filled)


def test_a_damaged_stage_is_refused_and_stays(filled: Path) -> None:
    data = batch("large", 60)
    with open_store(filled) as store:
        stage = store.open_stage("two", "w", 2)
        store.append_stage(stage, 1, data)
    (file,) = (filled / "stages" / str(stage)).glob("*.lnc")
    flip(file, 50)
    assert any(f"stages/{stage}" in finding for finding in found(filled))
    with open_store(filled) as store:
        store.commit_stages("w", 2, [NamedStage(stage, 1, len(data))])
        # Adopted as it was, and never shown as sound.
        assert corrupt_ranges(store.topic(2).log) == [(135, 135 + len(data))]
    assert found(filled)


@pytest.mark.parametrize("config", [StoreConfig(**SMALL), IN_FILES])  # type: ignore[arg-type]
def test_a_small_damaged_stage_is_not_committed(
    filled: Path, config: StoreConfig
) -> None:
    data = batch("small")
    with open_store(filled, config=config) as store:
        stage = store.open_stage("two", "w", 2)
        store.append_stage(stage, 1, data)
    if config is IN_FILES:
        (file,) = (filled / "stages" / str(stage)).glob("*.lnc")
        flip(file, 50)
    else:
        file = filled / "stages.log"
        flip(file, file.read_bytes().index(data) + 50)
    assert any("the checksum differs" in text for text in found(filled))
    with open_store(filled, config=config) as store:
        with pytest.raises(Exception, match="undone"):
            store.commit_stages("w", 2, [NamedStage(stage, 1, len(data))])
        assert read_all(store.topic(2).log) == batch("staged")
        store.abort_stages("w", 2)
    check_clean(filled)
