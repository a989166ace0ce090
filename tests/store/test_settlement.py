"""What becomes of a commit that a crash has interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from lance_spark.columnar.scan import scan
from lance_spark.errors import CommitUnknown, Corrupt, DamagedFile, StoreReadOnly
from lance_spark.model import Retention
from lance_spark.store import CommitStatus, NamedStage, Severity, Store, check_store
from lance_spark.store.entrylog import DurableMark, encode_mark, mark_position
from lance_spark.store.files import read_file, remove_tree
from lance_spark.store.journal import OpenDecisions, parse_journal
from tests.store.disk import DiskFiles
from tests.store.jobs import content, hooked, kill, stage
from tests.store.kit import ROOT, batch, check_clean, damage, open_store

COMMITTED, REPEATED, _ = CommitStatus


class Crash(BaseException):
    """The process is gone."""


def crash(
    files: DiskFiles, operation: str, part: str, count: int = 1
) -> tuple[DiskFiles, list[NamedStage]]:
    """Run a commit to two topics up to an operation; give the disk that is left."""
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("0"))
    named = [
        stage(store, "one", "w", 1, batch("a")),
        stage(store, "two", "w", 1, batch("b", 30)),
    ]
    left: list[DiskFiles] = []
    seen = 0

    def hook(tried: str, name: str) -> None:
        nonlocal seen
        if tried == operation and part in name:
            seen += 1
            if seen == count and not left:
                left.append(DiskFiles(files.disk.killed()))

    with hooked(files, hook):
        store.commit_stages("w", 1, named, ["one"])
    return left[0], named


def notes(store: Store) -> list[str]:
    return [f.text for f in store.findings if f.severity is Severity.NOTE]


def assert_done(left: DiskFiles, named: list[NamedStage], text: str) -> None:
    with open_store(files=left) as store:
        assert damage(store.findings) == []
        assert any(text in note for note in notes(store)), notes(store)
        assert store.commit_stages("w", 1, named, ["one"]).status is REPEATED
        assert content(store, "one") == batch("a")
        assert content(store, "two") == batch("b", 30)
        assert store.stages() == []
    check_clean(files=left)


def test_before_the_plan_nothing_has_happened(files: DiskFiles) -> None:
    left, named = crash(files, "pwrite", "journal")
    with open_store(files=left) as store:
        assert store.findings == []
        assert content(store, "one") == batch("0")
        assert store.find_topic("two") is None
        assert store.commit_stages("w", 1, named, ["one"]).status is COMMITTED
    check_clean(files=left)


@pytest.mark.parametrize(
    ("operation", "part"),
    [
        ("sync", "journal"),
        ("mkdir", "segments/2"),
        ("pwrite", "segments/1/"),
        ("create", "segments/1/1_"),
        ("link", "segments/2/"),
        ("replace", "segments/1/"),
        ("sync_dir", "segments/2"),
    ],
)
def test_behind_the_plan_it_is_finished(
    files: DiskFiles, operation: str, part: str
) -> None:
    left, named = crash(files, operation, part)
    found = check_store(ROOT, framing=scan, files=left)
    assert damage(found) == []
    assert "a commit is begun; the next opening ends it" in {f.text for f in found}
    assert_done(left, named, "commit 1 of 'w' was finished")


def test_before_done_is_written_it_is_finished(files: DiskFiles) -> None:
    left, named = crash(files, "pwrite", "journal", count=2)
    assert_done(left, named, "commit 1 of 'w' was finished")


@pytest.mark.parametrize("part", [0, 1, 2])
def test_topics_that_are_made_are_not_made_again(files: DiskFiles, part: int) -> None:
    """However many they are: else a kill costs more than the commit has."""
    names = [f"t{n}" for n in range(40)]
    store = open_store(files=files)
    left: list[DiskFiles] = []
    again: list[str] = []

    def hook(tried: str, name: str) -> None:
        # In front of `begin` and of its mark, in the middle, in front of `done`.
        is_entry = tried == "pwrite" and "journal" in name
        if is_entry or (tried == "mkdir" and name.endswith("/20")):
            left.append(DiskFiles(files.disk.killed()))

    with hooked(files, hook):
        store.commit_stages("w", 1, [], names)
    found = left[{0: 0, 1: 2, 2: 3}[part]]
    with hooked(found, lambda tried, name: again.append(tried)):
        reopened = open_store(files=found)
    with reopened as store:
        assert damage(store.findings) == []
        there = [topic.metadata.name for topic in store.topics()]
        assert there == ([] if part == 0 else names)
        status = store.commit_stages("w", 1, [], names).status
        assert status is (COMMITTED if part == 0 else REPEATED)
    check_clean(files=found)
    # What opening costs anyway, and what the commit had not done yet.
    made = {0: 0, 1: 21, 2: 0}[part]
    assert again.count("mkdir") == made
    assert again.count("sync") <= 2 * made + 10
    assert again.count("sync_dir") <= made + 10


def without_done(files: DiskFiles) -> None:
    """Lose the journal's entry that says that the commit is done."""
    number = files.disk.seen["/data/journal.log"]
    journal = files.disk.inodes[number].seen
    at = journal.rindex(b"LSJE")
    assert b'"done"' in journal[at:]
    files.disk.inodes[number].truncate(at)
    # As if the process had died before the entry: the mark of `begin` is the last.
    standing = OpenDecisions()
    for entry in parse_journal(journal[:at]).entries:
        standing.add(entry)
    begun = DurableMark(at, 100, standing.state)
    for mark in (begun, begun._replace(turn=101)):
        files.disk.inodes[number].write(mark_position(mark), encode_mark(mark))


def test_its_stages_are_gone_and_its_bytes_are_there(files: DiskFiles) -> None:
    left, named = crash(files, "rmdir", "stages", count=2)
    for one in named:
        remove_tree(left, ROOT / "stages" / str(one.id))
    without_done(left)
    assert_done(left, named, "commit 1 of 'w' was carried out")


def test_the_same_without_an_overwrite(files: DiskFiles) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("0"))
    named = [
        stage(store, "one", "w", 1, batch("a")),
        stage(store, "two", "w", 1, batch("b", 30)),
    ]
    store.commit_stages("w", 1, named)
    without_done(files)
    with kill(store) as again:
        assert notes(again) == ["commit 1 of 'w' was carried out"]
        assert content(again, "one") == batch("0") + batch("a")
        assert content(again, "two") == batch("b", 30)
        assert again.commit_stages("w", 1, named).status is REPEATED
    check_clean(files=again._files)


def test_somebody_has_written_behind_it(files: DiskFiles) -> None:
    store = open_store(files=files)
    named = stage(store, "one", "w", 1, batch("a"))
    store.commit_stages("w", 1, [named])
    without_done(files)
    store.append(1, batch("z"))
    with kill(store) as again:
        assert damage(again.findings) == []
        assert content(again, "one") == batch("a") + batch("z")
        assert again.commit_stages("w", 1, []).status is REPEATED
    check_clean(files=again._files)


def test_retention_has_dropped_what_it_wrote(files: DiskFiles) -> None:
    store = open_store(files=files)
    store.create_topic("one", retention=Retention(max_bytes=1))
    store.append(1, batch("0"))
    store.commit_stages("w", 1, [stage(store, "one", "w", 1, batch("a", 30))])
    without_done(files)
    for tag in "xyz":
        store.append(1, batch(tag, 30))
    store.maintain()
    with kill(store) as again:
        assert damage(again.findings) == []
        assert content(again, "one") == batch("z", 30)
        assert again.commit_stages("w", 1, []).status is REPEATED
    check_clean(files=again._files)


def test_a_stage_is_missing(files: DiskFiles) -> None:
    """Nobody can carry it out any more: nothing of it stays, and that is said."""
    left, named = crash(files, "link", "segments/2/")
    directory = ROOT / "stages" / str(named[1].id)
    remove_tree(left, directory)
    with open_store(files=left) as store:
        [first, *_] = damage(store.findings)
        assert "commit 1 of 'w' is undone: its stages are missing" in {
            finding.text for finding in damage(store.findings)
        }
        assert first.where in ("journal.log", f"stages/{named[1].id}")
        assert content(store, "one") == batch("0")
        assert store.find_topic("two") is None
        store.append(1, batch("z"))
    with open_store(files=left) as store:
        assert content(store, "one") == batch("0") + batch("z")


def test_the_file_of_a_stage_is_damaged(files: DiskFiles) -> None:
    """The journal says what the stage is for: the commit is finished."""
    left, named = crash(files, "link", "segments/2/")
    left.open(ROOT / "stages" / str(named[1].id) / "stage.json").truncate(0)
    assert_done(left, named, "commit 1 of 'w' was finished")


def test_the_metadata_of_a_target_is_damaged_as_well(files: DiskFiles) -> None:
    """The commit waits with all its topics, and is finished once that is mended."""
    left, named = crash(files, "link", "segments/2/")
    path = ROOT / "segments/1/metadata.json"
    good = read_file(left, path) or b""
    left.open(path).truncate(0)
    for _ in range(2):
        with open_store(files=left) as store:
            assert damage(store.findings) != []
            for name in ("one", "two"):
                with pytest.raises(DamagedFile, match="commit 1 of 'w' waits"):
                    store.find_topic(name)
            with pytest.raises(DamagedFile):
                store.append(1, batch("x"))
            assert store.find_topic("another") is None
            other = store.create_topic(f"other-{_}").metadata.id
            store.append(other, batch("y"))
            with pytest.raises(StoreReadOnly, match="waits") as refused:
                store.commit_stages("v", 1, [], [f"other-{_}"])
            assert not isinstance(refused.value, CommitUnknown)
            # Its own writer must not take it for one that was refused.
            with pytest.raises(CommitUnknown, match="waits"):
                store.commit_stages("w", 1, named, ["one"])
            with pytest.raises(StoreReadOnly):
                store.maintain()
    left.open(path).pwrite(good, 0)
    assert_done(left, named, "commit 1 of 'w' was finished")


def stage_file(files: DiskFiles, named: NamedStage, ending: str) -> Path:
    directory = ROOT / "stages" / str(named.id)
    [name] = [e.name for e in files.list(directory) if e.name.endswith(ending)]
    return directory / name


def assert_undone(left: DiskFiles, named: list[NamedStage], reason: str) -> None:
    """The store opens all the same, without the commit, and says why."""
    with open_store(files=left) as store:
        texts = [finding.text for finding in damage(store.findings)]
        [text] = [text for text in texts if text.startswith("commit 1 of 'w' is")]
        assert reason in text
        assert content(store, "one") == batch("0")
        assert store.find_topic("two") is None
        assert {found.metadata.id for found in store.stages()} == {n.id for n in named}
        store.append(1, batch("z"))
    with open_store(files=left) as store:
        assert not any("commit 1" in finding.text for finding in store.findings)
        assert content(store, "one") == batch("0") + batch("z")


def test_a_stage_of_it_that_is_copied_is_damaged(files: DiskFiles) -> None:
    left, named = crash(files, "link", "segments/2/")
    left.open(stage_file(left, named[0], ".lnc")).pwrite(b"?", 20)
    assert_undone(left, named, "the checksum differs")


def test_a_stage_of_it_has_lost_bytes_and_index(files: DiskFiles) -> None:
    left, named = crash(files, "link", "segments/2/")
    left.unlink(stage_file(left, named[1], ".idx"))
    left.open(stage_file(left, named[1], ".lnc")).truncate(100)
    assert_undone(left, named, "hold 90 bytes, not 1350")


def test_a_stage_of_it_that_is_adopted_is_damaged(files: DiskFiles) -> None:
    """Its bytes are not looked at; whoever reads them is told."""
    left, named = crash(files, "link", "segments/2/")
    left.open(stage_file(left, named[1], ".lnc")).pwrite(b"?", 20)
    with open_store(files=left) as store:
        assert content(store, "one") == batch("a")
        with pytest.raises(Corrupt, match="the checksum differs"):
            content(store, "two")
