"""Topics with several partitions, conditional appends, and making all of it durable."""

from __future__ import annotations

import errno
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lance_spark.errors import (
    AppendConflict,
    DamagedFile,
    InvalidName,
    LanceError,
    LimitReached,
    OptionError,
    PartitionedTopic,
    StoreError,
    StoreReadOnly,
    StoreWriteFailed,
    TopicExists,
    UnknownTopic,
)
from lance_spark.model import Bounds, Partition, Retention
from lance_spark.store import (
    Answers,
    Fsync,
    NamedStage,
    Store,
    StoreConfig,
    check_store,
    repairing,
)
from lance_spark.store.files import remove_tree
from lance_spark.store.log import NotSynced
from lance_spark.store.topic import decode_topic, encode_topic
from lance_spark.wire.lwp import scan
from tests.store.disk import Disk, DiskFiles
from tests.store.jobs import content, kill, refusing, reopen, stage
from tests.store.kit import ROOT, batch, check_clean, damage, look, open_store, record


def names(store: Store) -> list[str]:
    return [topic.metadata.name for topic in store.topics()]


# Creating.


def test_partitions_are_logs(store: Store) -> None:
    made = store.create_topics({"orders": 3, "plain": 1}, retention=Retention(60, 0))
    assert names(store) == ["orders/0", "orders/1", "orders/2", "plain"]
    assert [t.metadata.partitions for t in made] == [3, 3, 3, None]
    assert made[1].metadata.partition == Partition("orders", 1)
    assert made[3].metadata.partition == Partition("plain", 0)
    assert {t.metadata.retention for t in made} == {Retention(60, 0)}
    assert [store.partitions(n) for n in ("orders", "plain", "none")] == [3, 1, 0]
    store.append(made[2].metadata.id, batch("a"))
    assert content(store, "orders/2") == batch("a")
    store = reopen(store)
    assert names(store) == ["orders/0", "orders/1", "orders/2", "plain"]
    assert store.partitions("orders") == 3
    assert content(store, "orders/2") == batch("a")
    assert store.findings == []
    store.close()


def test_the_file_of_an_ordinary_topic_is_as_it_was(store: Store) -> None:
    ordinary, partition = store.create_topics({"plain": 1, "orders": 2})[:2]
    assert b"partitions" not in encode_topic(ordinary.metadata)
    assert b'"partitions": 2' in encode_topic(partition.metadata)
    for topic in (ordinary, partition):
        assert decode_topic(encode_topic(topic.metadata)) == topic.metadata


@pytest.mark.parametrize(
    ("name", "partitions"),
    [("orders/2", 2), ("orders/01", 2), ("orders", 2), ("a/b/0", 2), ("orders/0", 1)],
)
def test_metadata_that_can_not_be(store: Store, name: str, partitions: int) -> None:
    made = store.create_topics({"orders": 2})[0].metadata
    odd = replace(made, name=name, partitions=partitions)
    with pytest.raises(StoreError):
        decode_topic(encode_topic(odd))


def test_a_name_with_a_slash_is_made_by_nobody(store: Store) -> None:
    with pytest.raises(InvalidName):
        store.create_topic("orders/0")
    with pytest.raises(InvalidName):
        store.create_topics({"orders/0": 2})
    with pytest.raises(InvalidName):
        store.create_topics({"n" * 254: 2})
    for count in (0, -1, 2**16 + 1):
        with pytest.raises(StoreError, match="1 to 65536"):
            store.create_topics({"orders": count})
    assert names(store) == []


def test_a_topic_and_its_partitions_are_never_there_together(store: Store) -> None:
    store.create_topics({"orders": 2})
    store.create_topic("plain")
    for taken in ("orders", "plain"):
        with pytest.raises(TopicExists):
            store.create_topic(taken)
        with pytest.raises(TopicExists):
            store.create_topics({"new": 2, taken: 3})
    assert names(store) == ["orders/0", "orders/1", "plain"]
    with pytest.raises(LimitReached):
        store.create_topics({"more": 3}, topics_max=5)
    store.create_topics({"more": 2}, topics_max=5)


# Changing and deleting.


def test_rules_are_for_all_partitions(store: Store) -> None:
    made = store.create_topics({"orders": 2})
    store.set_retention(made[1].metadata.id, Retention(5, 6))
    store.set_auth(made[0].metadata.id, {"read": ["a"]})
    for topic in store.topics():
        assert topic.metadata.retention == Retention(5, 6)
        assert topic.metadata.auth == {"read": ["a"]}


def test_a_topic_is_deleted_whole(store: Store) -> None:
    made = store.create_topics({"orders": 3})
    other = store.create_topic("other").metadata.id
    ids = [topic.metadata.id for topic in made]
    store.commit_offset(1, ids[0], 5)
    for part in (ids[:1], ids[1:], [*ids[:2], other]):
        with pytest.raises(StoreError, match="only all of its partitions"):
            store.delete_topics(part)
    with pytest.raises(StoreError, match="only all of its partitions"):
        store.delete_topic(ids[0])
    with pytest.raises(StoreError, match="default topic"):
        store.delete_topics([0])
    version = store.topics_version
    store.delete_topics([*ids, ids[0]])
    assert store.topics_version == version + 1
    assert names(store) == ["other"]
    assert store.consumer_count == 0
    with pytest.raises(UnknownTopic) as gone:
        store.read(ids[1], 0, 10)
    assert gone.value.deleted
    assert store.create_topics({"orders": 2})[0].metadata.id > max(ids)
    assert list((store.path / "trash").iterdir()) == []


# Commits.


def test_a_commit_goes_to_a_partition_that_is_there(store: Store) -> None:
    store.create_topics({"orders": 2})
    named = stage(store, "orders/1", "w", 1, batch("a"))
    store.commit_stages("w", 1, [named])
    assert content(store, "orders/1") == batch("a")
    store.commit_stages("w", 2, [], ["orders/1"])
    assert content(store, "orders/1") == b""


def test_a_commit_makes_no_partition(store: Store) -> None:
    made = store.create_topics({"orders": 2})
    with pytest.raises(PartitionedTopic) as error:
        store.open_stage("orders", "w", 1)
    assert "'orders/0' to 'orders/1'" in str(error.value)
    for unknown in ("orders/2", "none/0"):
        with pytest.raises(UnknownTopic):
            store.open_stage(unknown, "w", 1)
        with pytest.raises(UnknownTopic):
            store.commit_stages("w", 1, [], [unknown])
    for odd in ("orders/x", "orders/" + "1" * 5000):
        with pytest.raises(InvalidName):
            store.open_stage(odd, "w", 1)
    gone = stage(store, "orders/1", "w", 1, batch("a"))
    soon = stage(store, "soon", "v", 1, batch("a"))
    store.delete_topics([topic.metadata.id for topic in made])
    store.create_topics({"soon": 2})
    with pytest.raises(UnknownTopic):
        store.commit_stages("w", 1, [gone])
    with pytest.raises(PartitionedTopic):
        store.commit_stages("v", 1, [soon])
    assert names(store) == ["soon/0", "soon/1"]
    assert [store.abort_stages(writer, 1) for writer in "wv"] == [1, 1]


# Crashes.


@pytest.mark.crash
@pytest.mark.parametrize("left", ["killed", "drop", "reorder"])
@pytest.mark.parametrize("doing", ["create", "delete"])
def test_all_or_none_after_a_crash_at_every_operation(doing: str, left: str) -> None:
    disk = Disk()
    files = DiskFiles(disk)
    pictures: list[Disk] = []
    with open_store(files=files) as store:
        one = store.create_topic("one").metadata.id
        store.append(one, batch("a"))
        states = [look(store)]
        files.before = lambda operation, name: pictures.append(disk.clone())
        made = store.create_topics({"orders": 3, "two": 1})
        ids = [topic.metadata.id for topic in made]
        if doing == "delete":
            store.append(ids[1], batch("b"))
            states, pictures[:] = [look(store)], []
            store.delete_topics(ids)
        files.before = lambda operation, name: None
        states.append(look(store))
    assert len(pictures) > 20
    seen = []
    for number, picture in enumerate(pictures):
        rng = random.Random(number)
        rest = (
            picture.killed() if left == "killed" else picture.without_power(left, rng)
        )
        again = DiskFiles(rest)
        # The checker changes nothing, and calls nothing of this damage.
        assert damage(check_store(ROOT, framing=scan, files=again)) == []
        with open_store(files=again) as store:
            assert damage(store.findings) == []
            seen.append(states.index(look(store)))
            fresh = store.create_topics({"after": 2})
            # Before the first operation no id was reserved.
            assert fresh[0].metadata.id not in ids or number < 5
        check_clean(files=again)
    assert {0, 1} == {*seen} and seen == sorted(seen)


@pytest.mark.crash
@pytest.mark.parametrize("times", [1, 1000])
def test_all_or_none_when_the_disk_refuses(times: int) -> None:
    for operation in ("pwrite", "sync", "sync_dir", "replace", "mkdir", "open"):
        for skip in range(8):
            files = DiskFiles(Disk())
            store = open_store(files=files)
            made: list[int] = []
            with refusing(files, operation, "", skip=skip, times=times):
                try:
                    topics = store.create_topics({"orders": 2})
                    made = [topic.metadata.id for topic in topics]
                    store.delete_topics(made)
                except LanceError as error:
                    assert isinstance(error, StoreError)
            there = names(store)
            assert len(there) in (0, 2)
            try:
                store.close()
            except StoreError:
                assert times > 1
            with open_store(files=DiskFiles(files.disk.killed())) as again:
                assert len(names(again)) in (0, 2)
                assert damage(again.findings) == []


def test_a_journal_that_is_made_shorter_meanwhile(files: DiskFiles) -> None:
    store = open_store(files=files)
    ids = [t.metadata.id for t in store.create_topics({"orders": 2})]
    with refusing(files, "replace", "trash"):
        store.delete_topics(ids)
    assert names(store) == []
    store._decisions.journal.rewrite(store._decisions.history.entries())
    store = kill(store)
    assert names(store) == []
    assert [str(f) for f in store.findings] == [
        f"note: journal.log: topics {ids} were being made or deleted; removed"
    ]
    store.close()


def test_a_damaged_entry_of_a_topic_that_was_made() -> None:
    files = DiskFiles(Disk())
    with open_store(files=files) as store:
        store.create_topics({"orders": 2})
    path = ROOT / "journal.log"
    file = files.open(path)
    file.pwrite(b"x", file.size() - 3)
    with open_store(files=files) as store:
        # The mark says that it was settled.
        assert names(store) == ["orders/0", "orders/1"]
        assert "[1, 2] was ended, by the mark" in str(store.findings[0])


@pytest.mark.parametrize("what", ["entries", "marks", "last"])
def test_topics_in_use_survive_a_journal_that_proves_nothing(what: str) -> None:
    files = DiskFiles(Disk())
    with open_store(files=files) as store:
        ids = [t.metadata.id for t in store.create_topics({"orders": 2})]
        store.append(ids[0], batch("a"))
        if what != "last":
            store.commit_stages("w", 1, [stage(store, "one", "w", 1, batch("b"))])
        seen = look(store)
    file = files.open(ROOT / "journal.log")
    data = file.pread(file.size(), 0)
    file.pwrite(b"x", data.index(b"settled"))
    if what == "entries":
        file.pwrite(b"x", data.index(b'"done"'))
        with pytest.raises(DamagedFile):
            open_store(files=files)
        with repairing(ROOT, Answers(), framing=scan, files=files) as steps:
            for step in steps:
                assert step.run is not None
                step.run()
    elif what == "marks":
        file.pwrite(bytes(48), 16)
    else:
        # The newest mark, so that the entry seems to be one that was never finished.
        turns = [int.from_bytes(data[at : at + 4], "little") for at in (24, 48)]
        file.pwrite(bytes(24), 16 if turns[0] > turns[1] else 40)
    with open_store(files=files) as store:
        assert look(store).topics == seen.topics


# Damage.


def test_a_damaged_partition_fails_alone(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        ids = [t.metadata.id for t in store.create_topics({"orders": 3})]
        store.append(ids[1], batch("a"))
    path = ROOT / "segments" / str(ids[1]) / "metadata.json"
    files.open(path).pwrite(b"x", 40)
    with open_store(files=files) as store:
        assert names(store) == ["orders/0", "orders/2"]
        assert store.partitions("orders") == 3
        with pytest.raises(DamagedFile):
            store.find_topic("orders/1")
        with pytest.raises(DamagedFile):
            store.delete_topics([ids[0], ids[2]])
        store.append(ids[0], batch("b"))
    topic = ids[1]
    answers = Answers({topic: "orders/1"}, {topic: Retention()}, {topic: None})
    for wrong in ("orders", "orders/3", "orders/0"):
        with (
            pytest.raises(OptionError),
            repairing(
                ROOT, replace(answers, names={topic: wrong}), framing=scan, files=files
            ),
        ):
            pass
    with repairing(ROOT, answers, framing=scan, files=files) as steps:
        for step in steps:
            assert step.run is not None
            step.run()
    with open_store(files=files) as store:
        assert names(store) == ["orders/0", "orders/1", "orders/2"]
        assert content(store, "orders/1") == batch("a")


def test_a_repair_that_no_other_partition_helps(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        ids = [t.metadata.id for t in store.create_topics({"orders": 2})]
        for topic in ids:
            store.append(topic, batch("a"))
    for topic in ids:
        path = ROOT / "segments" / str(topic) / "metadata.json"
        files.open(path).pwrite(b"x", 40)
    answers = Answers(
        {topic: f"orders/{n}" for n, topic in enumerate(ids)},
        dict.fromkeys(ids, Retention()),
        dict.fromkeys(ids),
    )
    with repairing(ROOT, answers, framing=scan, files=files) as steps:
        assert all("--partitions" in s.text and s.run is None for s in steps)
    said = replace(answers, partitions=dict.fromkeys(ids, 2))
    with repairing(ROOT, said, framing=scan, files=files) as steps:
        for step in steps:
            assert step.run is not None
            step.run()
    with open_store(files=files) as store:
        assert store.partitions("orders") == 2


def test_a_partition_that_is_gone(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        ids = [t.metadata.id for t in store.create_topics({"orders": 2})]
    remove_tree(files, ROOT / "segments" / str(ids[0]))
    found = damage(check_store(ROOT, framing=scan, files=files))
    assert [f.text for f in found] == ["partition 'orders/0' is missing"]
    with open_store(files=files) as store:
        assert [f.text for f in store.findings] == ["partition 'orders/0' is missing"]


# Conditional appends.


def test_an_append_that_expects_a_record(store: Store) -> None:
    topic = store.create_topic("one").metadata.id
    assert store.append(topic, batch("a"), expected_record=0).record == 0
    assert store.append(topic, batch("b"), expected_record=3).record == 3
    for expected in (0, 3, 7):
        with pytest.raises(AppendConflict) as error:
            store.append(topic, batch("c"), expected_record=expected)
        assert (error.value.expected, error.value.next_record) == (expected, 6)
        assert str(error.value).endswith("is number 6; nothing was stored")
    view = store.view(topic)
    assert (view.records, view.offsets) == (Bounds(0, 6), Bounds(0, 270))


def test_one_of_many_appends_gets_the_number(tmp_path: Path) -> None:
    with open_store(tmp_path / "data", background=True) as store:
        topic = store.create_topic("one").metadata.id
        won: list[int] = []

        def write(tag: int) -> None:
            for number in range(20):
                try:
                    store.append(topic, record(b"%d" % tag), expected_record=number)
                    won.append(number)
                except AppendConflict as conflict:
                    assert conflict.next_record > number

        threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(won) == list(range(20))


def test_a_conflict_is_told_once_its_cause_is_durable(files: DiskFiles) -> None:
    store = open_store(files=files)
    topic = store.create_topic("one").metadata.id
    store.append(topic, batch("a"), wait=False)
    assert store.view(topic).records.end == 0
    with pytest.raises(AppendConflict):
        store.append(topic, batch("a"), expected_record=0, wait=False)
    assert store.view(topic).records.end == 3
    store.append(topic, batch("b"), wait=False)
    with refusing(files, "sync", ".lnc"), pytest.raises(StoreReadOnly):
        # Nothing is known of the records that are in the way.
        store.append(topic, batch("a"), expected_record=3)


# Making all of it durable.


@pytest.mark.parametrize("fsync", list(Fsync))
def test_everything_is_durable_after_a_sync(fsync: Fsync) -> None:
    disk = Disk()
    config = StoreConfig(fsync=fsync, segment_bytes=300)
    store = open_store(files=DiskFiles(disk), config=config)
    topics = [store.create_topic(name).metadata.id for name in ("one", "two")]
    stages = store.open_stage("one", "w", 1)
    for number in range(5):
        for topic in topics:
            store.append(topic, batch(str(number)), wait=False)
    store.append_stage(stages, 1, batch("s"), wait=False)
    store.sync()
    seen = look(store)
    assert seen.topics[1][-1] == b"".join(batch(str(n)) for n in range(5))
    left = DiskFiles(disk.without_power("drop", random.Random(0)))
    with open_store(files=left, config=config) as again:
        assert look(again) == seen
        again.commit_stages("w", 1, [NamedStage(stages, 1, len(batch("s")))])
        # What another process has written is made durable, too.
        again.sync()
    store.sync()


def test_a_sync_in_the_middle_of_a_commit_that_is_undone() -> None:
    disk = Disk()
    files = DiskFiles(disk)
    config = StoreConfig(fsync=Fsync.NONE, segment_bytes=300, stage_adopt_bytes=100)
    store = open_store(files=files, config=config)
    topic = store.create_topic("one").metadata.id
    store.append(topic, batch("a"))
    named = stage(store, "one", "w", 1, *(batch(str(n)) for n in range(8)))
    note = store._decisions.note

    def sync_and_refuse(entry: dict[str, Any]) -> None:
        if entry["kind"] == "done":
            store.sync()
            raise OSError(errno.ENOSPC, "no room")
        note(entry)

    store._decisions.note = sync_and_refuse  # type: ignore[method-assign]
    with pytest.raises(StoreWriteFailed):
        store.commit_stages("w", 1, [named])
    # These go to segments with the numbers of those that the commit had.
    for number in range(12):
        store.append(topic, batch(str(number)))
    store.sync()
    left = DiskFiles(disk.without_power("drop", random.Random(0)))
    with open_store(files=left, config=config) as again:
        assert look(again).topics == look(store).topics


def test_a_sync_while_a_topic_is_deleted(files: DiskFiles) -> None:
    store = open_store(files=files)
    topic = store.create_topic("one").metadata.id
    store.append(topic, batch("a"), wait=False)
    sync = store.topic(topic).log.sync

    def delete_and_sync() -> None:
        store.topic(topic).log.sync = sync  # type: ignore[method-assign]
        store.delete_topic(topic)
        raise NotSynced("its files are gone")

    store.topic(topic).log.sync = delete_and_sync  # type: ignore[method-assign]
    store.sync()
    assert names(store) == []


def test_a_sync_that_fails(files: DiskFiles) -> None:
    store = open_store(files=files)
    topic = store.create_topic("one").metadata.id
    store.append(topic, batch("a"), wait=False)
    with refusing(files, "sync", ".lnc"), pytest.raises(StoreReadOnly):
        store.sync()
    with pytest.raises(StoreReadOnly):
        store.sync()
