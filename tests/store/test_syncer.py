"""The thread that makes appends durable."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lance_spark.errors import StoreReadOnly, StoreWriteFailed, Timeout
from lance_spark.store import Store, StoreConfig
from lance_spark.store.log import Syncer
from tests.store.disk import DiskFiles
from tests.store.jobs import content, hooked, refusing
from tests.store.kit import SMALL, batch, check_clean, open_store


def wait_for(condition) -> None:  # type: ignore[no-untyped-def]
    """Wait for something that another thread does."""
    deadline = time.monotonic() + 10
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        tick.wait(0.001)


class FakeLog:
    """A log that says when it is synced, and may be told to fail."""

    where = "segments/1"

    def __init__(self, topic: int, *failures: Exception) -> None:
        self.topic = topic
        self.failures = list(failures)
        self.syncs = 0

    def sync(self) -> None:
        self.syncs += 1
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture
def syncer() -> Iterator[Syncer]:
    syncer = Syncer(0.0)
    yield syncer
    syncer.stop(10)
    assert not syncer._thread.is_alive()


def test_a_log_is_synced(syncer: Syncer) -> None:
    logs = [FakeLog(1), FakeLog(2)]
    for log in logs:
        syncer.request(log)  # type: ignore[arg-type]
    wait_for(lambda: all(log.syncs for log in logs))


def test_what_is_left_is_synced_when_it_stops() -> None:
    syncer = Syncer(0.0)
    log = FakeLog(1)
    syncer.request(log)  # type: ignore[arg-type]
    syncer.stop(10)
    assert log.syncs == 1
    assert not syncer._thread.is_alive()


def test_the_interval_is_kept() -> None:
    syncer = Syncer(0.05)
    log = FakeLog(1)
    started = time.monotonic()
    for count in (1, 2, 3):
        syncer.request(log)  # type: ignore[arg-type]
        wait_for(lambda count=count: log.syncs == count)
    assert time.monotonic() - started >= 0.1
    syncer.stop(10)


def test_a_failure_does_not_end_the_thread(
    syncer: Syncer, caplog: pytest.LogCaptureFixture
) -> None:
    bad = FakeLog(1, StoreReadOnly("no"), ZeroDivisionError("a bug"))
    with caplog.at_level(logging.DEBUG):
        for count in (1, 2, 3):
            syncer.request(bad)  # type: ignore[arg-type]
            wait_for(lambda count=count: bad.syncs == count)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("DEBUG", "segments/1: sync failed"),
        ("ERROR", "segments/1: sync failed"),
    ]


def test_a_sync_that_was_not_tried_is_repeated(syncer: Syncer) -> None:
    log = FakeLog(1, StoreWriteFailed("too many open files"))
    syncer.request(log)  # type: ignore[arg-type]
    wait_for(lambda: log.syncs == 2)


def test_a_stopped_syncer_does_not_repeat() -> None:
    stopping = threading.Event()

    class Endless(FakeLog):
        def sync(self) -> None:
            super().sync()
            assert stopping.wait(10)
            raise StoreWriteFailed("too many open files")

    syncer = Syncer(0.0)
    log = Endless(1)
    syncer.request(log)  # type: ignore[arg-type]
    wait_for(lambda: log.syncs == 1)
    stopper = threading.Thread(target=syncer.stop, args=(10,))
    stopper.start()
    wait_for(lambda: syncer._stopped)
    stopping.set()
    stopper.join(10)
    assert log.syncs == 1


# In a store.


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "data", background=True) as store:
        yield store
    check_clean(tmp_path / "data")


def test_appends_are_durable_when_they_return(background: Store) -> None:
    background.create_topic("one")
    for tag in "abc":
        appended = background.append(1, batch(tag))
        assert background.view(1).end.offset >= appended.end


def test_an_append_need_not_wait(background: Store) -> None:
    background.create_topic("one")
    appended = background.append(1, batch("a"), wait=False)
    background.wait_durable(1, appended)
    stage_id = background.open_stage("one", "w", 1)
    appended = background.append_stage(stage_id, 1, batch("b"), wait=False)
    background.wait_durable(stage_id, appended)


def test_many_appends_share_a_sync(files: DiskFiles) -> None:
    """Those that come while a sync is under way share the next one."""
    with open_store(files=files, background=True) as store:
        store.create_topic("one")
        store.append(1, batch("0"))
        syncs = 0
        under_way, go_on = threading.Event(), threading.Event()

        def hook(operation: str, name: str) -> None:
            nonlocal syncs
            if operation == "sync" and name.endswith(".lnc"):
                syncs += 1
                under_way.set()
                assert go_on.wait(10)

        with hooked(files, hook):
            threads = [
                threading.Thread(target=store.append, args=(1, batch(str(n))))
                for n in range(8)
            ]
            threads[0].start()
            assert under_way.wait(10)
            for thread in threads[1:]:
                thread.start()
            log = store.topic(1).log
            wait_for(lambda: log.end().offset == 9 * 135)
            go_on.set()
            for thread in threads:
                thread.join(10)
        assert syncs == 2
        assert len(content(store, "one")) == 9 * 135
    check_clean(files=files)


def test_a_disk_that_hangs_is_a_timeout(files: DiskFiles) -> None:
    config = StoreConfig(wait_timeout_s=0.02, **SMALL)  # type: ignore[arg-type]
    store = open_store(files=files, config=config, background=True)
    store.create_topic("one")
    mended = threading.Event()

    def hang(operation: str, name: str) -> None:
        if operation == "sync" and name.endswith(".lnc"):
            assert mended.wait(10)

    with hooked(files, hang):
        with pytest.raises(Timeout, match=r"segments/1: not durable after 0\.02 s"):
            store.append(1, batch("a"))
        assert store.read(1, 0, 100).read() == b""
        grown = threading.Event()
        with store.watching({1: -1}, grown.set):
            mended.set()
            assert grown.wait(10)
        assert store.view(1).end.offset == 135
    store.close()
    check_clean(files=files)


def test_a_failed_sync_reaches_everybody_who_waits(files: DiskFiles) -> None:
    store = open_store(files=files, background=True)
    store.create_topic("one")
    store.append(1, batch("a"))
    with refusing(files, "sync", "segments/1"):
        for _ in range(2):
            with pytest.raises(StoreReadOnly, match="a sync failed"):
                store.append(1, batch("b"))
    assert content(store, "one") == batch("a")
    store.close()
