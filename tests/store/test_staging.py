"""Stages and commits: each sentence of the guarantee."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lance_spark.errors import (
    CommitConflict,
    InvalidName,
    StageError,
    StageExpired,
    StageMismatch,
    StageUnknown,
    StoreError,
    StoreReadOnly,
    StoreWriteFailed,
)
from lance_spark.store import (
    CommitStatus,
    CommittedRange,
    NamedStage,
    Store,
    StoreConfig,
    View,
)
from lance_spark.store.document import FIRST_STAGE_ID
from tests.store.disk import DiskFiles
from tests.store.jobs import (
    DAY_S,
    Clock,
    commit,
    content,
    hooked,
    kill,
    refusing,
    reopen,
    stage,
)
from tests.store.kit import (
    IN_FILES,
    SMALL,
    batch,
    check_clean,
    open_store,
    read_all,
    record,
)

COMMITTED, REPEATED, STALE = CommitStatus


def ids(store: Store) -> set[int]:
    return {found.metadata.id for found in store.stages()}


def tree(path: Path) -> set[str]:
    """All topics and stages that have left something on disk."""
    return {str(p.relative_to(path)) for p in path.glob("s*s/*")}


# The commit names each stage with its number of batches and bytes.


@pytest.mark.parametrize(("batches", "size"), [(1, 270), (3, 270), (2, 269), (2, 271)])
def test_a_commit_that_names_other_batches_or_bytes_is_refused(
    store: Store, batches: int, size: int
) -> None:
    named = stage(store, "one", "w", 1, batch("a"), batch("b"))
    with pytest.raises(StageMismatch, match="holds 2 batches of 270 bytes; the commit"):
        store.commit_stages("w", 1, [NamedStage(named.id, batches, size)])
    assert store.find_topic("one") is None
    assert store.commit_stages("w", 1, [named]).status is COMMITTED


def test_a_commit_that_names_another_jobs_stage_is_refused(store: Store) -> None:
    named = stage(store, "one", "v", 1, batch("a"))
    with pytest.raises(StageMismatch, match="belongs to"):
        store.commit_stages("w", 1, [named])
    with pytest.raises(StageMismatch, match="belongs to"):
        store.commit_stages("v", 2, [named])
    assert ids(store) == {named.id}


def test_a_commit_that_names_a_stage_twice_is_refused(store: Store) -> None:
    named = stage(store, "one", "w", 1, batch("a"))
    with pytest.raises(StageMismatch, match="names a stage twice"):
        store.commit_stages("w", 1, [named, named])


def test_a_commit_that_names_an_unknown_stage_is_refused(store: Store) -> None:
    named = stage(store, "one", "w", 1, batch("a"))
    with pytest.raises(StageUnknown, match="stage 99 is not open"):
        store.commit_stages("w", 1, [named, NamedStage(99, 0, 0)])
    assert ids(store) == {named.id}


# The topic itself is created by the commit.


@pytest.mark.parametrize("records", [3, 20])
def test_the_topic_is_created_by_the_commit(store: Store, records: int) -> None:
    named = stage(store, "one", "w", 1, batch("a", records))
    assert store.topics() == []
    # A small one has no files.
    there = {f"stages/{named.id}"} if records == 20 else set()
    assert tree(store.path) == {"segments/0", *there}
    result = store.commit_stages("w", 1, [named])
    assert result.ranges == (CommittedRange(1, "one", 0, 45 * records),)
    assert content(store, "one") == batch("a", records)
    assert tree(store.path) == {"segments/0", "segments/1"}


def test_an_aborted_job_leaves_nothing(store: Store) -> None:
    for topic in ("one", "two"):
        stage(store, topic, "w", 1, batch("a", 30))
    assert store.abort_stages("w", 1) == 2
    assert store.abort_stages("w", 1) == 0
    assert store.topics() == []
    assert tree(store.path) == {"segments/0"}


def test_a_stage_without_batches_creates_an_empty_topic(store: Store) -> None:
    named = stage(store, "one", "w", 1)
    result = store.commit_stages("w", 1, [named])
    assert result.ranges == (CommittedRange(1, "one", 0, 0),)
    with reopen(store) as again:
        assert content(again, "one") == b""


def test_a_topic_deleted_before_the_commit_is_made_anew(store: Store) -> None:
    store.create_topic("one")
    named = stage(store, "one", "w", 1, batch("a"))
    store.delete_topic(1)
    result = store.commit_stages("w", 1, [named])
    assert result.ranges == (CommittedRange(2, "one", 0, 135),)


# Commit or abort drops every other stage of that job, and of no other.


@pytest.mark.parametrize("records", [3, 20])
@pytest.mark.parametrize("how", ["commit", "abort"])
def test_the_losers_of_a_job_go_and_other_jobs_stay(
    store: Store, how: str, records: int
) -> None:
    winner = stage(store, "one", "w", 1, batch("a", records))
    stage(store, "one", "w", 1, batch("a", records))
    stage(store, "two", "w", 1, batch("b", records))
    others = {
        stage(store, "one", writer, sequence, batch("c", records)).id
        for writer, sequence in [("w", 0), ("w", 2), ("v", 1)]
    }
    if how == "commit":
        store.commit_stages("w", 1, [winner])
        assert content(store, "one") == batch("a", records)
    else:
        store.abort_stages("w", 1)
    assert ids(store) == others
    assert store.find_topic("two") is None
    names = {p.name for p in (store.path / "stages").iterdir()}
    assert names == ({str(n) for n in others} if records == 20 else set())
    if how == "abort":
        with reopen(store) as again:
            assert ids(again) == others


# Stages expire after a time without activity of their job.


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_stages_expire_after_a_day_without_activity(
    files: DiskFiles, clock: Clock
) -> None:
    with open_store(files=files, clock_ns=clock) as store:
        named = stage(store, "one", "w", 1, batch("a"))
        clock.forward(DAY_S)
        store.maintain()
        assert ids(store) == {named.id}
        clock.forward(1)
        store.maintain()
        assert ids(store) == set()
        assert files.list(store.path / "stages") == []
        assert store.topics() == []
    check_clean(files=files)


def test_committing_an_expired_stage_is_its_own_error(
    files: DiskFiles, clock: Clock
) -> None:
    store = open_store(files=files, clock_ns=clock)
    named = stage(store, "one", "w", 1, batch("a"))
    clock.forward(DAY_S + 1)
    store.maintain()
    with pytest.raises(StageExpired, match="nothing was written to its job for 86400"):
        store.commit_stages("w", 1, [named])
    with pytest.raises(StageExpired, match="write it again"):
        store.append_stage(named.id, 2, batch("b"))
    with reopen(store) as again, pytest.raises(StageExpired):
        again.commit_stages("w", 1, [named])
    with kill(store) as again, pytest.raises(StageExpired):
        again.commit_stages("w", 1, [named])


@pytest.mark.parametrize("activity", ["a batch", "a repeated batch", "another stage"])
def test_one_active_stage_keeps_the_others_of_its_job_alive(
    files: DiskFiles, clock: Clock, activity: str
) -> None:
    with open_store(files=files, clock_ns=clock) as store:
        old = stage(store, "one", "w", 1, batch("a"))
        active = stage(store, "two", "w", 1, batch("a"))
        other = stage(store, "one", "v", 1, batch("a"))
        clock.forward(DAY_S - 1)
        expected = {old.id, active.id}
        if activity == "a batch":
            store.append_stage(active.id, 2, batch("b"))
        elif activity == "a repeated batch":
            store.append_stage(active.id, 1, batch("a"))
        else:
            expected.add(store.open_stage("three", "w", 1))
        clock.forward(2)
        store.maintain()
        assert ids(store) == expected
        with pytest.raises(StageExpired):
            store.commit_stages("v", 1, [other])


def test_activity_counts_from_the_last_batch_after_reopening(
    files: DiskFiles, clock: Clock
) -> None:
    store = open_store(files=files, clock_ns=clock)
    named = stage(store, "one", "w", 1)
    clock.forward(DAY_S - 1)
    store.append_stage(named.id, 1, batch("a"))
    with reopen(store) as again:
        clock.forward(DAY_S)
        again.maintain()
        assert ids(again) == {named.id}
        clock.forward(1)
        again.maintain()
        assert ids(again) == set()


def test_a_job_may_expire_twice(files: DiskFiles, clock: Clock) -> None:
    with open_store(files=files, clock_ns=clock) as store:
        named = []
        for _ in range(2):
            named.append(stage(store, "one", "w", 1, batch("a")))
            clock.forward(DAY_S + 1)
            store.maintain()
        for one in named:
            with pytest.raises(StageExpired):
                store.commit_stages("w", 1, [one])


def test_an_expiry_that_can_not_be_noted_does_not_happen(
    files: DiskFiles, clock: Clock
) -> None:
    with open_store(files=files, clock_ns=clock) as store:
        named = stage(store, "one", "w", 1, batch("a"))
        clock.forward(DAY_S + 1)
        with (
            refusing(files, "pwrite", "journal.log"),
            pytest.raises(StoreWriteFailed, match="could not note an expiry"),
        ):
            store.maintain()
        assert store.commit_stages("w", 1, [named]).status is COMMITTED
    check_clean(files=files)


# Stage ids are never reused.


def test_stage_ids_are_never_reused(files: DiskFiles) -> None:
    store = open_store(files=files)
    seen: list[int] = []
    for round_ in range(3):
        dropped = stage(store, "one", "w", 2 * round_ + 1)
        seen.append(dropped.id)
        store.abort_stages("w", 2 * round_ + 1)
        committed = stage(store, "one", "w", 2 * round_ + 2)
        seen.append(committed.id)
        store.commit_stages("w", 2 * round_ + 2, [committed])
        store = reopen(store) if round_ else kill(store)
    seen.append(store.open_stage("one", "w", 99))
    assert len(set(seen)) == len(seen) == 7
    assert seen == sorted(seen)
    assert seen[0] == FIRST_STAGE_ID
    store.close()


# A repeated commit changes nothing and returns the same offsets.


def test_a_repeated_commit_changes_nothing(store: Store) -> None:
    store.create_topic("one")
    store.append(1, batch("0"))
    named = [
        stage(store, "one", "w", 5, batch("a")),
        stage(store, "two", "w", 5, batch("b", 30)),
    ]
    first = store.commit_stages("w", 5, named)
    assert first.status is COMMITTED
    assert first.ranges == (
        CommittedRange(1, "one", 135, 270),
        CommittedRange(2, "two", 0, 1350),
    )
    store.append(1, batch("c"))
    before = content(store, "one"), content(store, "two")
    again = reopen(store)
    staged_again = [
        stage(again, "one", "w", 5, batch("a")),
        stage(again, "two", "w", 5, batch("b", 30)),
    ]
    for repeated in (named, staged_again, staged_again, []):
        result = again.commit_stages("w", 5, repeated)
        assert result.status is REPEATED
        assert result.ranges == first.ranges
        assert ids(again) == set()
    assert (content(again, "one"), content(again, "two")) == before
    again.close()


def test_a_commit_staged_again_is_recognised_after_a_kill(files: DiskFiles) -> None:
    store = open_store(files=files)
    first = commit(store, "one", "w", 5, batch("a"))
    again = stage(store, "one", "w", 5, batch("a"))
    with kill(store) as left:
        assert ids(left) == {again.id}
        result = left.commit_stages("w", 5, [again])
        assert (result.status, result.ranges) == (REPEATED, first.ranges)
        assert ids(left) == set()
        assert content(left, "one") == batch("a")
    check_clean(files=left._files)


def test_stages_of_an_earlier_job_are_gone_after_a_kill(files: DiskFiles) -> None:
    """The crash came between the end of a commit and the removal of its stages."""
    store = open_store(files=files)
    stage(store, "one", "w", 4, batch("loser"))
    with refusing(files, "unlink", "stages"):
        commit(store, "one", "w", 5, batch("a"))
        commit(store, "one", "v", 5, batch("a", 30))
    with kill(store) as left:
        assert ids(left) == set()
        assert content(left, "one") == batch("a") + batch("a", 30)
    check_clean(files=left._files)


def test_a_lower_sequence_is_a_no_op_that_says_so(store: Store) -> None:
    commit(store, "one", "w", 5, batch("a"))
    with reopen(store) as again:
        for sequence in (4, 0):
            named = stage(again, "two", "w", sequence, batch("b"))
            result = again.commit_stages("w", sequence, [named], ["one"])
            assert (result.status, result.ranges) == (STALE, ())
        assert ids(again) == set()
        assert content(again, "one") == batch("a")
        assert again.find_topic("two") is None
        assert commit(again, "one", "w", 6, batch("c")).status is COMMITTED


@pytest.mark.parametrize(
    ("topic", "overwrite"), [("two", []), ("one", ["one"]), ("one", ["two"])]
)
def test_the_same_key_with_other_topics_is_an_error(
    store: Store, topic: str, overwrite: list[str]
) -> None:
    commit(store, "one", "w", 5, batch("a"))
    named = stage(store, topic, "w", 5, batch("b"))
    with pytest.raises(CommitConflict, match=r"with topics \['one'\]; it can't be"):
        store.commit_stages("w", 5, [named], overwrite)
    assert content(store, "one") == batch("a")


def test_writers_are_kept_apart(store: Store) -> None:
    commit(store, "one", "w", 5, batch("a"))
    assert commit(store, "one", "v", 5, batch("a")).status is COMMITTED
    assert commit(store, "one", "W", 1, batch("a")).status is COMMITTED


def test_sequences_may_skip(store: Store) -> None:
    for sequence in (0, 7, 2**64 - 1):
        assert commit(store, "one", "w", sequence, batch("a")).status is COMMITTED


# The broker keeps the last sequence per writer, for a configured time.


def test_the_last_sequence_is_kept_for_a_configured_time(
    files: DiskFiles, clock: Clock
) -> None:
    config = StoreConfig(writer_ttl_s=3 * DAY_S, journal_bytes_max=1024, **SMALL)  # type: ignore[arg-type]
    store = open_store(files=files, config=config, clock_ns=clock)
    for sequence in range(10):
        commit(store, "one", "w", sequence, batch("a"))
    clock.forward(3 * DAY_S)
    store.maintain()
    store = reopen(store)
    assert commit(store, "one", "w", 9, batch("a")).status is REPEATED
    clock.forward(1)
    store.maintain()
    assert store.commit_stages("w", 3, []).status is COMMITTED
    store.close()
    check_clean(files=files)


def test_the_journal_is_kept_short(files: DiskFiles) -> None:
    config = StoreConfig(journal_bytes_max=1024, **SMALL)  # type: ignore[arg-type]
    with open_store(files=files, config=config) as store:
        for sequence in range(40):
            store.commit_stages("w", sequence, [])
        journal = store._decisions.journal
        assert journal is not None and journal.size > 2_000
        store.maintain()
        assert journal.size < 300
        assert store.commit_stages("w", 39, []).status is REPEATED
        with kill(store) as again:
            assert again.commit_stages("w", 39, []).status is REPEATED


@pytest.mark.parametrize("operation", ["pwrite", "replace", "sync_dir"])
def test_no_commit_is_forgotten_when_the_journal_can_not_be_rewritten(
    files: DiskFiles, operation: str
) -> None:
    config = StoreConfig(journal_bytes_max=1024, **SMALL)  # type: ignore[arg-type]
    store = open_store(files=files, config=config)
    for sequence in range(20):
        store.commit_stages("w", sequence, [])
    with refusing(files, operation, "/data", times=1), pytest.raises(StoreError):
        store.maintain()
    try:
        commit(store, "one", "w", 50, batch("a"))
        expected = REPEATED
    except StoreReadOnly:
        expected = COMMITTED
    with kill(store) as again:
        assert again.commit_stages("w", 19, []).status in (STALE, REPEATED)
        assert commit(again, "one", "w", 50, batch("a")).status is expected
        assert content(again, "one") == batch("a")
    check_clean(files=again._files)


# Overwrite.


def test_overwrite_replaces_the_content_in_the_same_commit(store: Store) -> None:
    store.create_topic("one")
    for tag in "abc":
        store.append(1, batch(tag, 20))
    named = stage(store, "one", "w", 1, batch("new"))
    result = store.commit_stages("w", 1, [named], ["one"])
    assert result.ranges == (CommittedRange(1, "one", 2700, 2835),)
    with reopen(store) as again:
        assert content(again, "one") == batch("new")
        view = again.view(1)
        assert (view.start.offset, view.start.record) == (2700, 60)
        with pytest.raises(StoreError, match=r"offset 0 is outside the log \[2700,"):
            view.read(0, 100)
        assert again.append(1, batch("d")).start == 2835
        directory = again.path / "segments" / "1"
        assert len(list(directory.glob("*.lnc"))) == 1


def test_overwrite_with_zero_rows(store: Store) -> None:
    store.create_topic("one")
    store.append(1, batch("a"))
    result = store.commit_stages("w", 1, [], ["one"])
    assert result.ranges == (CommittedRange(1, "one", 135, 135),)
    assert content(store, "one") == b""
    assert store.commit_stages("w", 1, [], ["one"]).status is REPEATED
    with reopen(store) as again:
        assert content(again, "one") == b""
        assert again.append(1, batch("b")).start == 135
        assert content(again, "one") == batch("b")


def test_overwrite_of_a_topic_that_is_not_there_creates_it(store: Store) -> None:
    store.commit_stages("w", 1, [], ["one"])
    assert content(store, "one") == b""


def test_overwriting_again_and_again(store: Store) -> None:
    offset = 0
    for sequence in range(5):
        named = stage(store, "one", "w", sequence, batch(str(sequence), 30))
        [range_] = store.commit_stages("w", sequence, [named], ["one"]).ranges
        assert (range_.start, range_.end) == (offset, offset + 1350)
        offset = range_.end
        assert content(store, "one") == batch(str(sequence), 30)


def test_readers_in_the_middle_of_an_overwrite_see_it(store: Store) -> None:
    store.create_topic("one")
    store.append(1, batch("a"))
    view = store.view(1)
    store.commit_stages("w", 1, [], ["one"])
    with pytest.raises(StoreError, match=r"offset 0 is outside the log \[135, 135\)"):
        store.read(1, 0, 100)
    # A view from before is told the same, or still has the file.
    try:
        assert view.read(0, 1000).read() == batch("a")
    except StoreError as error:
        assert "is outside the log [135, 135)" in str(error)


# One commit, many topics, all or nothing.


def test_many_topics_in_one_commit(store: Store) -> None:
    named = []
    for number in range(12):
        records = 30 if number % 2 else 2
        named.append(stage(store, f"t{number}", "w", 1, batch(f"a{number}", records)))
        named.append(stage(store, f"t{number}", "w", 1, batch(f"b{number}", 2)))
    result = store.commit_stages("w", 1, named)
    assert [r.name for r in result.ranges] == [f"t{n}" for n in range(12)]
    with reopen(store) as again:
        for number in range(12):
            records = 30 if number % 2 else 2
            expected = batch(f"a{number}", records) + batch(f"b{number}", 2)
            assert content(again, f"t{number}") == expected


def test_stages_are_added_in_the_order_in_which_they_are_named(store: Store) -> None:
    first, second = (stage(store, "one", "w", 1, batch(tag)) for tag in "ab")
    store.commit_stages("w", 1, [second, first])
    assert content(store, "one") == batch("b") + batch("a")


def test_an_empty_commit_records_its_sequence(store: Store) -> None:
    result = store.commit_stages("w", 5, [])
    assert (result.status, result.ranges) == (COMMITTED, ())
    with reopen(store) as again:
        assert again.commit_stages("w", 5, []).status is REPEATED
        assert again.commit_stages("w", 4, []).status is STALE
        assert again.topics() == []


def test_nothing_is_visible_before_the_commit_is_done(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        store.append(1, batch("a"))
        named = [
            stage(store, "one", "w", 1, batch("b", 30)),
            stage(store, "one", "w", 1, batch("c")),
            stage(store, "two", "w", 1, batch("d")),
        ]
        log = store.topic(1).log
        before = log.visible
        looks = 0
        done = threading.Event()

        def look(operation: str, name: str) -> None:
            nonlocal looks
            if "stages" in name:
                return
            looks += 1
            assert log.visible == before
            assert View.of(log).read(0, 10**6).read() == batch("a")
            assert View.of(log).locate_time(0).offset == 0
            assert View.of(log).locate_record(99) == View.of(log).locate_end()
            assert store.find_topic("two") is None
            assert log.visible.offset == 135
            if operation == "sync" and "journal" in name and looks > 5:
                done.set()

        with hooked(files, look):
            store.commit_stages("w", 1, named)
        assert looks > 20 and done.is_set()
        assert content(store, "one") == batch("a") + batch("b", 30) + batch("c")
    check_clean(files=files)


# A commit that fails.


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("pwrite", "segments/1"),
        ("create", ".lnc"),
        ("mkdir", "segments"),
        ("replace", "segments/1"),
        ("sync_dir", "segments/2"),
    ],
)
def test_a_commit_that_fails_leaves_nothing_and_can_be_repeated(
    files: DiskFiles, operation: str, name: str
) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        store.append(1, batch("a"))
        named = [
            stage(store, "one", "w", 1, batch("b")),
            stage(store, "one", "w", 1, batch("c", 30)),
            stage(store, "two", "w", 1, batch("d")),
        ]
        with (
            refusing(files, operation, name, times=1),
            pytest.raises(StoreWriteFailed, match="could not be carried out and was"),
        ):
            store.commit_stages("w", 1, named, ["one"])
        assert content(store, "one") == batch("a")
        assert store.find_topic("two") is None
        assert ids(store) == {one.id for one in named}
        store.append(1, batch("x"))
        with kill(store) as again:
            assert content(again, "one") == batch("a") + batch("x")
        assert store.commit_stages("w", 1, named, ["one"]).status is COMMITTED
        assert content(store, "one") == batch("b") + batch("c", 30)
    check_clean(files=files)


def test_a_commit_that_fails_leaves_an_empty_topic_empty(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        named = stage(store, "one", "w", 1, batch("a", 30), batch("b", 30))
        with (
            refusing(files, "create", ".idx", skip=1),
            pytest.raises(StoreWriteFailed, match="could not adopt a stage"),
        ):
            store.commit_stages("w", 1, [named])
        assert content(store, "one") == b""
        assert store.topic(1).log.segments() == []
        assert store.commit_stages("w", 1, [named]).status is COMMITTED
    check_clean(files=files)


def test_a_bug_in_the_middle_of_a_commit_leaves_nothing_either(
    files: DiskFiles,
) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        store.append(1, batch("a"))
        named = stage(store, "one", "w", 1, batch("b"))

        def bug(operation: str, name: str) -> None:
            if operation == "pwrite" and "segments/1" in name:
                raise ZeroDivisionError

        with hooked(files, bug), pytest.raises(ZeroDivisionError):
            store.commit_stages("w", 1, [named])
        assert content(store, "one") == batch("a")
        store.append(1, batch("x"))
        assert store.commit_stages("w", 1, [named]).status is COMMITTED
        assert content(store, "one") == batch("a") + batch("x") + batch("b")
    check_clean(files=files)


@pytest.mark.parametrize("entry", ["begin", "done"])
def test_a_commit_that_is_in_doubt_waits_for_the_next_opening(
    files: DiskFiles, entry: str
) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    named = stage(store, "one", "w", 1, batch("b"))
    with (
        refusing(files, "sync", "journal", skip=int(entry == "done"), times=1),
        pytest.raises(StoreReadOnly, match="reopen the store"),
    ):
        store.commit_stages("w", 1, [named])
    for refused in (
        lambda: store.append(1, batch("x")),
        lambda: store.commit_stages("w", 1, [named]),
        lambda: store.abort_stages("w", 1),
        lambda: store.maintain(),
    ):
        with pytest.raises(StoreReadOnly, match="reopen the store"):
            refused()
    assert content(store, "one") == batch("a")
    with kill(store) as again:
        assert content(again, "one") in (batch("a"), batch("a") + batch("b"))
        status = commit(again, "one", "w", 1, batch("b")).status
        assert status in (COMMITTED, REPEATED)
        assert content(again, "one") == batch("a") + batch("b")
    check_clean(files=again._files)


def test_an_undo_that_fails(files: DiskFiles) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    named = stage(store, "one", "w", 1, batch("b"))
    with (
        refusing(files, "pwrite", "segments/1"),
        refusing(files, "sync_dir", "segments/1"),
        pytest.raises(StoreReadOnly, match="could not be undone"),
    ):
        store.commit_stages("w", 1, [named])
    with kill(store) as again:
        assert content(again, "one") == batch("a") + batch("b")
        assert again.commit_stages("w", 1, [named]).status is REPEATED
    check_clean(files=again._files)


# Descriptors are what others can take away: nothing may end for want of them.


@contextmanager
def crowded(store: Store, files: DiskFiles, *, stolen: int = 0) -> Iterator[list[str]]:
    """Leave no descriptor but the spare ones, from the begin of a commit on.

    Args:
        store: the store.
        files: its files.
        stolen: how often somebody else is quicker when they are given up.
    """
    refused: list[str] = []
    begun = False

    def taken() -> bool:
        nonlocal stolen
        if not store._context.spare._kept and stolen:
            stolen -= 1
            return True
        return bool(store._context.spare._kept)

    def refuse(operation: str, name: str) -> None:
        nonlocal begun
        begun = begun or (operation == "pwrite" and "journal" in name)
        needs = operation in ("create", "open", "list", "sync_dir")
        if begun and needs and taken():
            refused.append(operation)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)

    files.before_read = refuse
    with hooked(files, refuse):
        yield refused
    files.before_read = lambda operation, name: None


@pytest.mark.parametrize("stolen", [0, 3])
@pytest.mark.parametrize(("records", "overwrite"), [(3, ()), (20, ()), (20, ("one",))])
def test_a_commit_without_descriptors_is_undone(
    files: DiskFiles, records: int, overwrite: tuple[str, ...], stolen: int
) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        store.append(1, batch("a"))
        named = [stage(store, t, "w", 1, batch(t, records)) for t in ("one", "two")]
        store._context.segments.drop_topic(1)
        with (
            crowded(store, files, stolen=stolen) as refused,
            pytest.raises(StoreWriteFailed, match=r"undone: .*Too many open files"),
        ):
            store.commit_stages("w", 1, named, overwrite)
        assert len(refused) > 1 + stolen  # The undoing met it, too.
        assert content(store, "one") == batch("a")
        assert store.find_topic("two") is None
        store.append(1, batch("x"))
        status = store.commit_stages("w", 1, named, overwrite).status
        assert status is COMMITTED
        assert content(store, "two") == batch("two", records)
    check_clean(files=files)


def test_a_commit_is_not_begun_without_spare_descriptors(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        named = stage(store, "one", "w", 1, batch("a"))

        def refuse(operation: str, name: str) -> None:
            if name == "/data/lock":
                raise OSError(errno.ENFILE, os.strerror(errno.ENFILE), name)

        files.before_read = refuse
        size = store._decisions.journal.size
        with pytest.raises(StoreWriteFailed, match=r"make ready for a commit: .*open"):
            store.commit_stages("w", 1, [named])
        assert store._decisions.journal.size == size
        files.before_read = lambda operation, name: None
        assert store.commit_stages("w", 1, [named]).status is COMMITTED
    check_clean(files=files)


def test_a_commit_whose_topics_can_not_be_synced_for_want_of_a_descriptor(
    files: DiskFiles,
) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    with reopen(store) as again:
        named = stage(again, "one", "w", 1, batch("b"))
        with (
            refusing(files, "sync_dir", "segments/1", code=errno.EMFILE),
            pytest.raises(StoreWriteFailed, match="make ready for a commit: segments"),
        ):
            again.commit_stages("w", 1, [named])
        assert again.commit_stages("w", 1, [named]).status is COMMITTED
        assert content(again, "one") == batch("a") + batch("b")
    check_clean(files=files)


def test_a_journal_that_is_shortened_without_descriptors(files: DiskFiles) -> None:
    config = StoreConfig(journal_bytes_max=1024, **SMALL)  # type: ignore[arg-type]
    with open_store(files=files, config=config) as store:
        for sequence in range(1, 10):
            commit(store, "one", "w", sequence, batch("a"))
        with refusing(files, "sync_dir", "/data", code=errno.EMFILE):
            store._staging.expire = lambda now_ns: None  # type: ignore[method-assign]
            with pytest.raises(StoreWriteFailed, match="compact the journal"):
                store.maintain()
        assert commit(store, "one", "w", 10, batch("b")).status is COMMITTED
    check_clean(files=files)


def test_a_commit_to_a_topic_that_has_failed(files: DiskFiles) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    with refusing(files, "sync", "segments/1"), pytest.raises(StoreReadOnly):
        store.append(1, batch("x"))
    named = stage(store, "one", "w", 1, batch("b"))
    with pytest.raises(StoreReadOnly, match="a sync failed"):
        store.commit_stages("w", 1, [named])
    assert commit(store, "two", "w", 2, batch("c")).status is COMMITTED


def test_a_target_that_fails_in_the_middle(files: DiskFiles) -> None:
    """Its sync fails while the commit writes: it can't be set back here."""
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    named = stage(store, "one", "w", 1, batch("b"))
    with (
        refusing(files, "sync", "segments/1/"),
        pytest.raises(StoreReadOnly, match=r"could not be undone .*a sync failed"),
    ):
        store.commit_stages("w", 1, [named])
    with kill(store) as again:
        assert again.commit_stages("w", 1, [named]).status is REPEATED
        assert content(again, "one") == batch("a") + batch("b")
    check_clean(files=again._files)


def test_a_topic_that_had_failed_before_keeps_its_reason(files: DiskFiles) -> None:
    store = open_store(files=files)
    for name in ("one", "two"):
        store.create_topic(name)
    with refusing(files, "sync", "segments/1/", skip=1), pytest.raises(StoreReadOnly):
        store.append(1, batch("a"))
    named = stage(store, "two", "w", 1, batch("b"))
    with refusing(files, "sync", "journal"), pytest.raises(StoreReadOnly):
        store.commit_stages("w", 1, [named])
    assert "a sync failed" in str(store.topic(1).log.failure)
    assert "the journal could not be written" in str(store.topic(2).log.failure)


def test_a_stage_with_an_empty_segment(files: DiskFiles) -> None:
    """Its second batch was refused when its segment was already there."""
    with open_store(files=files, config=IN_FILES) as store:
        for sequence, records in [(1, 30), (2, 4)]:
            named = stage(store, "one", "w", sequence, batch("a", records))
            [found] = store.stages()
            found.log.close_segment()
            with refusing(files, "pwrite", ".lnc"), pytest.raises(StoreWriteFailed):
                store.append_stage(named.id, 2, batch("b"))
            assert [segment.size for segment in found.log.segments()][1:] == [0]
            store.commit_stages("w", sequence, [named])
        assert content(store, "one") == batch("a", 30) + batch("a", 4)
    check_clean(files=files)


# Batches that come at the wrong moment.


@pytest.mark.parametrize("records", [2, 30])
@pytest.mark.parametrize("moment", ["sync", "pwrite"])
def test_a_batch_that_comes_during_the_commit_does_not_reach_the_topic(
    files: DiskFiles, records: int, moment: str
) -> None:
    """A task that was given up may go on: its file may be the topic's by then."""
    config = StoreConfig(**{**SMALL, "segment_bytes": 10_000})  # type: ignore[arg-type]
    with open_store(files=files, config=config) as store:
        store.create_topic("one")
        store.append(1, batch("0"))
        named = stage(store, "one", "w", 1, batch("a", records))
        [found] = store.stages()
        late: list[threading.Thread] = []
        outcome: list[object] = []
        entered = threading.Event()
        append = found.append

        def entering(*args, **options):  # type: ignore[no-untyped-def]
            entered.set()
            return append(*args, **options)

        found.append = entering  # type: ignore[method-assign]

        def come_late() -> None:
            try:
                data = batch("late", records)
                outcome.append(store.append_stage(named.id, 2, data, wait=False))
            except StoreError as error:
                outcome.append(error)

        def hook(operation: str, name: str) -> None:
            if operation == moment and "segments/1" in name and not late:
                late.append(threading.Thread(target=come_late))
                late[0].start()
                assert entered.wait(10)
                late[0].join(0.05)  # Time to do harm, for one that is not kept out.

        with hooked(files, hook):
            store.commit_stages("w", 1, [named])
        late[0].join(10)
        assert len(outcome) == 1
        store.append(1, batch("z"))
        expected = batch("0") + batch("a", records) + batch("z")
        assert content(store, "one") == expected
        with kill(store) as again:
            assert again.findings == []
            assert content(again, "one") == expected
    check_clean(files=files)


def test_a_sync_under_way_while_a_commit_is_undone(files: DiskFiles) -> None:
    """It must not mark, nor show, an end that is gone by then."""
    with open_store(files=files) as store:
        log = store.create_topic("one").log
        store.append(1, batch("a"))
        named = [stage(store, "one", "w", 1, batch(tag)) for tag in "bc"]
        syncing, undone = threading.Event(), threading.Event()
        writes = 0
        thread = threading.Thread(target=log.sync)

        def hook(operation: str, name: str) -> None:
            nonlocal writes
            if threading.current_thread() is thread:
                if operation == "sync":
                    syncing.set()
                    undone.wait(0.05)  # The undoing waits, or would be done by then.
                return
            if operation == "pwrite" and name.endswith(".lnc"):
                writes += 1
                if writes == 2:
                    thread.start()
                    assert syncing.wait(10)
                    raise OSError("full")

        with hooked(files, hook), pytest.raises(StoreWriteFailed):
            store.commit_stages("w", 1, named)
        undone.set()
        thread.join(10)
        assert log.visible.offset == log.end().offset == 135
        assert content(store, "one") == batch("a")
    check_clean(files=files)


# Limits and names.


def test_no_more_stages_than_allowed(files: DiskFiles) -> None:
    config = StoreConfig(stages_max=2, **SMALL)  # type: ignore[arg-type]
    with open_store(files=files, config=config) as store:
        for sequence in (1, 2):
            store.open_stage("one", "w", sequence)
        with pytest.raises(StageError, match=r"2 stages are open.*\(stages_max\)"):
            store.open_stage("one", "w", 3)
        store.abort_stages("w", 1)
        store.open_stage("one", "w", 3)


@pytest.mark.parametrize(
    ("writer", "sequence", "reason"),
    [
        ("", 1, "a writer id has 1 to 1024 bytes"),
        ("x" * 1025, 1, "a writer id has 1 to 1024 bytes"),
        ("w\ud800", 1, "is not valid Unicode"),
        ("w", -1, "sequence -1 is not a u64"),
        ("w", 2**64, "is not a u64"),
    ],
)
def test_a_job_that_is_refused(
    store: Store, writer: str, sequence: int, reason: str
) -> None:
    with pytest.raises(StageError, match=reason):
        store.open_stage("one", writer, sequence)
    with pytest.raises(StageError, match=reason):
        store.commit_stages(writer, sequence, [])
    assert ids(store) == set()


def test_names_are_checked_when_the_stage_is_opened(store: Store) -> None:
    with pytest.raises(InvalidName):
        store.open_stage("../one", "w", 1)
    with pytest.raises(InvalidName):
        store.commit_stages("w", 1, [], ["../one"])
    assert tree(store.path) == {"segments/0"}


@pytest.mark.parametrize("operation", ["mkdir", "replace", "sync_dir"])
def test_a_stage_that_could_not_be_made_leaves_nothing(
    files: DiskFiles, operation: str
) -> None:
    with open_store(files=files, config=IN_FILES) as store:
        with (
            refusing(files, operation, "stages", times=1),
            pytest.raises(StoreWriteFailed, match="could not open a stage"),
        ):
            store.open_stage("one", "w", 1)
        assert files.list(store.path / "stages") == []
        store.open_stage("one", "w", 1)


def test_half_made_stages_and_foreign_files_are_left_out(store: Store) -> None:
    (store.path / "stages" / "77").mkdir()
    (store.path / "stages" / "notes").mkdir()
    with reopen(store) as again:
        assert again.stages() == []
        assert again.findings == []
    assert {p.name for p in (store.path / "stages").iterdir()} == {"notes"}


def test_stages_survive_reopening(store: Store) -> None:
    named = stage(store, "one", "w", 1, batch("a"), batch("b", 40))
    with reopen(store) as again:
        assert ids(again) == {named.id}
        assert again.commit_stages("w", 1, [named]).status is COMMITTED
        assert content(again, "one") == batch("a") + batch("b", 40)
        assert again.view(1).locate_record(5).offset == 225


def test_append_times_are_not_before_the_commit(files: DiskFiles, clock: Clock) -> None:
    with open_store(files=files, clock_ns=clock) as store:
        store.create_topic("one")
        store.append(1, batch("0"))
        named = [stage(store, "one", "w", 1, batch("a", n)) for n in (30, 2)]
        clock.forward(60)
        committed_ns = clock()
        store.commit_stages("w", 1, named)
        store = reopen(store)
        view = store.view(1)
        assert view.locate_time(committed_ns).offset == 135
        assert view.locate_time(committed_ns - 1).offset == 135
        assert view.locate_time(committed_ns + 1) == view.locate_end()
        for offset in (135, 135 + 1350):
            assert view.locate_offset(offset).append_time_ns == committed_ns
        clock.forward(60)
        store.append(1, batch("c"))
        assert store.view(1).locate_time(committed_ns + 1).offset == 135 + 1350 + 90
        store.close()


def test_append_times_when_the_clock_went_back_before_the_commit(
    files: DiskFiles, clock: Clock
) -> None:
    with open_store(files=files, clock_ns=clock) as store:
        staged_ns = clock()
        named = stage(store, "one", "w", 1, batch("a", 30))
        clock.forward(-500)
        store.commit_stages("w", 1, [named])
        clock.forward(100)
        store.append(1, batch("b"))
        for each in (store, kill(store)):
            view = each.view(1)
            times = [view.locate_offset(at).append_time_ns for at in (0, 1350)]
            assert times == [staged_ns, staged_ns]
            assert view.locate_time(staged_ns).offset == 0
            assert view.locate_time(staged_ns + 1) == view.locate_end()


class Interrupt(BaseException):
    """As KeyboardInterrupt, which would end the test run if it got away."""


@pytest.mark.parametrize("kind", ["begin", "done", "undone"])
def test_an_interrupt_leaves_a_commit_to_the_next_opening(
    files: DiskFiles, kind: str
) -> None:
    """Whether the commit counts is in the journal: the next opening acts on it."""
    data = batch("staged")
    store = open_store(files=files)
    stage_id = store.open_stage("one", "w", 1)
    store.append_stage(stage_id, 1, data)
    journal, named = store._decisions.journal, [NamedStage(stage_id, 1, len(data))]
    original = journal.append

    def interrupted(entry: dict[str, object]) -> None:
        if (kind, entry["kind"]) == ("undone", "done"):
            raise OSError(errno.EIO, "refused")
        original(entry)
        if entry["kind"] == kind:
            raise Interrupt

    journal.append = interrupted  # type: ignore[method-assign]
    with pytest.raises(Interrupt):
        store.commit_stages("w", 1, named)
    with pytest.raises(StoreReadOnly, match="interrupted"):
        store.commit_stages("w", 1, named)
    # What is written now would be set back with the commit.
    with pytest.raises(StoreReadOnly, match="interrupted"):
        store.append(0, data)
    store.close()
    with open_store(files=files) as store:
        status = store.commit_stages("w", 1, named).status
        assert status is (COMMITTED if kind == "undone" else REPEATED)
        topic = store.find_topic("one")
        assert topic is not None and read_all(topic.log) == data
    check_clean(files=files)


def test_what_a_writer_has_written_last(store: Store) -> None:
    assert store.writer_topics("job") is None
    for sequence, topics in ((1, ["a", "b"]), (2, ["c"]), (3, [])):
        named = []
        for topic in topics:
            stage = store.open_stage(topic, "job", sequence)
            store.append_stage(stage, 1, record(b"x"))
            named.append(NamedStage(stage, 1, len(record(b"x"))))
        store.commit_stages("job", sequence, named)
        assert store.writer_topics("job") == frozenset(topics)
    assert store.writer_topics("other") is None
