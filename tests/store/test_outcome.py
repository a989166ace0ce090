"""What a failed answer means, at every place where a file operation can fail.

A request that was refused is not carried out later, whatever happens to the process or
to the power; one that may be is told as such. The test does what a client does: it
asks again until the outcome of a commit is known, or runs the job anew when the commit
is known to have failed. In the end each row is there once.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from lance_spark.errors import (
    CommitUnknown,
    StoreError,
    StoreReadOnly,
    StoreWriteFailed,
)
from lance_spark.model import Retention
from lance_spark.store import CommitStatus, NamedStage, Store, StoreConfig
from tests.store.disk import Disk, DiskFiles
from tests.store.jobs import content, stage
from tests.store.kit import ROOT, SMALL, batch, check_clean, damage, open_store

# `make crash` asks for the long run.
LONG_RUN = "LANCE_CRASH_ROUNDS" in os.environ

CONFIG = StoreConfig(wait_timeout_s=5.0, **SMALL)  # type: ignore[arg-type]
COMMITTED, REPEATED, _ = CommitStatus
OVERWRITTEN = ("two", "four")

# Copied behind what is there, adopted into a topic that is replaced, a new topic.
JOB = {"one": batch("a"), "two": batch("b", 30), "three": batch("c")}

BEFORE = {"one": batch("0"), "two": batch("1", 30)}
AFTER = {
    "one": batch("0") + batch("a"),
    "two": batch("b", 30),
    "three": batch("c"),
    "four": b"",
}

Hook = Callable[[str, str], None]


def seen(store: Store) -> dict[str, bytes]:
    names = [topic.metadata.name for topic in store.topics()]
    assert len(names) == len(set(names)), names
    return {name: content(store, name) for name in names}


def stage_job(store: Store, writer: str) -> list[NamedStage]:
    return [stage(store, topic, writer, 1, data) for topic, data in JOB.items()]


@dataclass(frozen=True)
class Fault:
    """What fails: the n-th operation, and those behind it as well if it lasts."""

    number: int
    code: int = errno.EIO
    lasts: bool = False
    torn_share: float = 0.5
    restart: str = "killed"
    seed: int = 0


class Failing:
    """Refuses an operation, and counts all."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.count = 0
        self.said = ""

    def __call__(self, operation: str, name: str) -> None:
        self.count += 1
        late = self.count - self.fault.number
        if late == 0 or (late > 0 and self.fault.lasts):
            self.said = self.said or f"{operation} {name}"
            raise OSError(self.fault.code, os.strerror(self.fault.code), name)


def restart(store: Store, files: DiskFiles, fault: Fault) -> DiskFiles:
    """End the process in some way; give the disk that the next one finds."""
    if fault.restart == "closed":
        try:
            store.close()
        except StoreError:
            files.locks.clear()
        return files
    if fault.restart == "killed":
        return DiskFiles(files.disk.killed())
    rng = random.Random(fault.seed)
    return DiskFiles(files.disk.without_power(fault.restart, rng))


def prepare() -> tuple[Disk, list[NamedStage]]:
    files = DiskFiles(Disk())
    with open_store(files=files, config=CONFIG) as store:
        for name, data in BEFORE.items():
            store.append(store.create_topic(name).metadata.id, data)
        named = stage_job(store, "w")
    return files.disk, named


DISK, NAMED = prepare()


def run(fault: Fault, *, reads: bool = False) -> tuple[str, int]:
    """Commit with a fault, restart, do as a client does; tell what it was told."""
    files = DiskFiles(DISK.clone())
    store = open_store(files=files, config=CONFIG)
    failing = Failing(fault)
    files.torn_share = fault.torn_share
    if reads:
        files.before_read = failing
    else:
        files.before = failing
    try:
        assert store.commit_stages("w", 1, NAMED, OVERWRITTEN).status is COMMITTED
        told = "done"
    except CommitUnknown as error:
        told = "unknown"
        assert (error.writer, error.sequence) == ("w", 1)
        assert_waits_for_the_opening(store)
    except StoreError as error:
        told = "refused"
        assert not isinstance(error, CommitUnknown)
    files.before = files.before_read = lambda operation, name: None
    assert seen(store) == (AFTER if told == "done" else BEFORE), failing.said
    left = restart(store, files, fault)
    with open_store(files=left, config=CONFIG) as store:
        assert damage(store.findings) == [], failing.said
        if told == "done":
            assert seen(store) == AFTER, failing.said
            expected = [REPEATED]
        elif told == "unknown":
            assert seen(store) in (BEFORE, AFTER), failing.said
            expected = [REPEATED if seen(store) == AFTER else COMMITTED]
        else:
            # Refused is refused: it is not carried out behind the client's back.
            assert seen(store) == BEFORE, failing.said
            expected = [COMMITTED]
        if told == "refused" and fault.number % 2:
            # What a batch write does that is run anew: another writer.
            job, named = "x", stage_job(store, "x")
        else:
            job, named = "w", NAMED
        status = store.commit_stages(job, 1, named, OVERWRITTEN).status
        assert status in expected, failing.said
        assert seen(store) == AFTER, failing.said
        store.append(1, batch("z"))
    check_clean(files=left)
    return told, failing.count


def assert_waits_for_the_opening(store: Store) -> None:
    """Until then the outcome can't be known, and nothing may change what it is."""
    for _ in range(2):
        with pytest.raises(CommitUnknown, match="same writer and sequence"):
            store.commit_stages("w", 1, NAMED, OVERWRITTEN)
    for refused in (
        lambda: store.commit_stages("w", 2, [], ["one"]),
        lambda: store.commit_stages("v", 1, [], ["five"]),
        lambda: store.abort_stages("w", 1),
        lambda: store.append(1, batch("x")),
        lambda: store.create_topic("three"),
        lambda: store.delete_topic(1),
    ):
        with pytest.raises(StoreReadOnly, match="reopen the store") as told:
            refused()
        assert not isinstance(told.value, CommitUnknown)


def make_ways() -> Iterator[Fault]:
    restarts = ["closed", "killed", "drop", "keep", "reorder"]
    # Without descriptors an undo has patience: that is for other tests.
    codes = [(errno.EIO, True), (errno.EIO, False), (errno.ENOSPC, False)]
    for code, lasts in [*codes, (errno.EMFILE, False)]:
        for share in (0.0, 0.5, 1.0):
            for how in restarts:
                yield Fault(0, code, lasts, share, how)


# Of the many ways each operation gets a few, another mixture each time.
WAYS = list(make_ways())
EACH = len(WAYS) if LONG_RUN else 3


@pytest.mark.parametrize("reads", [False, True], ids=["changes", "reads"])
def test_a_commit_is_there_once_wherever_it_fails(reads: bool) -> None:
    _, operations = run(Fault(10**9), reads=reads)
    assert operations > 20
    told = {"done": 0, "unknown": 0, "refused": 0}
    rng = random.Random(7)
    for number in range(1, operations + 1):
        for way in rng.sample(WAYS, EACH):
            fault = replace(way, number=number, seed=rng.randrange(100))
            outcome, _ = run(fault, reads=reads)
            told[outcome] += 1
    assert all(told.values()) or reads, told


def test_a_plan_that_is_taken_back_stays_away() -> None:
    """A write that is refused may have written all: the disk must not keep it."""
    [number] = [
        number
        for number, name in enumerate(list_changes(), 1)
        if name == f"pwrite {ROOT}/journal.log"
    ][:1]
    for seed in range(40):
        fault = Fault(number, torn_share=1.0, restart="reorder", seed=seed)
        assert run(fault)[0] == "refused"


def list_changes() -> list[str]:
    """Name all that a commit changes on the disk."""
    files = DiskFiles(DISK.clone())
    store = open_store(files=files, config=CONFIG)
    changes: list[str] = []
    files.before = lambda operation, name: changes.append(f"{operation} {name}")
    store.commit_stages("w", 1, NAMED, OVERWRITTEN)
    return changes


# The same for what is no commit.


def retention_of(store: Store) -> Retention:
    return store.topic(1).metadata.retention


@pytest.mark.parametrize("how", ["closed", "killed", "drop", "keep", "reorder"])
@pytest.mark.parametrize("lasts", [False, True])
def test_a_refused_change_of_a_topic_does_not_come_later(lasts: bool, how: str) -> None:
    """Retention that was refused would delete records after the next start."""
    number, failing = 1, None
    while failing is None or failing.said:
        files = DiskFiles(DISK.clone())
        store = open_store(files=files, config=CONFIG)
        files.before = failing = Failing(Fault(number, lasts=lasts))
        try:
            store.set_retention(1, Retention(max_bytes=1))
            expected = [Retention(max_bytes=1)]
        except StoreWriteFailed:
            expected = [Retention()]
        except StoreError as error:
            assert "once the store is reopened" in str(error)
            expected = [Retention(), Retention(max_bytes=1)]
        files.before = lambda operation, name: None
        left = restart(store, files, Fault(number, restart=how))
        with open_store(files=left, config=CONFIG) as store:
            assert retention_of(store) in expected, failing.said
        number += 1
    assert number > 4


@pytest.mark.parametrize("how", ["closed", "killed", "drop", "keep", "reorder"])
@pytest.mark.parametrize("lasts", [False, True])
def test_a_refused_topic_does_not_come_later(lasts: bool, how: str) -> None:
    number, failing, outcomes = 1, None, set()
    while failing is None or failing.said:
        files = DiskFiles(DISK.clone())
        store = open_store(files=files, config=CONFIG)
        files.before = failing = Failing(Fault(number, lasts=lasts))
        try:
            store.create_topic("new")
            expected, told = [True], "done"
        except StoreWriteFailed:
            expected, told = [False], "refused"
        except StoreReadOnly as error:
            assert "once the store is reopened" in str(error)
            expected, told = [False, True], "unknown"
            files.before = lambda operation, name: None
            with pytest.raises(StoreReadOnly, match="reopen it first"):
                store.create_topic("new")
            with pytest.raises(StoreReadOnly, match="reopen it first"):
                store.commit_stages("v", 1, [], ["new"])
        files.before = lambda operation, name: None
        store.create_topic("other")
        left = restart(store, files, Fault(number, restart=how))
        with open_store(files=left, config=CONFIG) as store:
            assert damage(store.findings) == []
            assert (store.find_topic("new") is not None) in expected, failing.said
            assert store.find_topic("other") is not None
            seen(store)  # No name is there twice.
        check_clean(files=left)
        outcomes.add(told)
        number += 1
    assert outcomes == {"done", "refused"} | ({"unknown"} if lasts else set())


def test_a_deletion_that_is_not_durable_says_so() -> None:
    files = DiskFiles(DISK.clone())
    store = open_store(files=files, config=CONFIG)

    def broken(operation: str, name: str) -> None:
        if operation == "sync_dir":
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    files.before = broken
    with pytest.raises(StoreReadOnly, match="is deleted, but may be back after a loss"):
        store.delete_topic(1)
    assert store.find_topic("one") is None
    with open_store(files=DiskFiles(files.disk.killed()), config=CONFIG) as store:
        assert store.find_topic("one") is None
