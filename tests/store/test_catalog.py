"""Topics that come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from lance_spark.errors import (
    InvalidName,
    StoreError,
    StoreReadOnly,
    StoreWriteFailed,
    TopicExists,
    UnknownTopic,
)
from lance_spark.store import DEFAULT_TOPIC, Store
from tests.store.disk import DiskFiles
from tests.store.jobs import content, kill, refusing, reopen
from tests.store.kit import batch, check_clean, open_store, read_all


def names(store: Store) -> list[str]:
    return [topic.metadata.name for topic in store.topics()]


def test_a_topic_is_found_by_id_and_by_name(store: Store) -> None:
    one, two = store.create_topic("one"), store.create_topic("two")
    assert (one.metadata.id, two.metadata.id) == (1, 2)
    assert store.topic(1) is store.find_topic("one") is one
    assert store.find_topic("three") is None
    assert names(store) == ["one", "two"]
    with reopen(store) as again:
        assert names(again) == ["one", "two"]
        found = again.find_topic("two")
        assert found is not None and found.metadata == two.metadata


def test_the_version_changes_with_the_topics(store: Store) -> None:
    first = store.topics_version
    store.create_topic("one")
    second = store.topics_version
    store.delete_topic(1)
    assert first < second < store.topics_version


def test_a_name_that_is_taken_or_not_allowed(store: Store) -> None:
    store.create_topic("one")
    with pytest.raises(TopicExists, match="topic 'one' exists already"):
        store.create_topic("one")
    with pytest.raises(InvalidName):
        store.create_topic("../one")
    assert names(store) == ["one"]


def test_the_default_topic_is_always_there(store: Store) -> None:
    store.append(DEFAULT_TOPIC, batch("a"))
    assert store.topics() == []
    assert store.find_topic("") is None
    with pytest.raises(StoreError, match="the default topic can't be deleted"):
        store.delete_topic(DEFAULT_TOPIC)
    with reopen(store) as again:
        assert read_all(again.topic(DEFAULT_TOPIC).log) == batch("a")


def test_a_deleted_topic(store: Store) -> None:
    topic = store.create_topic("one")
    store.append(1, batch("a"))
    store.commit_offset(7, 1, 10)
    store.delete_topic(1)
    assert store.find_topic("one") is None
    assert store.committed_offset(7, 1) is None
    assert not topic.log.directory.exists()
    assert list((store.path / "trash").iterdir()) == []
    for call in (store.topic, store.delete_topic):
        with pytest.raises(UnknownTopic, match="topic 1 was deleted") as caught:
            call(1)
        assert caught.value.deleted
    with pytest.raises(UnknownTopic, match="topic 2 not found"):
        store.topic(2)
    with pytest.raises(StoreReadOnly, match="the topic was deleted"):
        topic.log.append(batch("b"), [0], now_ns=0)  # type: ignore[arg-type]


def test_an_id_is_never_used_again(store: Store) -> None:
    store.create_topic("one")
    store.append(1, batch("a"))
    store.commit_offset(7, 1, 10)
    store.delete_topic(1)
    assert store.create_topic("one").metadata.id == 2
    store.delete_topic(2)
    with reopen(store) as again:
        assert again.create_topic("one").metadata.id == 3
        assert again.committed_offset(7, 1) is None
        assert content(again, "one") == b""


@pytest.mark.parametrize("operation", ["mkdir", "pwrite", "replace", "sync_dir"])
def test_a_topic_that_could_not_be_made_leaves_nothing(
    files: DiskFiles, operation: str
) -> None:
    with open_store(files=files) as store:
        with (
            refusing(files, operation, "segments", times=1),
            pytest.raises(StoreWriteFailed, match="could not create topic 'one'"),
        ):
            store.create_topic("one")
        assert names(store) == []
        assert [e.name for e in files.list(Path("/data/segments"))] == ["0"]
        store.create_topic("one")
    check_clean(files=files)


def test_a_half_made_topic_is_removed(files: DiskFiles) -> None:
    open_store(files=files).close()
    files.mkdir(Path("/data/segments/5"))
    with open_store(files=files) as store:
        assert names(store) == []
        assert store.findings == []
    assert [e.name for e in files.list(Path("/data/segments"))] == ["0"]


def test_the_trash_is_emptied(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        store.append(1, batch("a"))
        with refusing(files, "unlink", "trash"):
            store.delete_topic(1)
        assert names(store) == []
        assert files.list(Path("/data/trash/1")) != []
    open_store(files=files).close()
    assert files.list(Path("/data/trash")) == []
    check_clean(files=files)


@pytest.mark.parametrize("operation", ["replace", "sync_dir"])
def test_a_refused_deletion_loses_nothing_that_is_acknowledged(
    files: DiskFiles, operation: str
) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        store.append(1, batch("a"))
        with refusing(files, operation, "/data", times=1), pytest.raises(StoreError):
            store.delete_topic(1)
        expected = b""
        try:
            store.append(1, batch("b"))
            expected = batch("a") + batch("b")
        except (UnknownTopic, StoreReadOnly):
            pass
        with kill(store) as again:
            assert (content(again, "one") if expected else b"") == expected
    check_clean(files=files)


def test_files_that_are_no_topics_are_left_alone(store: Store) -> None:
    (store.path / "segments" / "README").write_text("mine")
    (store.path / "segments" / "notes").mkdir()
    with reopen(store) as again:
        assert names(again) == []
    assert (store.path / "segments" / "README").read_text() == "mine"
    assert (store.path / "segments" / "notes").is_dir()
