"""What the tests of stages and commits share: jobs, a clock that is set, reopening."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from contextlib import contextmanager

from lance_spark.store import CommitResult, NamedStage, Store
from lance_spark.store.entrylog import HEAD_BYTES, DurableMark, encode_head
from lance_spark.store.journal import MAGIC, JournalEntry, OpenDecisions, encode_entry
from tests.store.disk import DiskFiles
from tests.store.kit import open_store, read_all

SECOND_NS = 1_000_000_000
DAY_S = 24 * 3600


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, now_s: int = 1_700_000_000) -> None:
        self.ns = now_s * SECOND_NS

    def __call__(self) -> int:
        return self.ns

    def forward(self, seconds: int) -> None:
        self.ns += seconds * SECOND_NS


def stage(
    store: Store, topic: str, writer: str, sequence: int, *batches: bytes
) -> NamedStage:
    """Open a stage, fill it with batches 1, 2, 3 … and name it."""
    stage_id = store.open_stage(topic, writer, sequence)
    for number, data in enumerate(batches, 1):
        store.append_stage(stage_id, number, data)
    return NamedStage(stage_id, len(batches), sum(map(len, batches)))


def commit(
    store: Store, topic: str, writer: str, sequence: int, *batches: bytes
) -> CommitResult:
    """Stage batches for one topic and commit them."""
    named = stage(store, topic, writer, sequence, *batches)
    return store.commit_stages(writer, sequence, [named])


def content(store: Store, name: str) -> bytes:
    """Read all of a topic."""
    topic = store.find_topic(name)
    assert topic is not None, f"there is no topic {name!r}"
    return read_all(topic.log)


def reopen(store: Store) -> Store:
    """Close a store and open it again."""
    store.close()
    return open_store(store.path, store._files, store.config, clock_ns=store._clock_ns)


def kill(store: Store) -> Store:
    """Open what a killed process leaves of a store on a disk in memory."""
    assert isinstance(store._files, DiskFiles)
    files = DiskFiles(store._files.disk.killed())
    return open_store(store.path, files, store.config, clock_ns=store._clock_ns)


def encode_journal(*entries: JournalEntry, marked: int | None = None) -> bytes:
    """A journal of version 2 whose mark speaks of all entries, or of the first ones."""
    standing = OpenDecisions()
    for entry in entries[:marked]:
        standing.add(entry)
    sizes = [len(encode_entry(entry)) for entry in entries[:marked]]
    mark = DurableMark(HEAD_BYTES + sum(sizes), state=standing.state)
    return encode_head(MAGIC, mark) + b"".join(map(encode_entry, entries))


@contextmanager
def refusing(  # type: ignore[no-untyped-def]
    files: DiskFiles,
    operation: str,
    name: str,
    *,
    skip: int = 0,
    times: int = 1_000,
    code: int = errno.EIO,
):
    """Refuse an operation on files whose name has a certain part."""
    numbers, outer = itertools.count(), files.before

    def refuse(tried: str, path: str) -> None:
        hit = tried == operation and name in path
        if hit and skip <= next(numbers) < skip + times:
            raise OSError(code, os.strerror(code), path)
        outer(tried, path)

    with hooked(files, refuse):
        yield


@contextmanager
def hooked(files: DiskFiles, hook: Callable[[str, str], None]):  # type: ignore[no-untyped-def]
    """Call a hook before each change of the disk."""
    old, files.before = files.before, hook
    try:
        yield
    finally:
        files.before = old
