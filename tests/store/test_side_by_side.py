"""A long commit keeps nobody waiting who wants something else.

The commit is held in front of each of its file operations in turn, and others read,
write, make and delete topics, and commit meanwhile. What a crash leaves of two commits
that are begun is ended by the next opening, each by itself.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from lance_spark.errors import (
    StageUnknown,
    StoreClosed,
    StoreError,
    StoreLocked,
    Timeout,
    TopicExists,
)
from lance_spark.model import Retention
from lance_spark.store import CommitStatus, NamedStage, Store, StoreConfig
from tests.store.disk import Disk, DiskFiles
from tests.store.jobs import commit, content, stage
from tests.store.kit import SMALL, batch, check_clean, damage, open_store
from tests.store.seam import SeamFiles

PATIENCE_S = 60.0
COMMITTED, REPEATED, _ = CommitStatus
CONFIG = StoreConfig(journal_bytes_max=1024, wait_timeout_s=PATIENCE_S, **SMALL)  # type: ignore[arg-type]
OVERWRITTEN = ["old", "new", "newer"]

Files = SeamFiles | DiskFiles


def is_shared(where: str) -> bool:
    """Tell whether all commits share a file: one operation on it at a time."""
    return not {"segments", "stages"}.intersection(Path(where).parts)


class Gate:
    """Holds the thread that commits in front of its n-th change of the disk."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._count = 0
        self._thread: int | None = None
        self._reached = threading.Event()
        self._open = threading.Event()
        self.where: str | None = None

    def __call__(self, operation: str, name: str) -> None:
        if threading.get_ident() != self._thread:
            return
        self._count += 1
        if self._count == self._number:
            self.where = f"{operation} {name}"
            self._reached.set()
            assert self._open.wait(PATIENCE_S), "the gate was not opened"

    def run(self, do: Callable[[], object]) -> object:
        self._thread = threading.get_ident()
        try:
            return do()
        finally:
            self._reached.set()  # Perhaps there are fewer operations.

    def await_arrival(self) -> None:
        assert self._reached.wait(PATIENCE_S)

    def open(self) -> None:
        self._open.set()


@contextmanager
def held(
    files: Files, number: int, do: Callable[[], object]
) -> Iterator[tuple[Gate, Future[object]]]:
    """Do something in another thread up to an operation, and go on behind."""
    gate = Gate(number)
    outer, inner = files.before, gate

    def before(operation: str, name: str) -> None:
        inner(operation, name)
        outer(operation, name)

    files.before = before
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(gate.run, do)
        try:
            gate.await_arrival()
            yield gate, future
        finally:
            gate.open()
            future.exception(PATIENCE_S)
            files.before = outer


def begin(store: Store) -> tuple[list[NamedStage], Callable[[], CommitStatus]]:
    """Make ready a commit to some topics, old and new, replaced and not."""
    for name in ("old", "grown"):
        if store.find_topic(name) is None:
            topic = store.create_topic(name).metadata.id
            store.append(topic, batch("0"))
    named = [
        stage(store, "old", "long", 1, batch("a", 30)),
        stage(store, "grown", "long", 1, batch("b")),
        stage(store, "new", "long", 1, batch("c")),
    ]
    return named, lambda: store.commit_stages("long", 1, named, OVERWRITTEN).status


AFTER = {
    "old": batch("a", 30),
    "grown": batch("0") + batch("b"),
    "new": batch("c"),
    "newer": b"",
}


def assert_after(store: Store) -> None:
    assert {name: content(store, name) for name in AFTER} == AFTER


def do_other_things(store: Store, topic: int, number: int) -> None:
    """All that other clients may want; each of it has to end."""
    name = f"other-{number}"
    other = store.create_topic(name).metadata.id
    store.append(other, batch("x"))
    assert content(store, name) == batch("x")
    store.set_retention(other, Retention(max_bytes=10**6))
    assert commit(store, name, name, 1, batch("y")).status is COMMITTED
    assert store.commit_stages(name, 1, [], []).status is REPEATED
    stage(store, name, name, 2, batch("z"))
    assert store.abort_stages(name, 2) == 1
    assert content(store, name) == batch("x") + batch("y")
    store.commit_offset(7, topic, number)
    store._staging.expire(store._clock_ns())
    store._decisions.compact(store._clock_ns())
    store.delete_topic(other)


def test_others_go_on_while_a_commit_is_held(tmp_path: Path) -> None:
    number, held_at = 1, []
    while True:
        files, path = SeamFiles(sync=False), tmp_path / str(number)
        with open_store(path, files, CONFIG, background=True) as store:
            topic = store.create_topic("quiet").metadata.id
            store.append(topic, batch("0"))
            _, do = begin(store)
            with (
                ThreadPoolExecutor(1) as pool,
                held(files, number, do) as (gate, running),
            ):

                def others(store: Store = store, topic: int = topic) -> None:
                    store.append(topic, batch("1"))
                    assert content(store, "quiet") == batch("0") + batch("1")

                pool.submit(others).result(PATIENCE_S)
                if gate.where is None:
                    break
                assert not running.done()
                if not is_shared(gate.where):
                    work = pool.submit(do_other_things, store, topic, number)
                    work.result(PATIENCE_S)
                    held_at.append(gate.where.partition(" ")[0])
                gate.open()
                assert running.result(PATIENCE_S) is COMMITTED
            assert_after(store)
        check_clean(path)
        number += 1
    assert {"mkdir", "link", "sync", "pwrite", "replace", "sync_dir"} <= set(held_at)


def test_the_same_topics_and_writers_wait(tmp_path: Path) -> None:
    """Behind the commit they find what it has done."""
    files = SeamFiles(sync=False)
    with open_store(tmp_path, files, CONFIG, background=True) as store:
        named, do = begin(store)
        with ThreadPoolExecutor(8) as pool, held(files, 30, do) as (gate, _):
            assert gate.where is not None
            again = pool.submit(store.commit_stages, "long", 1, named, OVERWRITTEN)
            abort = pool.submit(store.abort_stages, "long", 1)
            create = pool.submit(store.create_topic, "newer")
            third = pool.submit(commit, store, "new", "w", 1, batch("d"))
            waiting = [again, abort, create, third]
            assert not any(one.done() for one in waiting)
            gate.open()
            assert again.result(PATIENCE_S).status is REPEATED
            assert abort.result(PATIENCE_S) == 0
            with pytest.raises(TopicExists):
                create.result(PATIENCE_S)
            assert third.result(PATIENCE_S).ranges[0].start == len(batch("c"))
    check_clean(tmp_path)


def test_a_wait_ends(tmp_path: Path) -> None:
    files = SeamFiles(sync=False)
    config = StoreConfig(wait_timeout_s=0.05, **SMALL)  # type: ignore[arg-type]
    # Without a thread that syncs: only commits are waited for, not the disk.
    with open_store(tmp_path, files, config) as store:
        named, do = begin(store)
        with held(files, 30, do) as (gate, running):
            assert gate.where is not None
            with pytest.raises(Timeout, match="writer 'long' is still under way"):
                store.commit_stages("long", 1, named, OVERWRITTEN)
            with pytest.raises(Timeout, match="commit to topic 'newer' is still"):
                store.create_topic("newer")
            with pytest.raises(Timeout, match="commit to topic 'old' is still"):
                store.delete_topic(1)
            store._staging.expire(store._clock_ns())  # Does not even wait.
            gate.open()
            assert running.result(PATIENCE_S) is COMMITTED
    check_clean(tmp_path)


def test_closing_waits_for_a_commit(tmp_path: Path) -> None:
    files = SeamFiles(sync=False)
    store = open_store(tmp_path, files, CONFIG, background=True)
    named, do = begin(store)
    with ThreadPoolExecutor(1) as pool, held(files, 30, do) as (gate, running):
        closing = pool.submit(store.close)
        gate.open()
        assert running.result(PATIENCE_S) is COMMITTED
        closing.result(PATIENCE_S)
    with open_store(tmp_path, files, CONFIG) as store:
        assert_after(store)
        assert store.commit_stages("long", 1, named, OVERWRITTEN).status is REPEATED
    check_clean(tmp_path)


def test_closing_does_not_wait_forever(tmp_path: Path) -> None:
    """The directory stays locked, until the commit has ended and it is closed again."""
    files = SeamFiles(sync=False)
    config = StoreConfig(wait_timeout_s=0.05, **SMALL)  # type: ignore[arg-type]
    store = open_store(tmp_path, files, config)
    named, do = begin(store)
    with held(files, 30, do) as (gate, running):
        for _ in range(2):
            with pytest.raises(
                Timeout, match=r"writer 'long' is still .* stays locked"
            ):
                store.close()
        with pytest.raises(StoreClosed):
            store.append(1, batch("late"))
        with pytest.raises(StoreLocked):
            open_store(tmp_path)
        gate.open()
        assert running.result(PATIENCE_S) is COMMITTED
    store.close()
    store.close()
    with open_store(tmp_path, files, CONFIG) as store:
        assert_after(store)
        assert store.commit_stages("long", 1, named, OVERWRITTEN).status is REPEATED
    check_clean(tmp_path)


@pytest.mark.parametrize("compacted", [False, True], ids=["", "compacted"])
@pytest.mark.parametrize("how", ["killed", "drop", "keep", "reorder"])
def test_a_crash_in_the_middle_of_two_commits(how: str, compacted: bool) -> None:
    """One is held, another is done meanwhile, and a third is held as well."""
    number, rng = 1, random.Random(5)
    while True:
        files = DiskFiles(Disk())
        store = open_store(files=files, config=CONFIG)
        named, do = begin(store)
        third = stage(store, "third", "w", 1, batch("t", 30))
        with held(files, number, do) as (gate, _):
            if gate.where is None:
                break
            if is_shared(gate.where):
                number += 1
                continue
            assert commit(store, "second", "v", 1, batch("s")).status is COMMITTED
            if compacted:
                store._decisions.journal.rewrite(store._decisions.history.entries())
            with held(
                files,
                rng.randrange(1, 25),
                lambda store=store, third=third: store.commit_stages("w", 1, [third]),
            ):
                if how == "killed":
                    left = DiskFiles(files.disk.killed())
                else:
                    left = DiskFiles(files.disk.without_power(how, rng))
        with open_store(files=left, config=CONFIG) as again:
            assert damage(again.findings) == [], gate.where
            assert content(again, "second") == batch("s"), gate.where
            status = again.commit_stages("long", 1, named, OVERWRITTEN).status
            assert status in (COMMITTED, REPEATED)
            assert_after(again)
            again.commit_stages("w", 1, [third])
            assert content(again, "third") == batch("t", 30)
            names = [topic.metadata.name for topic in again.topics()]
            assert len(names) == len(set(names)) == 6
        check_clean(files=left)
        number += 1
    assert number > 30


def test_many_at_once(tmp_path: Path) -> None:
    """Threads that commit to overlapping topics, and make and delete others."""
    threads, rounds, names = 6, 8, [f"t{n}" for n in range(5)]
    expected: dict[str, list[bytes]] = {name: [] for name in names}
    lock = threading.Lock()

    def work(store: Store, number: int) -> None:
        rng = random.Random(number)
        for sequence in range(1, rounds + 1):
            mine = rng.sample(names, rng.randrange(1, 4))
            rows = {name: batch(f"{number}-{sequence}-{name}") for name in mine}
            named = [
                stage(store, name, f"w{number}", sequence, data)
                for name, data in rows.items()
            ]
            store.commit_stages(f"w{number}", sequence, named)
            with lock:
                for name, data in rows.items():
                    expected[name].append(data)
            topic = store.create_topic(f"brief-{number}").metadata.id
            commit(store, f"brief-{number}", f"b{number}", sequence, batch("b"))
            store.maintain()
            store.delete_topic(topic)

    with open_store(tmp_path, config=CONFIG, background=True) as store:
        with ThreadPoolExecutor(threads) as pool:
            for future in [pool.submit(work, store, n) for n in range(threads)]:
                future.result(PATIENCE_S)
        for name, rows in expected.items():
            there = content(store, name)
            assert len(there) == sum(map(len, rows)) and all(r in there for r in rows)
        assert {t.metadata.name for t in store.topics()} == set(names)
    check_clean(tmp_path)


def test_topics_are_counted_while_they_are_being_made(tmp_path: Path) -> None:
    files = SeamFiles(sync=False)
    with open_store(tmp_path, files, CONFIG, background=True) as store:
        names = ["a", "b"]

        def do() -> object:
            return store.commit_stages("w", 1, [], names, topics_max=3)

        with held(files, 12, do) as (gate, _):
            assert gate.where is not None
            store.create_topic("c", topics_max=3)
            with pytest.raises(StoreError, match="topics_max"):
                store.create_topic("d", topics_max=3)
        assert {t.metadata.name for t in store.topics()} == {"a", "b", "c"}
        with pytest.raises(StageUnknown):
            store.commit_stages("w", 2, [NamedStage(1, 0, 0)])
    check_clean(tmp_path)
