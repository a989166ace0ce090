"""Every file operation failing in turn: a clear error, and nothing acknowledged lost.

The scenario of the power loss tests runs with the n-th operation refused, once or from
then on. Each step either works or raises an error of the store; what worked stays
visible all along, in the same store, after reopening, and in the checker's eyes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from lance_spark.errors import (
    LanceError,
    StoreError,
    StoreReadOnly,
    StoreWriteFailed,
    UnknownTopic,
)
from lance_spark.store import Fsync, NamedStage, Store, StoreConfig
from lance_spark.store.files import OsFiles
from tests.store.disk import Disk, DiskFiles
from tests.store.kit import (
    SMALL,
    batch,
    check_clean,
    damage,
    open_store,
    read_all,
)

pytestmark = pytest.mark.crash

# `make crash` asks for the long run.
LONG_RUN = "LANCE_CRASH_ROUNDS" in os.environ

CONFIG = StoreConfig(fsync=Fsync.BATCH, journal_bytes_max=1024, **SMALL)  # type: ignore[arg-type]


class Failing:
    """Refuses the n-th operation with an error number, and all later ones if asked."""

    def __init__(self, number: int, code: int, *, lasting: bool) -> None:
        self.number = number
        self.code = code
        self.lasting = lasting
        self.count = 0
        self.operation = ""

    def __call__(self, operation: str, name: str) -> None:
        self.count += 1
        hit = self.count >= self.number if self.lasting else self.count == self.number
        if hit:
            self.operation = self.operation or f"{operation} {name}"
            raise OSError(self.code, os.strerror(self.code), name)


@dataclass
class Promised:
    """What was acknowledged, by topic name.

    What was refused with StoreWriteFailed is not there. What met any other error of
    the store is in doubt: the next sync, or the next opening, may show it.
    """

    topics: dict[str, list[bytes]] = field(default_factory=dict)
    in_doubt: dict[str, list[bytes]] = field(default_factory=dict)
    replaced_in_doubt: dict[str, bytes] = field(default_factory=dict)
    refused: int = 0

    def check(self, store: Store) -> None:
        for name, batches in self.topics.items():
            topic = store.find_topic(name)
            assert topic is not None, f"{name} is gone"
            there = read_all(topic.log)
            for doubtful in self.in_doubt.get(name, []):
                there = there.replace(doubtful, b"")
            assert there in (b"".join(batches), self.replaced_in_doubt.get(name)), name


def run(store: Store, promised: Promised) -> None:
    """Do everything once; note what was promised, go on after a refusal."""

    def attempt(name: str | None, data: list[bytes], do: Callable[[], object]) -> None:
        try:
            do()
        except StoreWriteFailed:
            promised.refused += 1
        except UnknownTopic:
            pass  # Its creation was refused.
        except StoreError:
            promised.refused += 1
            if name is not None:
                promised.in_doubt.setdefault(name, []).extend(data)
        else:
            if name is not None:
                promised.topics.setdefault(name, []).extend(data)

    def append(name: str, tag: str, records: int = 3) -> None:
        topic = store.find_topic(name)
        data = batch(tag, records)
        if topic is not None:
            attempt(name, [data], lambda: store.append(topic.metadata.id, data))

    def commit(sequence: int, sizes: dict[str, int], *overwrite: str) -> None:
        named, added = [], {}
        try:
            for name, records in sizes.items():
                stage = store.open_stage(name, "w", sequence)
                data = batch(f"{sequence}-{name}", records)
                store.append_stage(stage, 1, data)
                named.append(NamedStage(stage, 1, len(data)))
                added[name] = data
            store.commit_stages("w", sequence, named, overwrite)
        except StoreWriteFailed:
            promised.refused += 1
            return
        except StoreError:
            promised.refused += 1
            for name in {*added, *overwrite}:
                if name in overwrite:
                    promised.replaced_in_doubt[name] = added.get(name, b"")
                else:
                    promised.in_doubt.setdefault(name, []).append(added[name])
            return
        for name in {*added, *overwrite}:
            kept = [] if name in overwrite else promised.topics.get(name, [])
            promised.topics[name] = kept + ([added[name]] if name in added else [])

    attempt("one", [], lambda: store.create_topic("one"))
    append("one", "a")
    append("one", "b", 30)
    append("one", "c", 30)
    commit(1, {"one": 3, "two": 4})
    append("one", "d")
    commit(2, {"one": 20, "two": 25})
    append("two", "e")
    commit(3, {"two": 2}, "two", "three")
    append("one", "f")
    attempt(None, [], lambda: store.commit_offset(1, 1, 135))
    attempt(None, [], store.maintain)
    append("two", "g")


def count_operations() -> int:
    files = DiskFiles(Disk())
    files.before = counter = Failing(10**9, 0, lasting=False)
    store = open_store(files=files, config=CONFIG)
    run(store, Promised())
    store.close()
    return counter.count


OPERATIONS = count_operations()


WAYS = [("ENOSPC", "once"), ("EIO", "from then on"), ("EMFILE", "once")]
MORE_WAYS = [("EIO", "once"), ("ENOSPC", "from then on")]


@pytest.mark.parametrize(("error", "how"), WAYS + MORE_WAYS * LONG_RUN)
def test_every_change_failing(error: str, how: str) -> None:
    code, lasting = getattr(errno, error), how == "from then on"
    refused = tried = 0
    # By default each way meets every other operation, and the next way the others.
    first, stride = (1, 1) if LONG_RUN else (1 + WAYS.index((error, how)) % 2, 2)
    for number in range(first, OPERATIONS + 1, stride):
        tried += 1
        files = DiskFiles(Disk())
        files.before = failing = Failing(number, code, lasting=lasting)
        promised = Promised()
        try:
            store = open_store(files=files, config=CONFIG)
        except StoreError:
            store = None
        if store is not None:
            run(store, promised)
            promised.check(store)
            try:
                store.close()
            except LanceError:
                refused += 1
        refused += promised.refused
        files.locks.clear()
        files.before = lambda operation, name: None
        with open_store(files=files, config=CONFIG) as again:
            assert damage(again.findings) == [], failing.operation
            promised.check(again)
            for topic in again.topics():
                again.append(topic.metadata.id, batch("after"))
        check_clean(files=files)
    assert refused > tried / 2


def test_every_read_failing() -> None:
    """What can't be read is an error, never wrong or missing data."""
    files = DiskFiles(Disk())
    promised = Promised()
    with open_store(files=files, config=CONFIG) as store:
        run(store, promised)
    image = files.disk.killed()
    outcomes = set()
    for number in range(1, 400):
        files = DiskFiles(image.killed())
        files.before_read = failing = Failing(number, errno.EMFILE, lasting=False)
        try:
            with open_store(files=files, config=CONFIG) as store:
                promised.check(store)
            outcomes.add("read")
        except StoreError as error:
            assert "Too many open files" in str(error)
            outcomes.add("refused")
        files.before_read = lambda operation, name: None
        files.locks.clear()
        with open_store(files=files, config=CONFIG) as store:
            promised.check(store)
        if failing.count < number:
            break
    else:
        raise AssertionError("more reads than were tried")
    assert outcomes == {"read", "refused"}
    check_clean(files=files)


def test_a_full_disk_recovers_when_there_is_room(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """The store goes on by itself once the disk takes bytes again."""
    files = DiskFiles(Disk())
    with open_store(files=files, config=CONFIG) as store:
        topic = store.create_topic("one").metadata.id
        store.append(topic, batch("a"))

        def full(operation: str, name: str) -> None:
            if operation == "pwrite":
                raise OSError(errno.ENOSPC, "No space left on device")

        files.before = full
        for _ in range(3):
            with pytest.raises(StoreWriteFailed, match="No space left"):
                store.append(topic, batch("refused"))
        files.before = lambda operation, name: None
        store.append(topic, batch("b"))
        assert read_all(store.topic(topic).log) == batch("a") + batch("b")
    check_clean(files=files)


def test_a_failed_sync_makes_the_topic_read_only() -> None:
    """A sync that failed is never tried again: a second one would prove nothing."""
    files = DiskFiles(Disk())
    with open_store(files=files, config=CONFIG) as store:
        one = store.create_topic("one").metadata.id
        two = store.create_topic("two").metadata.id
        store.append(one, batch("a"))

        def broken(operation: str, name: str) -> None:
            if operation == "sync" and "segments/1/" in name:
                raise OSError(errno.EIO, "Input/output error")

        files.before = broken
        with pytest.raises(StoreReadOnly, match="sync failed"):
            store.append(one, batch("refused"))
        files.before = lambda operation, name: None
        with pytest.raises(StoreReadOnly, match="reopen the store"):
            store.append(one, batch("also refused"))
        store.append(two, batch("b"))
        assert read_all(store.topic(one).log) == batch("a")
    with open_store(files=files, config=CONFIG) as store:
        assert read_all(store.topic(one).log).startswith(batch("a"))
        store.append(one, batch("c"))
    check_clean(files=files)


def test_a_file_system_without_links_copies_large_stages(tmp_path) -> None:  # type: ignore[no-untyped-def]
    class NoLinks(OsFiles):
        def link(self, source, target) -> None:  # type: ignore[no-untyped-def]
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    data = batch("staged", 50)
    with open_store(tmp_path, NoLinks(), CONFIG) as store:
        stage = store.open_stage("one", "w", 1)
        store.append_stage(stage, 1, data)
        store.commit_stages("w", 1, [NamedStage(stage, 1, len(data))])
        topic = store.find_topic("one")
        assert topic is not None and read_all(topic.log) == data
    check_clean(tmp_path)
