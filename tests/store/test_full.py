"""A full disk: the store opens, serves reads and deletions, and refuses writes.

Once something was deleted there is room again, and everything works without reopening.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from lance_spark.errors import StoreWriteFailed
from lance_spark.model import Retention
from lance_spark.store import CommitStatus, Fsync, Store, StoreConfig
from lance_spark.store.files import RESERVE, Reserve, read_file, remove_tree
from lance_spark.store.journal import Journal, JournalEntry
from tests.store.disk import Disk, DiskFiles
from tests.store.jobs import commit, content, hooked, refusing, stage
from tests.store.kit import (
    IN_FILES,
    ROOT,
    SMALL,
    batch,
    check_clean,
    damage,
    open_store,
)

BATCHES = 40
JOURNAL_PATH = ROOT / "journal.log"


def config(fsync: Fsync) -> StoreConfig:
    return StoreConfig(fsync=fsync, **SMALL)  # type: ignore[arg-type]


def fill(store: Store) -> None:
    for name in ("one", "two"):
        retention = Retention(max_bytes=2000 if name == "two" else 0)
        topic = store.create_topic(name, retention=retention).metadata.id
        for number in range(BATCHES):
            store.append(topic, batch(f"{name}{number}", 8))
    commit(store, "one", "w", 1, batch("staged", 20))
    stage(store, "two", "w", 2, batch("waiting"))
    store.commit_offset(1, 1, 45)


def end_properly(store: Store) -> None:
    store.close()


def be_killed(store: Store) -> None:
    """Leave something behind the last mark, and half a batch behind that."""
    files = store._files
    assert isinstance(files, DiskFiles)
    store.append(1, batch("last"), wait=False)
    [segment] = store.topic(1).log.segments()[-1:]
    data = files.open(store.topic(1).log.directory / segment.name.data_file)
    data.pwrite(batch("half")[:50], data.size())


def lose_an_index(store: Store) -> None:
    files = store._files
    assert isinstance(files, DiskFiles)
    log = store.topic(1).log
    [segment] = log.segments()[-1:]
    store.close()
    files.unlink(log.directory / segment.name.index_file)


ENDS = [end_properly, be_killed, lose_an_index]


def open_full(fsync: Fsync, end: Callable[[Store], None]) -> tuple[Store, DiskFiles]:
    """Open a store on a disk without room."""
    files = DiskFiles(Disk())
    store = open_store(files=files, config=config(fsync))
    fill(store)
    end(store)
    files = DiskFiles(files.disk.killed())
    files.capacity = files.used
    store = open_store(files=files, config=config(fsync))
    # What opening has given up of its reserve, others have taken.
    files.capacity = min(files.capacity, files.used)
    return store, files


def expect_refusals(store: Store) -> None:
    for write in (
        lambda: store.append(1, batch("more", 30)),
        lambda: store.create_topic("three"),
        lambda: store.append_stage(store.stages()[0].metadata.id, 2, batch("x", 30)),
        lambda: store.set_auth(2, {"read": ["a"] * 100}),
    ):
        with pytest.raises(StoreWriteFailed, match="No space left on device"):
            write()


def expect_all(store: Store, name: str) -> None:
    parts = [batch(f"{name}{number}", 8) for number in range(BATCHES)]
    assert content(store, name).startswith(b"".join(parts))


def use(store: Store) -> None:
    """Do all that a store is for."""
    start = store.view(1).end.offset
    store.append(1, batch("after", 30))
    assert store.read(1, start, 10**6).read() == batch("after", 30)
    store.create_topic("three")
    store.commit_offset(2, 1, 90)
    commit(store, "three", "w", 3, batch("a"), batch("b", 20))
    assert content(store, "three") == batch("a") + batch("b", 20)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("fsync", list(Fsync))
def test_deleting_makes_room(fsync: Fsync, end: Callable[[Store], None]) -> None:
    store, files = open_full(fsync, end)
    assert damage(store.findings) == []
    for name in ("one", "two"):
        expect_all(store, name)
    assert store.committed_offset(1, 1) == 45
    expect_refusals(store)
    expect_all(store, "one")
    store.delete_topic(2)
    use(store)
    store.close()
    check_clean(files=files)
    with open_store(files=files, config=config(fsync)) as again:
        assert damage(again.findings) == []
        expect_all(again, "one")


@pytest.mark.parametrize("fsync", list(Fsync))
def test_retention_makes_room(fsync: Fsync) -> None:
    store, files = open_full(fsync, be_killed)
    expect_refusals(store)
    store.set_retention(2, Retention(max_bytes=1500))
    store.maintain()
    assert store.view(2).start.offset > 0
    assert files.exists(store.path / RESERVE)
    use(store)
    store.close()
    check_clean(files=files)


def test_a_disk_that_is_full_after_the_reserve_is_spent() -> None:
    """Without it retention can't write down what it drops, and drops nothing."""
    store, files = open_full(Fsync.BATCH, be_killed)
    files.unlink(store.path / RESERVE)
    files.capacity = files.used
    with pytest.raises(StoreWriteFailed, match="could not drop segments of topic 2"):
        store.maintain()
    expect_all(store, "two")
    store.delete_topic(1)
    store.maintain()
    assert store.view(2).start.offset > 0
    store.close()
    check_clean(files=files)


@pytest.mark.parametrize("records", [3, 20], ids=["copied", "adopted"])
@pytest.mark.parametrize("topic", ["one", "new"])
@pytest.mark.parametrize("overwrite", [[], ["one"]], ids=["", "overwrites"])
def test_a_commit_that_was_begun_is_undone(
    overwrite: list[str], topic: str, records: int
) -> None:
    """Its stages are kept, and it can be committed once there is room."""
    files = DiskFiles(Disk())
    store = open_store(files=files)
    fill(store)
    named = stage(store, topic, "v", 1, batch("rows", records))
    pictures: list[Disk] = []
    with hooked(files, lambda operation, name: pictures.append(files.disk.killed())):
        store.commit_stages("v", 1, [named], overwrite)
    before = content(open_store(files=DiskFiles(pictures[0].killed())), "one")
    undone = 0
    for picture in pictures:
        left = DiskFiles(picture)
        left.capacity = left.used
        with open_store(files=left) as again:
            assert damage(again.findings) == []
            notes = "\n".join(map(str, again.findings))
            if "is undone" in notes:
                undone += 1
                assert content(again, "one") == before
                again.delete_topic(2)
                result = again.commit_stages("v", 1, [named], overwrite)
                assert result.status is CommitStatus.COMMITTED
                assert content(again, topic).endswith(batch("rows", records))
        check_clean(files=left)
    assert undone


def crowd(monkeypatch: pytest.MonkeyPatch, files: DiskFiles, *kinds: str) -> list[str]:
    """Let others take all room right before the first journal entry of some kinds."""
    left, append = list(kinds), Journal.append

    def appending(journal: Journal, entry: JournalEntry) -> None:
        if entry["kind"] in left:
            left.remove(entry["kind"])
            files.capacity = files.used
        append(journal, entry)

    monkeypatch.setattr(Journal, "append", appending)
    return left


@pytest.mark.parametrize("overwrite", [[], ["one"]])
def test_the_reserve_is_for_undoing_a_commit(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch, overwrite: list[str]
) -> None:
    with open_store(files=files) as store:
        fill(store)
        before = content(store, "one")
        named = stage(store, "one", "v", 1, batch("rows"))
        left = crowd(monkeypatch, files, "done", "undone")
        with pytest.raises(StoreWriteFailed, match="was undone"):
            store.commit_stages("v", 1, [named], overwrite)
        assert left == []
        assert content(store, "one") == before
        files.capacity = None
        store.append(1, batch("next"))
        result = store.commit_stages("v", 1, [named], overwrite)
        assert result.status is CommitStatus.COMMITTED
    check_clean(files=files)


@pytest.mark.parametrize("kind", ["done", "undone"])
def test_the_reserve_is_for_ending_a_commit_when_a_store_is_opened(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    store = open_store(files=files, config=IN_FILES)
    fill(store)
    named = stage(store, "one", "v", 1, batch("rows"))
    pictures: list[Disk] = []
    with hooked(files, lambda operation, name: pictures.append(files.disk.killed())):
        store.commit_stages("v", 1, [named])
    # Its plan is written, and nothing or all of it is done; its stage is gone.
    journals = [len(read_file(DiskFiles(d), JOURNAL_PATH) or b"") for d in pictures]
    number = next(n for n, size in enumerate(journals) if size > journals[0])
    if kind == "done":
        number = next(n for n, size in enumerate(journals) if size > journals[number])
        number -= 1
    left = DiskFiles(pictures[number])
    remove_tree(left, ROOT / "stages" / str(named.id))
    missing = crowd(monkeypatch, left, kind)
    with open_store(files=left) as again:
        assert missing == []
        assert content(again, "one").endswith(batch("rows")) == (kind == "done")
        left.capacity = None
    check_clean(files=left)


def test_a_reserve_that_can_not_be_kept(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        reserve = Reserve(files, store.path / RESERVE)
        files.unlink(store.path / RESERVE)
        with refusing(files, "pwrite", RESERVE), refusing(files, "unlink", RESERVE):
            reserve.keep()
        with pytest.raises(OSError, match="Input/output error"):
            reserve.spend(lambda: fail(errno.EIO))
        files.unlink(store.path / RESERVE)
        with pytest.raises(OSError, match="No space"):
            reserve.spend(lambda: fail(errno.ENOSPC))


def fail(code: int) -> None:
    raise OSError(code, os.strerror(code))
