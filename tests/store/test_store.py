"""The store as a whole: its lock, its threads, its end."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from lance_spark.errors import (
    Corrupt,
    RecordError,
    StageMismatch,
    StageUnknown,
    StoreClosed,
    StoreError,
    StoreLocked,
    StoreReadOnly,
    StoreWriteFailed,
    Timeout,
    UnknownTopic,
)
from lance_spark.model import Retention
from lance_spark.store import NamedStage, Store, StoreConfig
from lance_spark.store.document import FIRST_STAGE_ID, encode_document
from lance_spark.store.files import File, OsFiles
from lance_spark.store.journal import encode_entry
from lance_spark.wire.lwp import scan
from tests.store.disk import DiskFiles
from tests.store.jobs import commit, content, kill, refusing, reopen, stage
from tests.store.kit import (
    SMALL,
    batch,
    check_clean,
    damage,
    newer,
    open_store,
    read_all,
    record,
)

# Opening.


def test_a_directory_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with Store(str(path), framing=scan) as store:
        assert store.path == path
        assert store.findings == []
        store.append(0, batch("a"))
    check_clean(path)


def test_a_path_that_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="could not open"):
        open_store(tmp_path / "file")


def test_another_process_is_kept_out(store: Store) -> None:
    code = (
        "import sys\n"
        "from lance_spark.wire.lwp import scan\n"
        "from lance_spark.errors import StoreLocked\n"
        "from lance_spark.store import Store, check_store\n"
        "for use in (Store, check_store):\n"
        "    try:\n"
        "        use(sys.argv[1], framing=scan)\n"
        "    except StoreLocked as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store.path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert first == second
    assert "already in use by process" in first
    assert "stop it first, or choose another data directory" in first


def test_the_same_process_is_kept_out_too(store: Store) -> None:
    with pytest.raises(StoreLocked):
        open_store(store.path)


def test_the_lock_goes_when_opening_fails(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_bytes(newer(encode_document({})))
    for _ in range(2):
        with pytest.raises(StoreError, match="format 99 is not supported"):
            open_store(tmp_path)


@pytest.mark.parametrize("name", ["journal.log", "consumers.log"])
def test_a_file_of_another_version_is_not_touched(store: Store, name: str) -> None:
    store.close()
    path = store.path / name
    data = path.read_bytes()
    head = data[:8] + (4).to_bytes(4, "little")
    path.write_bytes(head + crc32c(head).to_bytes(4, "little") + data[16:])
    with pytest.raises(StoreError, match="version 4, which is not supported"):
        open_store(store.path)
    assert path.read_bytes()[8] == 4
    path.write_bytes(data)


def test_offsets_that_can_not_be_read_are_forgotten(store: Store) -> None:
    store.create_topic("one")
    store.commit_offset(7, 1, 10)
    store.close()
    (store.path / "consumers.log").write_bytes(b"garbage, and more of it")
    with open_store(store.path) as again:
        [found] = again.findings
        assert (
            str(found)
            == "damage: consumers.log: not a file of consumer offsets; kept as .damaged"
        )
        assert again.committed_offset(7, 1) is None
        again.commit_offset(7, 1, 20)
    with open_store(store.path) as again:
        assert again.committed_offset(7, 1) == 20


def test_an_entry_of_the_journal_that_is_not_understood(store: Store) -> None:
    store.close()
    journal = store.path / "journal.log"
    data = journal.read_bytes()
    journal.write_bytes(data + encode_entry({"kind": "begin", "writer": "w"}))
    with pytest.raises(StoreError, match="of another version"):
        open_store(store.path)
    journal.write_bytes(data)


def test_ids_jump_when_the_file_that_counts_them_is_lost(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        store.open_stage("one", "w", 1)
    files.unlink(store.path / "store.json")
    with open_store(files=files) as again:
        [found] = damage(again.findings)
        assert found.where == "store.json"
        assert again.create_topic("two").metadata.id > 1_000_000
        assert again.open_stage("one", "w", 2) >= FIRST_STAGE_ID + 1_000_000


def test_offsets_of_topics_that_are_gone_are_forgotten(store: Store) -> None:
    for name in ("one", "two"):
        topic = store.create_topic(name).metadata.id
        store.commit_offset(7, topic, 10)
    store.delete_topic(1)
    with reopen(store) as again:
        assert again.committed_offset(7, 1) is None
        assert again.committed_offset(7, 2) == 10
        with pytest.raises(UnknownTopic):
            again.commit_offset(7, 1, 10)


# Appending.


def test_bytes_that_are_no_records_are_refused(store: Store) -> None:
    store.create_topic("one")
    for data in (batch("a")[:-1], batch("a") + b"\0", b"\0"):
        with pytest.raises(RecordError):
            store.append(1, data)
    stage_id = store.open_stage("one", "w", 1)
    with pytest.raises(RecordError):
        store.append_stage(stage_id, 1, batch("a")[:-1])
    assert content(store, "one") == b""


def test_starts_may_be_given(store: Store) -> None:
    store.create_topic("one")
    store.append(1, batch("a"), np.array([0, 45, 90]))
    assert store.locate(1, 46).record == 2
    stage_id = store.open_stage("one", "w", 1)
    store.append_stage(stage_id, 1, batch("b"), np.array([0, 45, 90]))
    store.commit_stages("w", 1, [NamedStage(stage_id, 1, 135)])
    assert store.locate(1, 136).record == 4


# Closing.


def test_a_closed_store_refuses_everything(store: Store) -> None:
    store.create_topic("one")
    appended = store.append(1, batch("a"))
    store.close()
    store.close()
    for call in (
        lambda: store.append(1, batch("b")),
        lambda: store.read(1, 0, 10),
        lambda: store.view(1),
        lambda: store.locate(1, 0),
        lambda: store.wait_durable(1, appended),
        lambda: store.topics(),
        lambda: store.topic(1),
        lambda: store.find_topic("one"),
        lambda: store.create_topic("two"),
        lambda: store.delete_topic(1),
        lambda: store.set_retention(1, Retention()),
        lambda: store.set_auth(1, {}),
        lambda: store.open_stage("one", "w", 1),
        lambda: store.append_stage(FIRST_STAGE_ID, 1, batch("b")),
        lambda: store.commit_stages("w", 1, []),
        lambda: store.abort_stages("w", 1),
        lambda: store.commit_offset(7, 1, 0),
        lambda: store.committed_offset(7, 1),
        lambda: store.maintain(),
    ):
        with pytest.raises(StoreClosed, match="the store is closed"):
            call()


def test_a_topic_that_is_made_or_deleted_too_late(store: Store) -> None:
    """Whoever waited for the catalogue while the store was closed."""
    store.create_topic("one")
    store.close()
    with pytest.raises(StoreClosed):
        store._catalog.remove([1])
    with pytest.raises(StoreClosed):
        store._catalog.create({"two": 1}, None, created_at=0)


def test_closing_makes_everything_durable(files: DiskFiles) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"), wait=False)
    named = NamedStage(store.open_stage("one", "w", 1), 1, 135)
    store.append_stage(named.id, 1, batch("b"), wait=False)
    store.close()
    left = DiskFiles(files.disk.without_power("drop", random.Random(0)))
    with open_store(files=left) as again:
        again.commit_stages("w", 1, [named])
        assert content(again, "one") == batch("a") + batch("b")
    check_clean(files=left)


@pytest.mark.parametrize("where", ["segments/1", "stages"])
def test_a_store_that_can_not_be_synced_is_closed_all_the_same(
    files: DiskFiles, where: str
) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"), wait=False)
    stage_id = store.open_stage("one", "w", 1)
    store.append_stage(stage_id, 1, batch("b"), wait=False)
    with (
        refusing(files, "sync", where),
        pytest.raises(StoreReadOnly, match="a sync failed"),
    ):
        store.close()
    open_store(files=files).close()


# Housekeeping.


def test_a_topic_that_fails_does_not_keep_others_from_retention(
    files: DiskFiles,
) -> None:
    store = open_store(files=files)
    for name in ("one", "two"):
        topic = store.create_topic(name, retention=Retention(max_bytes=1)).metadata.id
        for tag in "abc":
            store.append(topic, batch(tag, 20))
    with (
        refusing(files, "replace", "segments/1"),
        pytest.raises(StoreWriteFailed, match="could not drop segments of topic 1"),
    ):
        store.maintain()
    assert store.view(1).start.offset == 0
    assert store.view(2).start.offset == 1800
    store.maintain()
    assert store.view(1).start.offset == 1800
    store.close()
    check_clean(files=files)


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.set_retention(1, Retention(1, 1)),
        lambda store: store.set_auth(1, {"cn": ["a"]}),
        lambda store: store.commit_offset(7, 1, 10),
        lambda store: store.create_topic("two"),
        lambda store: store.open_stage("one", "w", 1),
        lambda store: store.commit_stages("w", 1, []),
    ],
)
def test_a_disk_that_is_full_is_an_error_of_the_store(files: DiskFiles, change) -> None:  # type: ignore[no-untyped-def]
    with open_store(files=files) as store:
        store.create_topic("one")
        with refusing(files, "pwrite", ""), pytest.raises(StoreWriteFailed):
            change(store)
        change(store)
    check_clean(files=files)


# Threads.


class CountingFiles(OsFiles):
    """Counts the syncs of data files."""

    def __init__(self) -> None:
        self.syncs = 0
        self._lock = threading.Lock()

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File:
        file = super().open(path, create=create, write=write)
        if path.suffix == ".lnc":
            sync = file.sync

            def counted() -> None:
                with self._lock:
                    self.syncs += 1
                sync()

            file.sync = counted  # type: ignore[method-assign]
        return file


def run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_many_writers_and_readers(tmp_path: Path) -> None:
    """Order is kept for each writer; no reader ever sees half a record."""
    files = CountingFiles()
    config = StoreConfig(**{**SMALL, "segment_bytes": 20_000})  # type: ignore[arg-type]
    store = open_store(tmp_path, files, config, background=True)
    topics = [store.create_topic(f"t{n}").metadata.id for n in range(3)]
    writers, appends = 6, 20
    failures: list[BaseException] = []
    done = threading.Event()

    def guard(work, *args: int):  # type: ignore[no-untyped-def]
        def run() -> None:
            try:
                work(*args)
            except BaseException as error:
                failures.append(error)

        return threading.Thread(target=run)

    def write(writer: int) -> None:
        topic = topics[writer % 3]
        for number in range(appends):
            data = batch(f"{writer}:{number}", 1 + number % 4, 10 + number)
            appended = store.append(topic, data)
            assert store.read(topic, appended.start, len(data)).read() == data

    def read(topic: int) -> None:
        offset, finished = 0, False
        grown = threading.Event()
        with store.watching({topic: -1}, grown.set):
            while not finished:
                grown.clear()
                finished = done.is_set()
                view = store.view(topic)
                while offset < view.end.offset:
                    piece = view.read(offset, 500)
                    found = scan(piece.read())
                    assert found.fault is None
                    assert len(found.starts) == piece.records
                    offset = piece.end
                grown.wait(0.02)

    readers = [guard(read, topic) for topic in topics]
    for thread in readers:
        thread.start()
    run_all([guard(write, writer) for writer in range(writers)])
    done.set()
    for thread in readers:
        thread.join(60)
    assert failures == []
    for topic in topics:
        seen: dict[bytes, list[int]] = {}
        data = read_all(store.topic(topic).log)
        starts = scan(data).starts.tolist()
        for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
            tag = data[start + 5 : end].split(b"/")[0]
            writer, number = tag.split(b":")
            numbers = seen.setdefault(writer, [])
            if not numbers or numbers[-1] != int(number):
                numbers.append(int(number))
        assert len(seen) == 2
        assert all(numbers == list(range(appends)) for numbers in seen.values())
    assert files.syncs < writers * appends
    store.close()
    check_clean(tmp_path)


def test_commits_and_appends_of_many_threads(tmp_path: Path) -> None:
    store = open_store(tmp_path, background=True)
    store.create_topic("one")
    failures: list[BaseException] = []

    def work(writer: int) -> None:
        try:
            for sequence in range(5):
                records = 30 if sequence % 2 else 3
                data = batch(f"{writer}-{sequence}", records)
                commit(store, "one", f"w{writer}", sequence, data)
                store.append(1, record(b"plain"))
                store.abort_stages(f"w{writer}", sequence + 1)
                if writer == 0:
                    store.maintain()
        except BaseException as error:
            failures.append(error)

    run_all([threading.Thread(target=work, args=(n,)) for n in range(4)])
    assert failures == []
    data = content(store, "one")
    for writer in range(4):
        places = [
            data.index(batch(f"{writer}-{n}", 30 if n % 2 else 3)) for n in range(5)
        ]
        assert places == sorted(places)
    assert data.count(record(b"plain")) == 20
    store.close()
    with open_store(tmp_path) as again:
        assert again.findings == []
        assert content(again, "one") == data
    check_clean(tmp_path)


def test_killed_in_the_middle_of_everything(files: DiskFiles) -> None:
    store = open_store(files=files)
    store.create_topic("one")
    store.append(1, batch("a"))
    named = stage(store, "two", "w", 1, batch("b", 30))
    store.commit_offset(7, 1, 135)
    with kill(store) as again:
        assert again.findings == []
        assert again.committed_offset(7, 1) == 135
        again.commit_stages("w", 1, [named])
        assert content(again, "two") == batch("b", 30)
    check_clean(files=again._files)


@pytest.mark.parametrize("starts", [[], [3], [0, 0], [0, 50, 40], [0, 135]])
def test_starts_that_can_not_be_are_refused(store: Store, starts: list[int]) -> None:
    store.create_topic("one")
    with pytest.raises(StoreError, match="leave them out"):
        store.append(1, batch("a"), np.array(starts, np.int64))
    assert store.view(1).end.offset == 0


@pytest.mark.parametrize(
    ("consumer", "offset"), [(-1, 0), (2**64, 0), (1, -1), (1, 2**64), (1.5, 0)]
)
def test_offsets_that_are_no_numbers_of_64_bits(
    store: Store, consumer: int, offset: int
) -> None:
    store.create_topic("one")
    with pytest.raises(StoreError, match="64 bits"):
        store.commit_offset(consumer, 1, offset)


def test_a_stage_can_be_found(store: Store) -> None:
    number = store.open_stage("one", "w", 1)
    found = store.stage(number)
    assert (found.metadata.topic, found.metadata.job.writer) == ("one", "w")
    with pytest.raises(StageUnknown, match=f"stage {number + 1} is not open"):
        store.stage(number + 1)
    store.abort_stages("w", 1)
    with pytest.raises(StageUnknown):
        store.stage(number)


def test_how_far_the_consumers_of_a_topic_are(store: Store) -> None:
    for name in ("one", "two"):
        store.create_topic(name)
        store.append(store.topics()[-1].metadata.id, batch("a"))
    store.commit_offset(7, 1, 45)
    store.commit_offset(8, 1, 0)
    store.commit_offset(7, 2, 90)
    assert store.consumer_offsets() == {(7, 1): 45, (8, 1): 0, (7, 2): 90}


def test_a_checksum_that_is_known_already(store: Store) -> None:
    store.create_topic("one")
    number = store.open_stage("one", "w", 1)
    for tag in "ab":
        crc = crc32c(batch(tag))
        store.append(1, batch(tag), data_crc=crc)
        store.append_stage(number, "ab".index(tag) + 1, batch(tag), data_crc=crc)
    # It is what a repeated batch is told by, and what readers check.
    store.append_stage(number, 2, batch("b"))
    with pytest.raises(StageMismatch):
        store.append_stage(number, 2, batch("b"), data_crc=crc32c(batch("c")))
    store.commit_stages("w", 1, [NamedStage(number, 2, 270)])
    assert content(store, "one") == (batch("a") + batch("b")) * 2


def test_a_wrong_checksum_is_noticed_when_it_is_read(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        store.create_topic("one")
        store.append(1, batch("a"), data_crc=1)
        store._context.segments.clear()
        with pytest.raises(Corrupt):
            store.read(1, 0, 1000)


def test_syncs_are_measured(files: DiskFiles) -> None:
    syncs: list[float] = []
    with open_store(files=files, observe_sync=syncs.append) as store:
        store.create_topic("one")
        before = len(syncs)
        store.append(1, batch("a"))
        assert len(syncs) == before + 1
        assert all(seconds >= 0 for seconds in syncs)
        # One that fails took no time that says anything.
        with refusing(files, "sync", ".lnc"), pytest.raises(StoreError):
            store.append(1, batch("b"))
        assert len(syncs) == before + 1


def test_how_many_offsets_there_are(store: Store) -> None:
    topic = store.create_topic("one").metadata.id
    assert store.consumer_count == 0
    for consumer, offset in ((7, 0), (8, 0), (7, 0)):
        store.commit_offset(consumer, topic, offset)
    assert store.consumer_count == 2
    store.delete_topic(topic)
    assert store.consumer_count == 0


def test_a_wait_can_be_shorter_than_others(tmp_path: Path) -> None:
    with Store(tmp_path / "data", framing=scan) as store:
        topic = store.create_topic("one").metadata.id
        appended = store.append(topic, record(b"x"), wait=False)
        store.wait_durable(topic, appended)
        far = replace(appended, end=appended.end + 1)
        with pytest.raises(Timeout, match=r"not durable after 0\.01 s"):
            store.wait_durable(topic, far, timeout_s=0.01)
