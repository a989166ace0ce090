"""Every bit of every small file: no flip is taken for the truth.

A store has topics, stages, commits and offsets. Each bit of its small files is flipped
in a copy, which is then checked and opened. Nothing that was acknowledged may be lost,
moved or deleted; what can't be known any more is closed or left out, and both the
opening and `check` say so. `LANCE_CRASH_ROUNDS` (`make crash`) tries all bits; else a
sample that moves on from bit to bit is tried.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lance_spark.errors import DamagedFile, StageUnknown, StoreError, UnknownTopic
from lance_spark.model import Retention
from lance_spark.store import Finding, NamedStage, Store, View, check_store
from lance_spark.store.document import decode_document
from lance_spark.store.entrylog import HEAD_BYTES
from lance_spark.store.files import RESERVE, read_file, replace_file
from lance_spark.store.repair import Answers, repairing
from lance_spark.store.stage import decode_stage, encode_stage
from lance_spark.store.stagelog import parse_stage_log
from lance_spark.wire.lwp import scan
from tests.store.disk import Disk, DiskFiles
from tests.store.jobs import commit, hooked, refusing, stage
from tests.store.kit import ROOT, batch, damage, open_store, read_all

pytestmark = pytest.mark.crash

# A stride that shares nothing with 8: the sample meets every bit of a byte.
STRIDE = 1 if "LANCE_CRASH_ROUNDS" in os.environ else 97
KEPT = {1: "one", 2: "two", 3: "three"}


@dataclass(frozen=True)
class Known:
    """What a store holds, as far as it can be seen."""

    topics: dict[int, tuple[str, int, bytes]]
    offsets: dict[tuple[int, int], int]
    writers: dict[str, int]
    stages: dict[int, tuple[str, str, int, int]]


def look(store: Store) -> Known:
    topics = {
        t.metadata.id: (
            t.metadata.name,
            View.of(t.log).start.offset,
            read_all(t.log),
        )
        for t in store.topics(default=True)
    }
    last = store._decisions.history._last
    stages = {
        s.metadata.id: (s.metadata.topic, *s.metadata.job, s.size)
        for s in store.stages()
    }
    writers = {writer: commit.job.sequence for writer, commit in last.items()}
    return Known(topics, {**store.consumer_offsets()}, writers, stages)


def segments(files: DiskFiles) -> set[str]:
    return {name for name in files.disk.seen if name.endswith((".lnc", ".idx"))}


def fill(files: DiskFiles) -> Store:
    store = open_store(files=files)
    store.create_topic("one", retention=Retention(0, 10_000_000))
    store.create_topic("two", auth={"mtls_enabled": True})
    for tag in "abc":
        store.append(1, batch(tag, 20))
    store.append(0, batch("default"))
    store.append(2, batch("d"))
    commit(store, "three", "w", 1, batch("t"))
    commit(store, "one", "v", 5, batch("u"))
    commit(store, "three", "w", 2, batch("v"))
    stage(store, "two", "x", 1, batch("s", 12))
    stage(store, "two", "x", 1, batch("i"))
    store.commit_offset(7, 1, 45)
    store.commit_offset(8, 2, 90)
    return store


@pytest.fixture(scope="module")
def filled() -> DiskFiles:
    files = DiskFiles(Disk())
    fill(files).close()
    return files


def small_files(files: DiskFiles) -> list[str]:
    return sorted(
        name
        for name, number in files.disk.seen.items()
        if number and not name.endswith((".lnc", ".idx"))
    )


def flips(files: DiskFiles, name: str) -> Iterator[tuple[int, DiskFiles]]:
    size = len(files.disk.inodes[files.disk.seen[name]].seen)
    # The reserve is nothing but room. It is larger than all the others, and nothing
    # reads its bytes: some dozens of its bits are enough.
    stride = 97 * STRIDE if name == f"/data/{RESERVE}" else STRIDE
    for bit in range(len(name) % stride, size * 8, stride):
        flipped = DiskFiles(files.disk.clone())
        inode = flipped.disk.inodes[flipped.disk.seen[name]]
        inode.seen[bit // 8] ^= 1 << bit % 8
        inode.durable = bytes(inode.seen)
        yield bit, flipped


def test_all_small_files_are_tried(filled: DiskFiles) -> None:
    names = [name.removeprefix("/data/") for name in small_files(filled)]
    assert [name for name in names if name.endswith((".json", ".log"))] == [
        "consumers.log",
        "journal.log",
        *(f"segments/{topic}/metadata.json" for topic in range(4)),
        "stages.log",
        f"stages/{2**31 + 3}/stage.json",
        "store.json",
    ]
    assert set(names) - {n for n in names if n.endswith((".json", ".log"))} == {
        "lock",
        "reserve",
    }


FILES = [
    "consumers.log",
    "journal.log",
    "lock",
    *(f"segments/{topic}/metadata.json" for topic in range(4)),
    "stages.log",
    f"stages/{2**31 + 3}/stage.json",
    "store.json",
]


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_is_never_the_truth(filled: DiskFiles, file: str) -> None:
    before = DiskFiles(filled.disk.clone())
    with open_store(files=before) as store:
        known = look(store)
        assert store.findings == []
    for bit, files in flips(filled, f"/data/{file}"):
        said = damage(check_store(ROOT, framing=scan, files=files))
        before_opening = segments(files)
        try:
            store = open_store(files=files)
        except DamagedFile as error:
            # Nothing can be served without its ids; the text says what to do.
            assert file == "store.json" and said, bit
            assert "store.json" in str(error) and "check --repair /data" in str(error)
            repair(files, Answers())
            store = open_store(files=files)
            assert look(store) == known, bit
        with store:
            compare(filled, file, bit, known, store, said)
            if not store._catalog._closed_topics:
                store.append(1, batch("z"))
            store.maintain()
            assert segments(files) >= before_opening, bit
        assert not any(".damaged" in f for f in small_files(files)) or said, bit


def compare(
    filled: DiskFiles,
    file: str,
    bit: int,
    known: Known,
    store: Store,
    said: list[Finding],
) -> None:
    now = look(store)
    closed = known.topics.keys() - now.topics.keys()
    for topic in closed:
        with pytest.raises(DamagedFile, match="check --repair /data"):
            store.topic(topic)
        with pytest.raises(DamagedFile if topic else StoreError):
            store.delete_topic(topic)
        check_names_are_refused(store, topic)
    for stage_id in known.stages.keys() - now.stages.keys():
        named = NamedStage(stage_id, 1, known.stages[stage_id][3])
        inline = file == "stages.log"
        error, text = (
            (StageUnknown, "not open")
            if inline
            else (DamagedFile, r"stage\.json is damaged")
        )
        with pytest.raises(error, match=text):
            store.commit_stages("x", 1, [named])
    assert now.topics.items() <= known.topics.items(), bit
    assert now.offsets.items() <= known.offsets.items(), bit
    assert now.writers.items() <= known.writers.items(), bit
    assert now.stages.items() <= known.stages.items(), bit
    if file == "store.json":
        return  # It was repaired, and everything is there.
    found = damage(store.findings)
    assert bool(found) == bool(said), (bit, found, said)
    if not said:
        assert now == known, bit
        in_mark = 16 <= bit // 8 < HEAD_BYTES and file.endswith(".log")
        assert file == "lock" or in_mark or is_over(filled, file, bit // 8), bit


def is_over(filled: DiskFiles, file: str, position: int) -> bool:
    """Tell whether a byte is part of a small stage that is not open any more."""
    if file != "stages.log":
        return False
    stages = parse_stage_log(read_file(filled, ROOT / file) or b"").stages.values()
    entries = [entry for stage in stages for entry in (stage.opened, *stage.batches)]
    assert len(entries) == 2
    return not any(entry.position <= position < entry.end for entry in entries)


def check_names_are_refused(store: Store, topic: int) -> None:
    """While a name can't be read, a new topic might get it."""
    if topic == 0:
        assert store.find_topic("unknown") is None
        return
    for call in (
        lambda: store.find_topic("unknown"),
        lambda: store.create_topic("unknown"),
        lambda: store.open_stage("unknown", "y", 1),
        lambda: store.commit_stages("y", 1, [], ["unknown"]),
        lambda: store.find_topic(KEPT[topic]),
    ):
        with pytest.raises(DamagedFile, match="can't be found or made"):
            call()
    with pytest.raises(UnknownTopic):
        store.topic(99)


def repair(files: DiskFiles, answers: Answers) -> list[str]:
    """Run all steps; give the files of those that wait for an answer."""
    with repairing(ROOT, answers, framing=scan, files=files) as steps:
        for step in steps:
            if step.run is not None:
                step.run()
    return [step.file for step in steps if step.run is None]


@pytest.mark.parametrize("file", FILES)
def test_a_cut_is_never_the_truth(filled: DiskFiles, file: str) -> None:
    size = len(filled.disk.inodes[filled.disk.seen[f"/data/{file}"]].seen)
    for left in range(0, size, 1 if STRIDE == 1 else 7):
        files = DiskFiles(filled.disk.clone())
        inode = files.disk.inodes[files.disk.seen[f"/data/{file}"]]
        inode.truncate(left)
        said = damage(check_store(ROOT, framing=scan, files=files))
        assert bool(said) == (file != "lock"), left
        try:
            with open_store(files=files) as store:
                assert damage(store.findings) or file == "lock", left
                assert segments(files) >= segments(filled), left
        except DamagedFile:
            # Of the journal: a mark is left that says that a commit is begun.
            assert file in ("store.json", "journal.log"), left


# In the middle of a commit.


@pytest.fixture(scope="module")
def killed() -> DiskFiles:
    """What a process leaves that is killed while it carries out a commit."""
    files = DiskFiles(Disk())
    store = fill(files)
    named = [
        stage(store, "one", "k", 1, batch("k", 30)),
        stage(store, "four", "k", 1, batch("l")),
    ]
    left: list[DiskFiles] = []

    def hook(operation: str, name: str) -> None:
        if operation == "sync" and "/segments/4/0_" in name and not left:
            left.append(DiskFiles(files.disk.killed()))

    with hooked(files, hook):
        store.commit_stages("k", 1, named, ["two"])
    return left[0]


def test_a_flip_in_the_middle_of_a_commit(killed: DiskFiles) -> None:
    """All of it or nothing is seen, and nothing that was acknowledged is lost."""
    whole = DiskFiles(killed.disk.clone())
    with open_store(files=whole) as store:
        done = look(store)
        assert done.topics[4][2] == batch("l")
    for name in small_files(killed):
        for bit, files in flips(killed, name):
            said = damage(check_store(ROOT, framing=scan, files=files))
            try:
                store = open_store(files=files)
            except DamagedFile:
                assert said and name.endswith(("store.json", "journal.log")), (
                    name,
                    bit,
                )
                repair(files, Answers())
                store = open_store(files=files)
            with store:
                compare_commit(store, done, (name, bit))


def test_a_commit_that_is_begun_and_can_not_be_read(killed: DiskFiles) -> None:
    """Parts of it may be in topics that nothing names: a person has to know that."""
    files = DiskFiles(killed.disk.clone())
    journal = files.disk.inodes[files.disk.seen["/data/journal.log"]]
    journal.seen[-1] ^= 1
    [*_, last] = damage(check_store(ROOT, framing=scan, files=files))
    assert "a commit is begun, and its entry can't be read" in last.text
    image = files.disk.image()
    for _ in range(2):
        with pytest.raises(DamagedFile, match=r"journal\.log is damaged .*--repair"):
            open_store(files=files)
    assert (
        dict(files.disk.image())["/data/journal.log"]
        == dict(image)[  # type: ignore[arg-type]
            "/data/journal.log"  # type: ignore[index]
        ]
    )
    assert repair(files, Answers()) == []
    with open_store(files=files) as store:
        now = look(store)
        assert now.writers == {"w": 2, "v": 5}
        assert now.topics[1][2].startswith(b"".join(batch(tag, 20) for tag in "abc"))
        assert len(now.stages) == 4
    said = damage(check_store(ROOT, framing=scan, files=files))
    assert [finding.where for finding in said] == ["journal.log"]  # It says `lost`.


def test_a_page_of_the_journal_with_more_than_one_entry(filled: DiskFiles) -> None:
    """The mark makes up for one of them; the others are said to be forgotten."""
    files = DiskFiles(filled.disk.clone())
    path = ROOT / "journal.log"
    data = read_file(files, path)
    assert data is not None
    # The end of the first commit, and the second one as a whole.
    start = data.index(b'"done"')
    end = data.index(b'"done"', start + 1)
    replace_file(files, path, data[:start] + bytes(end - start) + data[end:])
    said = check_store(ROOT, framing=scan, files=files)
    assert not any("is begun" in finding.text for finding in said)
    with open_store(files=files) as store:
        [found] = damage(store.findings)
        assert "is forgotten" in found.text
        assert look(store).writers == {"w": 2}
    # It is said for as long as a writer may repeat a forgotten commit.
    [found] = check_store(ROOT, framing=scan, files=files)
    assert "commits before that are forgotten" in found.text


def compare_commit(store: Store, done: Known, at: tuple[str, int]) -> None:
    now = look(store)
    if store._decisions.failure is not None:
        # It waits, with all of its topics.
        assert not now.topics.keys() & {1, 2, 4}, at
        assert damage(store.findings), at
        return
    if "k" not in now.writers:
        # Only a journal that lost the commit's entry, which was said, and repaired; or
        # its rows are lost, which were in the log of small stages.
        if at[0].endswith("stages.log"):
            assert damage(store.findings), at
        else:
            assert at[0].endswith("journal.log"), at
            assert store._decisions.history.lost_ns, at
        assert now.topics[1][2][: 63 * 45] == done.topics[1][2][: 63 * 45], at
        return
    closed = done.topics.keys() - now.topics.keys()
    assert now.topics.items() <= done.topics.items(), at
    assert len(closed) <= 1 and not closed & {1, 2, 4}, at


# Files that a person mends.


ANSWERS = Answers(
    {1: "one"}, {1: Retention(0, 10_000_000)}, {1: None}, {1: 1_700_000_000}
)


def test_a_topic_is_closed_until_all_is_said(filled: DiskFiles) -> None:
    with open_store(files=DiskFiles(filled.disk.clone())) as store:
        known = look(store)
        created = store.topic(1).metadata.created_at
    _, files = next(flips(filled, "/data/segments/1/metadata.json"))
    image = files.disk.image()
    for answers in (
        Answers(),
        Answers({1: "one"}),
        Answers({1: "one"}, {1: Retention()}),
        Answers({}, {1: Retention()}, {1: None}),
    ):
        assert repair(files, answers) == ["segments/1/metadata.json"]
        left = dict(files.disk.image())  # type: ignore[arg-type]
        left["/data/lock"] = dict(image)["/data/lock"]  # type: ignore[arg-type]
        assert left == dict(image)  # type: ignore[arg-type]
    assert repair(files, ANSWERS) == []
    with open_store(files=files) as store:
        assert look(store) == known
        assert store.findings == []
        metadata = store.topic(1).metadata
        assert metadata.retention == Retention(0, 10_000_000)
        assert (metadata.auth, metadata.created_at) == (None, created)
    assert damage(check_store(ROOT, framing=scan, files=files)) == []


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (Answers({2: "x"}), "topic 2: its metadata.json is not damaged"),
        (Answers(dropped=frozenset({5})), "stage 5: its stage.json is not damaged"),
        (Answers({1: "two"}, {1: Retention()}, {1: None}), "topic 2 has that name"),
        (Answers({1: "a/b"}, {1: Retention()}, {1: None}), "has a slash"),
    ],
)
def test_answers_that_can_not_be_used(
    filled: DiskFiles, answers: Answers, reason: str
) -> None:
    _, files = next(flips(filled, "/data/segments/1/metadata.json"))
    with pytest.raises(Exception, match=reason):
        repair(files, answers)


def test_an_empty_topic_goes_on_at_the_highest_offset_that_is_known(
    files: DiskFiles,
) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        commit(store, "one", "w", 1, batch("a"))
        store.commit_stages("w", 2, [], ["one"])
        # A consumer may say anything.
        store.commit_offset(7, 1, 2**64 - 1)
    assert not segments(files)
    files.open(ROOT / "segments/1/metadata.json").truncate(5)
    assert repair(files, ANSWERS) == []
    with open_store(files=files) as store:
        assert store.append(1, batch("b")).start == 135
    # The first segment from here on is no proof that the log starts at 0.
    for name in ("metadata.json", "1_*.idx"):
        [path] = [n for n in files.disk.seen if Path(n).match(f"segments/1/{name}")]
        files.open(Path(path)).truncate(5)
    assert repair(files, ANSWERS) == ["segments/1/metadata.json"]


def test_where_nothing_proves_the_start(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        store.create_topic("one", retention=Retention(0, 1))
        for tag in "abcd":
            store.append(1, batch(tag, 30))
        store.maintain()
    files.open(ROOT / "segments/1/metadata.json").truncate(5)
    for name in segments(files):
        if name.endswith(".idx"):
            files.open(Path(name)).truncate(5)
    assert repair(files, ANSWERS) == ["segments/1/metadata.json"]
    with open_store(files=files) as store, pytest.raises(DamagedFile):
        store.topic(1)


def test_a_stage_is_dropped_when_a_person_says_so(filled: DiskFiles) -> None:
    name = f"stages/{2**31 + 3}/stage.json"
    _, files = next(flips(filled, f"/data/{name}"))
    assert repair(files, Answers()) == [name]
    with open_store(files=files) as store:
        store.maintain()  # It does not expire by itself.
    assert repair(files, Answers()) == [name]
    assert repair(files, Answers(dropped=frozenset({2**31 + 3}))) == []
    assert damage(check_store(ROOT, framing=scan, files=files)) == []


def test_a_name_that_a_commit_knows(killed: DiskFiles) -> None:
    files = DiskFiles(killed.disk.clone())
    files.open(ROOT / "segments/1/metadata.json").truncate(5)
    wrong = Answers({1: "other"}, {1: Retention()}, {1: None})
    with pytest.raises(
        Exception, match="a commit that was begun calls the topic 'one'"
    ):
        repair(files, wrong)
    assert repair(files, ANSWERS) == []
    with open_store(files=files) as store:
        assert look(store).writers["k"] == 1
        assert look(store).topics[4][2] == batch("l")


def test_the_default_topic_needs_no_name(filled: DiskFiles) -> None:
    _, files = next(flips(filled, "/data/segments/0/metadata.json"))
    answers = Answers({}, {0: Retention()}, {0: None})
    assert repair(files, Answers()) == ["segments/0/metadata.json"]
    assert repair(files, answers) == []
    with open_store(files=files) as store:
        assert read_all(store.topic(0).log) == batch("default")


def test_a_file_of_another_topic_or_stage(filled: DiskFiles) -> None:
    """Its checksum holds, and it is not what it has to be."""
    files = DiskFiles(filled.disk.clone())
    other = read_file(files, ROOT / "segments/2/metadata.json") or b""
    replace_file(files, ROOT / "segments/1/metadata.json", other)
    name = f"stages/{2**31 + 3}"
    waiting = decode_stage(read_file(files, ROOT / name / "stage.json") or b"")
    moved = encode_stage(replace(waiting, id=2**31 + 9))
    replace_file(files, ROOT / name / "stage.json", moved)
    with open_store(files=files) as store:
        assert "it is that of topic 2" in str(store.closed(1))
        assert store.topic(2).metadata.name == "two"
        with pytest.raises(DamagedFile, match=f"it is that of stage {2**31 + 9}"):
            store.stage(2**31 + 3)


def test_a_stage_that_a_commit_knows_is_not_dropped(killed: DiskFiles) -> None:
    files = DiskFiles(killed.disk.clone())
    for name in small_files(files):
        if name.endswith("stage.json"):
            files.open(Path(name)).truncate(3)
    assert repair(files, Answers()) == [f"stages/{2**31 + 3}/stage.json"]
    with open_store(files=files) as store:
        assert look(store).topics[4][2] == batch("l")


def test_a_key_that_is_there_twice() -> None:
    with pytest.raises(StoreError, match="the checksum does not hold"):
        decode_document(b'{"format": 1, "format": 1}')


def test_a_disk_that_fails_while_the_journal_is_mended(filled: DiskFiles) -> None:
    _, files = list(flips(filled, "/data/journal.log"))[-1]
    with (
        refusing(files, "sync", "journal.log.tmp"),
        pytest.raises(StoreError, match="could not open"),
    ):
        open_store(files=files)
    with open_store(files=files) as store:
        assert damage(store.findings)


def test_a_repair_that_the_disk_refuses(filled: DiskFiles) -> None:
    _, files = next(flips(filled, "/data/store.json"))

    def refuse(operation: str, name: str) -> None:
        raise OSError(5, "no")

    with hooked(files, refuse), pytest.raises(StoreError, match="could not repair"):
        repair(files, Answers())
