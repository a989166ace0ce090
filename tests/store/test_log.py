"""The side of a log that writes."""

from __future__ import annotations

import errno
import random
import threading

import numpy as np
import pytest

from lance_spark.errors import (
    StoreError,
    StoreReadOnly,
    StoreWriteFailed,
    Timeout,
)
from lance_spark.store import Fsync, Store, StoreConfig
from tests.store.disk import DiskFiles
from tests.store.jobs import Clock, content, hooked, kill, refusing, reopen
from tests.store.kit import (
    SMALL,
    batch,
    check_clean,
    open_store,
    read_all,
    record,
)


def config(**settings: object) -> StoreConfig:
    return StoreConfig(**{**SMALL, **settings})  # type: ignore[arg-type]


def sizes(store: Store, topic: int = 1) -> list[int]:
    return [segment.size for segment in store.topic(topic).log.segments()]


# Appending.


def test_what_an_append_tells(store: Store) -> None:
    store.create_topic("one")
    first = store.append(1, batch("a"))
    assert (first.start, first.end, first.record, first.records) == (0, 135, 0, 3)
    second = store.append(1, record(b""))
    assert (second.start, second.end, second.record) == (135, 140, 3)
    assert store.topic(1).log.visible == (140, 4, 0)


@pytest.mark.parametrize("size", [0, 1001])
def test_a_batch_has_a_size(files: DiskFiles, size: int) -> None:
    with open_store(files=files, config=config(batch_bytes_max=1000)) as store:
        store.create_topic("one")
        starts = np.zeros(1, np.int64)
        with pytest.raises(
            StoreError, match=rf"of {size} bytes; a batch has 1 to 1000"
        ):
            store.append(1, bytes(size), starts)
        store.append(1, bytes(1000), starts)
        assert sizes(store) == [1000]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_appended(store: Store, kind) -> None:  # type: ignore[no-untyped-def]
    store.create_topic("one")
    store.append(1, kind(batch("a")))
    assert content(store, "one") == batch("a")


# Segments.


def test_a_segment_is_closed_before_it_grows_past_its_size(store: Store) -> None:
    store.create_topic("one")
    for tag, records in [("a", 20), ("b", 13), ("c", 1), ("d", 100), ("e", 1)]:
        store.append(1, batch(tag, records))
    assert sizes(store) == [1485, 45, 4500, 45]


def test_a_segment_is_closed_when_it_is_old(files: DiskFiles) -> None:
    clock = Clock()
    with open_store(
        files=files, config=config(segment_age_s=60), clock_ns=clock
    ) as store:
        store.create_topic("one")
        store.append(1, batch("a"))
        clock.forward(59)
        store.append(1, batch("b"))
        clock.forward(1)
        store.append(1, batch("c"))
        assert sizes(store) == [270, 135]


def test_age_can_be_turned_off(files: DiskFiles) -> None:
    clock = Clock()
    with open_store(
        files=files, config=config(segment_age_s=0), clock_ns=clock
    ) as store:
        store.create_topic("one")
        store.append(1, batch("a"))
        clock.forward(10**6)
        store.append(1, batch("b"))
        store.maintain()
        assert sizes(store) == [270]


def test_a_segment_is_closed_when_its_index_is_large(files: DiskFiles) -> None:
    settings = config(index_bytes_max=4096, segment_bytes=10**6)
    with open_store(files=files, config=settings) as store:
        store.create_topic("one")
        for _ in range(100):
            store.append(1, record(b"x"))
        log = store.topic(1).log
        assert [segment.rows for segment in log.segments()] == [83, 17]
        assert all(segment.index_bytes <= 4096 + 48 for segment in log.segments())


def test_nothing_is_rolled_where_nothing_is(store: Store) -> None:
    log = store.create_topic("one").log
    log.roll_if_aged(10**18)
    log.close_segment()
    assert log.segments() == []
    assert log.last_append_ns == 0


# Times.


def test_append_times_never_go_back(files: DiskFiles) -> None:
    clock = Clock()
    store = open_store(files=files, clock_ns=clock)
    store.create_topic("one")
    latest = clock()
    store.append(1, batch("a", 20))
    for tag in "bcd":
        clock.forward(-100)
        store.append(1, batch(tag, 20))
    for each in (store, kill(store)):
        view = each.view(1)
        assert [s.last_append_ns for s in view.segments] == [latest] * 4
        assert view.locate_time(latest).offset == 0
        assert view.locate_time(latest + 1) == view.locate_end()
        assert each.append(1, batch("e")).start == 3600
        assert each.view(1).locate_offset(3600).append_time_ns == latest


def test_an_empty_last_segment_keeps_the_time(files: DiskFiles) -> None:
    clock = Clock()
    settings = config(segment_age_s=60)
    store = open_store(files=files, config=settings, clock_ns=clock)
    store.create_topic("one")
    store.append(1, batch("a"))
    appended = clock()
    clock.forward(61)
    store.maintain()
    for each in (store, kill(store)):
        assert sizes(each) == [135, 0]
        assert each.view(1).locate_time(5).offset == 0
        assert each.view(1).locate_time(appended + 1) == each.view(1).locate_end()


# Durability.


def test_with_batch_nothing_is_visible_until_it_is_durable(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        log = store.create_topic("one").log
        first = store.append(1, batch("a"), wait=False)
        second = store.append(1, batch("b"), wait=False)
        assert log.visible.offset == 0
        assert store.read(1, 0, 10**6).read() == b""
        store.wait_durable(1, first)
        assert log.visible.offset == second.end
        assert content(store, "one") == batch("a") + batch("b")


def test_with_always_each_append_is_synced(files: DiskFiles) -> None:
    with open_store(files=files, config=config(fsync=Fsync.ALWAYS)) as store:
        store.create_topic("one")
        store.append(1, batch("a"), wait=False)
        syncs: list[str] = []

        def note(operation: str, name: str) -> None:
            if operation == "sync":
                syncs.append(name.rsplit(".")[-1])

        with hooked(files, note):
            for tag in "bc":
                store.append(1, batch(tag), wait=False)
                assert store.view(1).end.offset == store.topic(1).log.end().offset
        assert syncs == ["lnc", "idx"] * 2


def test_with_none_nothing_is_synced(files: DiskFiles) -> None:
    with open_store(files=files, config=config(fsync=Fsync.NONE)) as store:
        store.create_topic("one")
        store.append(1, batch("a", 20))

        def refuse(operation: str, name: str) -> None:
            # The header of a new index is synced all the same.
            assert operation != "sync" or name.endswith(".idx")

        with hooked(files, refuse):
            for tag in "bcd":
                store.append(1, batch(tag, 20))
        assert store.view(1).end.offset == 3600
        with kill(store) as again:
            assert again.view(1).end.offset == 3600
    check_clean(files=files)


def test_waiting_takes_no_longer_than_allowed(store: Store) -> None:
    log = store.create_topic("one").log
    appended = store.append(1, batch("a"), wait=False)
    with pytest.raises(Timeout, match=r"segments/1: not durable after 0\.001 s"):
        log.wait(appended.end, timeout_s=0.001)
    log.sync()
    log.wait(appended.end, timeout_s=0)


def test_waiting_ends_when_the_disk_fails(files: DiskFiles) -> None:
    store = open_store(files=files)
    log = store.create_topic("one").log
    appended = store.append(1, batch("a"), wait=False)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            log.wait(appended.end, timeout_s=30)
        except StoreReadOnly as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    with refusing(files, "sync", "segments/1"), pytest.raises(StoreReadOnly):
        log.sync()
    waiter.join(30)
    assert "a sync failed" in str(errors[0])


def test_a_sync_under_way_while_the_last_segment_goes(files: DiskFiles) -> None:
    """An overwrite with zero rows leaves no segment to look at."""
    with open_store(files=files) as store:
        log = store.create_topic("one").log
        store.append(1, batch("a"))
        syncing, shown = threading.Event(), threading.Event()
        errors: list[BaseException] = []

        def sync() -> None:
            try:
                log.sync()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=sync)

        def hook(operation: str, name: str) -> None:
            if threading.current_thread() is thread:
                if operation == "sync" and name.endswith(".lnc"):
                    syncing.set()
                    shown.wait(0.1)
            elif operation == "replace" and "segments/1" in name:
                log._writes += 1  # Else it knows that all of it is durable.
                thread.start()
                assert syncing.wait(10)

        with hooked(files, hook):
            store.commit_stages("w", 1, [], ["one"])
        shown.set()
        thread.join(10)
        assert errors == []
        assert log.visible.offset == 135
    check_clean(files=files)


# Failure.


@pytest.mark.parametrize("ending", ["lnc", "idx"])
def test_a_refused_append_is_taken_back(files: DiskFiles, ending: str) -> None:
    with open_store(files=files) as store:
        topic = store.create_topic("one")
        store.append(1, batch("a"))
        with (
            refusing(files, "pwrite", f".{ending}", code=errno.ENOSPC),
            pytest.raises(
                StoreWriteFailed, match=r"could not append 135 bytes: .*nothing"
            ),
        ):
            store.append(1, batch("b"))
        with kill(store) as again:
            assert again.findings == []
        check_clean(files=again._files)
        [segment] = store.topic(1).log.segments()
        sizes_there = {e.name[-3:]: e.size for e in files.list(topic.log.directory)}
        assert sizes_there["lnc"] == segment.size == 135
        assert sizes_there["idx"] == segment.index_bytes
        store.append(1, batch("c"))
        assert content(store, "one") == batch("a") + batch("c")
    check_clean(files=files)


@pytest.mark.parametrize("ending", ["lnc", "idx"])
def test_a_refused_append_does_not_come_with_the_loss_of_power(
    files: DiskFiles, ending: str
) -> None:
    """Its writer was told that nothing is stored, and appends it once more."""
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    files.torn_share = 1.0
    with refusing(files, "pwrite", f".{ending}"), pytest.raises(StoreWriteFailed):
        store.append(1, batch("b"))
    for seed in range(30):
        left = DiskFiles(files.disk.without_power("reorder", random.Random(seed)))
        with open_store(files=left) as again:
            assert content(again, "one") == batch("a"), seed
    store.append(1, batch("b"))
    assert content(store, "one") == batch("a") + batch("b")
    store.close()


def test_an_append_that_can_not_be_taken_back_is_the_last(files: DiskFiles) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    with (
        refusing(files, "pwrite", ".idx"),
        refusing(files, "truncate", ".lnc"),
        pytest.raises(StoreWriteFailed),
    ):
        store.append(1, batch("b"))
    assert "could not be undone" in str(store.topic(1).log.failure)
    with pytest.raises(StoreReadOnly, match="mend the disk and reopen the store"):
        store.append(1, batch("c"))
    assert content(store, "one") == batch("a")
    with kill(store) as again:
        assert content(again, "one") == batch("a")
        again.append(1, batch("c"))
    check_clean(files=again._files)


@pytest.mark.parametrize("operation", ["create", "pwrite", "sync", "sync_dir"])
def test_a_segment_that_could_not_be_started(files: DiskFiles, operation: str) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        with (
            refusing(files, operation, "segments/1", times=1),
            pytest.raises(StoreWriteFailed, match="could not start a segment"),
        ):
            store.append(1, batch("a"))
        assert sizes(store) == []
        store.append(1, batch("b"))
        assert content(store, "one") == batch("b")
    check_clean(files=files)


def test_a_half_made_segment_that_can_not_be_removed(files: DiskFiles) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    with (
        refusing(files, "create", ".lnc"),
        refusing(files, "unlink", ".idx"),
        pytest.raises(StoreWriteFailed),
    ):
        store.append(1, batch("a"))
    with pytest.raises(StoreReadOnly, match="a half-made segment could not be removed"):
        store.append(1, batch("a"))
    with kill(store) as again:
        again.append(1, batch("a"))
    check_clean(files=again._files)


def test_a_segment_that_can_not_be_opened(files: DiskFiles) -> None:
    """Too many open files: the append is refused, the log goes on."""
    with open_store(files=files) as store:
        store.create_topic("one")
        store.append(1, batch("a"))
        store._context.segments.drop_topic(1)

        def refuse(operation: str, name: str) -> None:
            raise OSError(errno.EMFILE, "Too many open files", name)

        files.before_read = refuse
        with pytest.raises(StoreWriteFailed, match="could not open 0_"):
            store.append(1, batch("b"))
        files.before_read = lambda operation, name: None
        store.append(1, batch("c"))
        assert content(store, "one") == batch("a") + batch("c")
    check_clean(files=files)


def test_a_sync_that_was_not_even_tried_can_be_repeated(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        appended = store.append(1, batch("a"), wait=False)
        store._context.segments._open.clear()

        def refuse(operation: str, name: str) -> None:
            raise OSError(errno.EMFILE, "Too many open files", name)

        files.before_read = refuse
        with pytest.raises(StoreError, match="written could not be synced"):
            store.wait_durable(1, appended)
        files.before_read = lambda operation, name: None
        store.wait_durable(1, appended)
        assert content(store, "one") == batch("a")


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_sync_without_a_descriptor_for_the_directory(
    files: DiskFiles, code: int
) -> None:
    """The first sync after an opening needs one: that is no reason to end."""
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    with reopen(store) as again:
        appended = again.append(1, batch("b"), wait=False)
        with refusing(files, "sync_dir", "segments/1", code=code):
            for _ in range(3):
                with pytest.raises(StoreError, match="written could not be synced"):
                    again.wait_durable(1, appended)
        assert content(again, "one") == batch("a")
        again.wait_durable(1, appended)
        again.append(1, batch("c"))
        assert content(again, "one") == batch("a") + batch("b") + batch("c")
    check_clean(files=files)


def test_a_segment_that_can_not_be_closed_for_want_of_a_descriptor(
    files: DiskFiles,
) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a", 30))
    with reopen(store) as again:
        with (
            refusing(files, "sync_dir", "segments/1", code=errno.EMFILE),
            pytest.raises(StoreWriteFailed, match=r"close a segment.*nothing was"),
        ):
            again.append(1, batch("refused", 30))
        again.append(1, batch("b", 30))
        assert content(again, "one") == batch("a", 30) + batch("b", 30)
    check_clean(files=files)


def test_segments_that_can_not_be_removed_go_with_the_next_opening(
    files: DiskFiles,
) -> None:
    store = open_store(files=files)
    topic = store.create_topic("one")
    for tag in "abc":
        store.append(1, batch(tag, 20))
    start = topic.metadata.start._replace(offset=900, record=20, segment=1)
    with refusing(files, "unlink", "segments/1"):
        topic.drop_before(start)
    assert topic.log.start == start
    assert len(files.list(topic.log.directory)) == 7
    topic.log.drop_before(topic.metadata.start._replace(segment=0, offset=0, record=0))
    assert topic.log.start == start
    with reopen(store) as again:
        assert content(again, "one") == batch("b", 20) + batch("c", 20)
        assert len(files.list(topic.log.directory)) == 5
    check_clean(files=files)


def test_a_closed_log_takes_no_batch(store: Store) -> None:
    log = store.create_topic("one").log
    store.append(1, batch("a"), wait=False)
    store.close()
    assert log.visible.offset == 135
    with pytest.raises(StoreReadOnly, match="the store is closed"):
        log.append(batch("b"), np.zeros(1, np.int64), now_ns=0)
    assert read_all(log) == batch("a")
