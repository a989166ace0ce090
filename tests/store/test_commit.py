"""A commit: its plan, how stages get into topics, and what a crash leaves of it."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from lance_spark.errors import (
    CommitUnknown,
    Corrupt,
    DamagedFile,
    StoreError,
    StoreReadOnly,
    StoreWriteFailed,
)
from lance_spark.model import Retention
from lance_spark.store import (
    CommitStatus,
    CommittedRange,
    Fsync,
    NamedStage,
    Point,
    Severity,
    Store,
    StoreConfig,
    check_store,
)
from lance_spark.store.commit import is_same_commit
from lance_spark.store.decisions import (
    Commit,
    CommitPlan,
    History,
    Job,
    TopicPlan,
    complete,
    decode_begin,
    encode_begin,
    encode_done,
    encode_undone,
)
from lance_spark.store.document import FIRST_STAGE_ID
from lance_spark.store.entrylog import (
    HEAD_BYTES,
    DurableMark,
    encode_mark,
    mark_position,
)
from lance_spark.store.files import OsFiles, read_file, remove_tree
from lance_spark.store.journal import (
    JournalContent,
    JournalEntry,
    OpenDecisions,
    encode_entry,
    parse_journal,
)
from lance_spark.store.log import Tail
from lance_spark.wire.lwp import scan
from tests.each import each
from tests.store.disk import DiskFiles
from tests.store.jobs import (
    commit,
    content,
    encode_journal,
    hooked,
    kill,
    reopen,
    stage,
)
from tests.store.kit import (
    IN_FILES,
    ROOT,
    SMALL,
    batch,
    check_clean,
    damage,
    open_store,
)

ONE = TopicPlan(
    1,
    "one",
    created=False,
    overwrite=True,
    start=Point(100, 10, 2),
    end=Tail(400, 40, 5, 50, 3, 6),
    stages=(2**31, 2**31 + 2),
    bytes=70,
)
TWO = TopicPlan(
    2,
    "two",
    created=True,
    overwrite=False,
    start=Point(),
    end=Tail(0, 0, -1, 0, 0, 0),
    stages=(2**31 + 1,),
    bytes=30,
)
PLAN = CommitPlan(Job("w", 7), 1_700, 2**31 + 9, (ONE, TWO))


def test_a_plan_comes_back_from_the_journal() -> None:
    entry = json.loads(json.dumps(encode_begin(PLAN)))
    assert entry["kind"] == "begin"
    assert decode_begin(entry) == PLAN


def test_a_plan_of_another_version() -> None:
    for name in encode_begin(PLAN):
        entry = {k: v for k, v in encode_begin(PLAN).items() if k != name}
        if name != "kind":
            with pytest.raises(StoreError, match="of another version is begun"):
                decode_begin(entry)
    odd = {**encode_begin(PLAN), "topics": [{"later": "invention"}]}
    with pytest.raises(StoreError, match="of another version is begun"):
        decode_begin(odd)


def test_what_a_topic_gains() -> None:
    assert ONE.range == CommittedRange(1, "one", 400, 470)
    assert ONE.new_start == Point(400, 40, 6)
    assert TWO.range == CommittedRange(2, "two", 0, 30)


def test_the_stages_of_a_plan() -> None:
    assert PLAN.stages == {2**31, 2**31 + 1, 2**31 + 2}


def test_what_is_remembered_of_it() -> None:
    assert PLAN.commit == Commit(
        Job("w", 7),
        1_700,
        (ONE.range, TWO.range),
        2**31 + 9,
        frozenset({"one"}),
    )


def test_which_repetition_is_the_same() -> None:
    last, one = PLAN.commit, frozenset({"one"})
    both, none = frozenset({"one", "two"}), frozenset[str]()
    assert is_same_commit(last, both, one, whole=True)
    assert is_same_commit(last, none, one, whole=False)
    assert not is_same_commit(last, frozenset({"three"}), one, whole=True)
    assert not is_same_commit(last, none, none, whole=False)
    assert not is_same_commit(last, none, both, whole=False)
    # Fewer topics are other topics, unless stages are missing that would tell.
    assert is_same_commit(last, one, one, whole=False)
    assert not is_same_commit(last, one, one, whole=True)


def make_history(rng: random.Random) -> list[JournalEntry]:
    """Jobs of some writers, side by side; each is begun until it is done."""
    entries: list[JournalEntry] = []
    sequences = dict.fromkeys("uvw", 0)
    begun: dict[str, CommitPlan] = {}
    for at_ns in range(rng.randrange(1, 14)):
        writer = rng.choice("uvw")
        plan = begun.pop(writer, None)
        if plan is None:
            # The clock may stand still: a plan may be equal to an earlier one.
            job = Job(writer, sequences[writer])
            begun[writer] = CommitPlan(job, at_ns // 4, FIRST_STAGE_ID, ())
            entries.append(encode_begin(begun[writer]))
        elif rng.random() < 0.4:
            entries.append(encode_undone(plan.job))
        else:
            entries.append(encode_done(plan.commit))
            sequences[writer] += 1
    return entries


def fold(entries: list[JournalEntry]) -> tuple[dict[str, Commit], set[Job]]:
    writers = History()
    writers.replay(entries)
    return writers._last, set(writers.pending)


@each("seed", range(100))
def test_no_damaged_entry_changes_what_was_committed(seed: int) -> None:
    """The mark makes up for it, or a commit that is begun is known to be unreadable."""
    rng = random.Random(seed)
    history = make_history(rng)
    last, pending = fold(history)
    for marked in range(len(history) + 1):
        data = encode_journal(*history, marked=marked)
        for number in range(marked):
            parsed = spoil(data, *history, number=number)
            entry = history[number]
            job = Job(entry["writer"], entry["sequence"])
            begins = [e for e in history if e["kind"] == "begin" and is_of(e, job)]
            if job in pending and entry is begins[-1]:
                assert parsed.is_begun_unread, (marked, number)
            else:
                assert not parsed.is_begun_unread, (marked, number)
                assert fold(complete(parsed)) == (last, pending), (marked, number)


def is_of(entry: JournalEntry, job: Job) -> bool:
    return (entry["writer"], entry["sequence"]) == job


def spoil(data: bytes, *entries: JournalEntry, number: int) -> JournalContent:
    """Damage the last byte of one entry."""
    sizes = [len(encode_entry(entry)) for entry in entries[: number + 1]]
    spoiled = bytearray(data)
    spoiled[HEAD_BYTES + sum(sizes) - 1] ^= 1
    return parse_journal(bytes(spoiled))


# What becomes of a commit that a crash has interrupted.


COMMITTED, REPEATED, _ = CommitStatus


class Crash(BaseException):
    """The process is gone."""


def crash(
    files: DiskFiles,
    operation: str,
    part: str,
    count: int = 1,
    *,
    config: StoreConfig | None = None,
) -> tuple[DiskFiles, list[NamedStage]]:
    """Run a commit to two topics up to an operation; give the disk that is left."""
    store = open_store(files=files, config=config)
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
    left, named = crash(files, "rmdir", "stages", count=2, config=IN_FILES)
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
    left, named = crash(files, "link", "segments/2/", config=IN_FILES)
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


# How a stage's segments become part of a topic.


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
    with open_store(files=files, config=IN_FILES) as store:
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
