"""Small stages: what they cost, what survives, and how their log stays short."""

from __future__ import annotations

import errno
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lance_spark.errors import (
    Corrupt,
    StageUnknown,
    StoreError,
    StoreReadOnly,
    StoreWriteFailed,
    Timeout,
)
from lance_spark.store import CommitStatus, Fsync, NamedStage, Store, StoreConfig
from lance_spark.store import stagelog as module
from lance_spark.store.document import FIRST_STAGE_ID
from lance_spark.store.entrylog import HEAD_BYTES, NO_MARK, encode_head
from lance_spark.store.files import Reserve
from lance_spark.store.stagelog import (
    STAGE_LOG,
    StageLog,
    encode_stage_entry,
    list_inline_ids,
    parse_stage_log,
)
from tests.store.disk import DiskFiles
from tests.store.jobs import Clock, content, hooked, kill, refusing, reopen, stage
from tests.store.kit import (
    IN_FILES,
    ROOT,
    SMALL,
    batch,
    check_clean,
    damage,
    open_store,
    read_stage,
)

COMMITTED, REPEATED, STALE = CommitStatus
LOG = str(ROOT / STAGE_LOG)


def ids(store: Store) -> set[int]:
    return {found.metadata.id for found in store.stages()}


def size(files: DiskFiles) -> int:
    return len(files.disk.inodes[files.disk.seen[LOG]].seen)


# What it costs.


def count(files: DiskFiles, config: StoreConfig, sequence: int) -> Counter[str]:
    """Count what it costs to write a few rows, once the topic is there."""
    operations: Counter[str] = Counter()
    with open_store(files=files, config=config) as store:
        for number in range(sequence, sequence + 2):
            operations.clear()
            with hooked(files, lambda operation, name: operations.update([operation])):
                named = stage(store, "one", "w", number, batch("a"))
                store.commit_stages("w", number, [named])
    return operations


def test_a_small_write_takes_six_syncs(files: DiskFiles) -> None:
    """Of the stage, its batch, the plan, the topic's data and index, and `done`."""
    small = count(files, StoreConfig(), 1)
    assert small["sync"] + small["sync_dir"] == 6
    # Entries and marks of both logs, and the topic's two files and mark.
    assert small.keys() == {"sync", "pwrite"} and small["pwrite"] <= 12
    large = count(files, IN_FILES, 3)
    assert large["sync"] + large["sync_dir"] == 12
    check_clean(files=files)


@pytest.mark.parametrize("policy", list(Fsync))
def test_a_sync_is_shared(files: DiskFiles, policy: Fsync) -> None:
    config = StoreConfig(fsync=policy, **SMALL)  # type: ignore[arg-type]
    syncs: list[str] = []
    with open_store(files=files, config=config) as store:
        opened = [store.open_stage("one", "w", 1) for _ in range(5)]
        with hooked(
            files, lambda op, name: syncs.append(name) if op == "sync" else None
        ):
            done = [
                store.append_stage(each, 1, batch("a"), wait=False) for each in opened
            ]
            for each, appended in zip(opened, done, strict=True):
                store.wait_durable(each, appended)
        assert len(syncs) == {"none": 0, "batch": 1, "always": 5}[policy.value]
        # A commit is durable under any policy.
        named = [NamedStage(each, 1, 135) for each in opened]
        store.commit_stages("w", 1, named)
        left = DiskFiles(files.disk.without_power("drop", None))  # type: ignore[arg-type]
    with open_store(files=left, config=config) as store:
        assert content(store, "one") == batch("a") * 5


# Where a stage is.


def test_a_stage_that_grows_moves_to_files(files: DiskFiles) -> None:
    data = [batch("a"), batch("b"), batch("c", 4), batch("d", 2), batch("e", 30)]
    with open_store(files=files) as store:
        stage_id = store.open_stage("one", "w", 1)
        for number, each in enumerate(data, 1):
            store.append_stage(stage_id, number, each)
            store.append_stage(stage_id, number, each)
            [found] = store.stages()
            assert (found.log is None) == (number <= 3)
            assert read_stage(found) == b"".join(data[:number])
        with kill(store) as again:
            [found] = again.stages()
            assert found.log is not None and found.batches == 5
            assert list_inline_ids(again._files, ROOT) == []
        named = NamedStage(stage_id, 5, sum(map(len, data)))
        store.commit_stages("w", 1, [named])
        assert content(store, "one") == b"".join(data)
        assert store.view(1).locate_record(6).offset == 270
    check_clean(files=files)


@pytest.mark.parametrize(
    ("operation", "part"),
    [
        *(("mkdir", "stages/"), ("create", "stages/"), ("pwrite", "stages/")),
        *(("sync", "stages/"), ("sync_dir", "stages/"), ("replace", "stages/")),
        *(("sync_dir", "data/stages"), ("pwrite", STAGE_LOG)),
    ],
)
@pytest.mark.parametrize("how", ["kill", "drop", "keep", "refuse"])
def test_a_move_that_is_cut_short(
    files: DiskFiles, operation: str, part: str, how: str
) -> None:
    """Nothing that was acknowledged is lost, at whatever operation it ends."""
    store = open_store(files=files)
    first, second = batch("a"), batch("b", 30)
    stage_id = store.open_stage("one", "w", 1)
    store.append_stage(stage_id, 1, first)
    pictures: list[DiskFiles] = []

    def hook(tried: str, name: str) -> None:
        if tried == operation and part in name:
            disk = files.disk
            left = disk.killed()
            if how in ("drop", "keep"):
                left = disk.without_power(how, random.Random(1))
            pictures.append(DiskFiles(left))

    if how == "refuse":
        with refusing(files, operation, part, times=1):
            try:
                store.append_stage(stage_id, 2, second)
            except StoreError:
                store.append_stage(stage_id, 2, batch("c"))
                second = batch("c")
        pictures = [files]
        store.close()
    else:
        with hooked(files, hook):
            store.append_stage(stage_id, 2, second)
    assert pictures
    for left in pictures:
        with open_store(files=left) as again:
            assert damage(again.findings) == []
            [found] = again.stages()
            assert read_stage(found) in (first, first + second)
            if found.batches == 1:
                again.append_stage(stage_id, 2, second)
            named = NamedStage(stage_id, 2, len(first + second))
            assert again.commit_stages("w", 1, [named]).status is COMMITTED
            assert content(again, "one") == first + second
        check_clean(files=left)


def test_a_move_of_a_damaged_stage(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        stage_id = store.open_stage("one", "w", 1)
        store.append_stage(stage_id, 1, batch("a"))
        log = files.disk.inodes[files.disk.seen[LOG]].seen
        log[log.index(batch("a")) + 3] ^= 1
        with pytest.raises(Corrupt, match="the checksum differs"):
            store.append_stage(stage_id, 2, batch("b", 30))
        store.abort_stages("w", 1)
    check_clean(files=files)


def test_there_is_no_room_for_more_small_stages(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIVE_BYTES_MAX", 1000)
    with open_store(files=files) as store:
        named = [stage(store, "one", "w", 1, batch(tag)) for tag in "abc"]
        in_files = [found.log is not None for found in store.stages()]
        assert in_files == [False, False, True]
        store.commit_stages("w", 1, named)
        assert content(store, "one") == b"".join(map(batch, "abc"))
        stage(store, "one", "w", 2, batch("d"))
        assert store.stages()[0].log is None
    check_clean(files=files)


def test_stages_of_0_5_keep_their_files(files: DiskFiles) -> None:
    with open_store(files=files, config=IN_FILES) as store:
        named = stage(store, "one", "w", 1, batch("a"))
    assert LOG not in files.disk.seen
    with open_store(files=files) as store:
        [found] = store.stages()
        assert found.log is not None
        store.append_stage(named.id, 2, batch("b"))
        store.commit_stages("w", 1, [NamedStage(named.id, 2, 270)])
        assert content(store, "one") == batch("a") + batch("b")


# What becomes of it.


@pytest.mark.parametrize("how", ["close", "kill", "drop"])
def test_it_is_there_when_the_store_is_opened_again(files: DiskFiles, how: str) -> None:
    store = open_store(files=files)
    named = stage(store, "one", "w", 1, batch("a"), batch("b"))
    aborted = stage(store, "one", "w", 2, batch("c"))
    store.abort_stages("w", 2)
    if how == "drop":
        left = DiskFiles(files.disk.without_power("drop", None))  # type: ignore[arg-type]
        again = open_store(files=left)
    else:
        again = reopen(store) if how == "close" else kill(store)
    with again:
        assert ids(again) == {named.id}
        with pytest.raises(StageUnknown):
            again.append_stage(aborted.id, 1, batch("c"))
        # A repeated batch is recognised, and the next one gets its place.
        assert again.append_stage(named.id, 2, batch("b")).records == 0
        again.append_stage(named.id, 3, batch("d"))
        whole = NamedStage(named.id, 3, 405)
        assert again.commit_stages("w", 1, [whole]).status is COMMITTED
        assert content(again, "one") == b"".join(map(batch, "abd"))
        assert again.commit_stages("w", 1, [whole]).status is REPEATED
    check_clean(files=again._files)


def test_a_new_id_is_above_those_of_small_stages(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        named = stage(store, "one", "w", 1, batch("a"))
    files.unlink(ROOT / "store.json")
    with open_store(files=files) as store:
        assert store.open_stage("one", "w", 1) > named.id + 1_000_000 - 1024
        assert named.id in ids(store)
    assert list_inline_ids(files, ROOT)[0] == named.id
    files.open(ROOT / STAGE_LOG).pwrite(newer_head(), 0)
    assert list_inline_ids(files, ROOT) == []
    with pytest.raises(StoreError, match="the log of stages has version 99"):
        open_store(files=files)


def newer_head() -> bytes:
    return encode_head(module.MAGIC, NO_MARK, 99)


def test_an_expired_stage_frees_its_place(files: DiskFiles) -> None:
    clock = Clock()
    with open_store(files=files, clock_ns=clock) as store:
        stage(store, "one", "w", 1, batch("a"))
        clock.forward(24 * 3600 + 1)
        store.maintain()
        assert store.stages() == []
        assert store._context.stage_log._live_bytes == 0
        with reopen(store) as again:
            assert again.stages() == []
    check_clean(files=files)


def test_the_log_stays_short(files: DiskFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GARBAGE_BYTES_MAX", 2000)
    store = open_store(files=files)
    kept = stage(store, "two", "v", 1, batch("kept"), batch("more"))
    for number in range(40):
        named = stage(store, "one", "w", number, batch(str(number)))
        store.commit_stages("w", number, [named])
        assert size(files) < 4000
    with kill(store) as again:
        assert again.commit_stages("v", 1, [kept]).status is COMMITTED
        assert content(again, "two") == batch("kept") + batch("more")
        assert len(content(again, "one")) == 40 * 135
    check_clean(files=again._files)


def test_maintenance_makes_it_short(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lance_spark.store.store._STAGE_GARBAGE_BYTES", 100)
    with open_store(files=files) as store:
        named = stage(store, "one", "w", 1, batch("a"))
        store.commit_stages("w", 1, [named])
        assert size(files) > HEAD_BYTES
        store.maintain()
        assert size(files) == HEAD_BYTES
        store.maintain()
    check_clean(files=files)


# When the disk refuses.


def test_a_batch_that_is_refused_is_not_there(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        stage_id = store.open_stage("one", "w", 1)
        with (
            refusing(files, "pwrite", STAGE_LOG, code=errno.ENOSPC),
            pytest.raises(StoreWriteFailed, match=r"stages\.log.*nothing was stored"),
        ):
            store.append_stage(stage_id, 1, batch("a"))
        store.append_stage(stage_id, 1, batch("b"))
        assert read_stage(store.stages()[0]) == batch("b")
    check_clean(files=files)


def test_a_batch_that_can_not_be_taken_back(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        stage_id = store.open_stage("one", "w", 1)
        with (
            refusing(files, "pwrite", STAGE_LOG, code=errno.ENOSPC),
            refusing(files, "truncate", STAGE_LOG),
            pytest.raises(StoreWriteFailed),
        ):
            store.append_stage(stage_id, 1, batch("a"))
        # From now on stages get files; this one does as well, with its next batch.
        store.append_stage(stage_id, 1, batch("a"))
        other = stage(store, "one", "w", 1, batch("b"))
        assert all(found.log is not None for found in store.stages())
        store.commit_stages("w", 1, [NamedStage(stage_id, 1, 135), other])
        assert content(store, "one") == batch("a") + batch("b")
    with open_store(files=files) as store:
        assert store.stages() == []
    check_clean(files=files)


def test_a_sync_that_fails(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        stage_id = store.open_stage("one", "w", 1)
        with (
            refusing(files, "sync", STAGE_LOG, times=1),
            pytest.raises(StoreReadOnly, match=r"stages\.log: read-only since a sync"),
        ):
            store.append_stage(stage_id, 1, batch("a"))
        with pytest.raises(StoreReadOnly):
            store.commit_stages("w", 1, [NamedStage(stage_id, 1, 135)])
        with pytest.raises(StoreReadOnly):
            store.wait_durable(
                stage_id, store.append_stage(stage_id, 1, batch("a"), wait=False)
            )
        with pytest.raises(StoreReadOnly):
            store.abort_stages("w", 1)
        other = stage(store, "one", "w", 2, batch("b"))
        assert store.stage(other.id).log is not None
        assert store.commit_stages("w", 2, [other]).status is COMMITTED


def test_a_stage_whose_sync_fails_is_not_opened(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        with refusing(files, "sync", STAGE_LOG, skip=1), pytest.raises(StoreReadOnly):
            store.open_stage("one", "w", 1)
        assert store.stages() == []
        stage(store, "one", "w", 1, batch("a"))


def test_aborted_stages_make_room_on_a_full_disk(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        stage(store, "one", "w", 1, batch("a"))
        kept = stage(store, "one", "v", 1, batch("b"))
        before = size(files)
        files.capacity = files.used
        with pytest.raises(StoreWriteFailed):
            store.append_stage(kept.id, 2, batch("c"))
        assert store.abort_stages("w", 1) == 1
        assert size(files) < before
        files.capacity = None
        with kill(store) as again:
            assert ids(again) == {kept.id}
    check_clean(files=files)


def test_a_disk_that_refuses_to_note_the_end(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        named = stage(store, "one", "w", 1, batch("a"))
        with refusing(files, "pwrite", STAGE_LOG):
            store.commit_stages("w", 1, [named])
            with pytest.raises(StoreWriteFailed, match=r"stages\.log: could not write"):
                store.abort_stages("w", 2)
        assert store.abort_stages("w", 2) == 0
        assert list_inline_ids(files, ROOT) == []
    check_clean(files=files)


def test_a_log_that_can_not_be_written_anew(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GARBAGE_BYTES_MAX", 300)
    with open_store(files=files) as store:
        for number in range(3):
            named = stage(store, "one", "w", number, batch("a"))
            store.commit_stages("w", number, [named])
        with refusing(files, "create", STAGE_LOG, code=errno.ENOSPC):
            stage(store, "one", "w", 8, batch("a"))
        with refusing(files, "replace", STAGE_LOG):
            stage(store, "one", "w", 9, batch("a"))
        assert store.stages()[-1].log is not None
        assert store._context.stage_log._failure is not None
    with open_store(files=files) as store:
        assert len(store.stages()) == 2
        assert damage(store.findings) == []
    check_clean(files=files)


def test_a_wait_that_takes_too_long(files: DiskFiles) -> None:
    log = StageLog(files, ROOT, Reserve(files, ROOT / "reserve"))
    files.mkdir(ROOT)
    made = log.open_stage(FIRST_STAGE_ID, b"{}")
    assert not log.is_durable(made)
    with pytest.raises(Timeout, match="not durable after 0 s"):
        log.wait(made, timeout_s=0)
    log.sync()
    log.wait(made, timeout_s=0)
    log.close()
    with pytest.raises(StoreReadOnly, match="the store is closed"):
        log.open_stage(FIRST_STAGE_ID + 1, b"{}")


def test_a_batch_of_a_wrong_size_gives_no_stage_files(files: DiskFiles) -> None:
    config = StoreConfig(batch_bytes_max=200)
    with open_store(files=files, config=config) as store:
        stage_id = store.open_stage("one", "w", 1)
        for data in (b"", batch("a", 30)):
            with pytest.raises(StoreError, match=f"a batch of {len(data)} bytes"):
                store.append_stage(stage_id, 1, data)
        assert store.stages()[0].log is None


def test_a_log_that_has_grown_too_long_takes_no_more_stages(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GARBAGE_BYTES_MAX", 0)
    monkeypatch.setattr(module, "LIVE_BYTES_MAX", 10)
    with open_store(files=files) as store:
        monkeypatch.setattr(module, "LIVE_BYTES_MAX", 10_000)
        stage(store, "one", "w", 1, batch("a"))
        monkeypatch.setattr(module, "LIVE_BYTES_MAX", 10)
        stage(store, "one", "w", 1, batch("b"))
        assert [each.log is None for each in store.stages()] == [True, False]


def test_a_sync_frees_room_that_the_end_of_a_stage_needs(files: DiskFiles) -> None:
    """The end could not be noted; by now the disk is full."""
    with open_store(files=files) as store:
        named = stage(store, "one", "w", 1, batch("a"))
        with refusing(files, "pwrite", STAGE_LOG):
            store.commit_stages("w", 1, [named])
        files.capacity = files.used
        before = size(files)
        assert store.abort_stages("w", 2) == 0
        assert size(files) < before
        files.capacity = None
    check_clean(files=files)


# The file.


def test_what_is_behind_the_last_whole_entry_is_cut_off(files: DiskFiles) -> None:
    store = open_store(files=files)
    named = stage(store, "one", "w", 1, batch("a"))
    end = size(files)
    torn = encode_stage_entry(named.id, 2, batch("b"), records=3)
    for part in (b"LSSE", torn[:50], torn[:-1], torn[:-1] + b"?", bytes(200)):
        left = DiskFiles(files.disk.killed())
        left.disk.inodes[left.disk.seen[LOG]].write(end, part)
        with open_store(files=left) as again:
            assert read_stage(again.stages()[0]) == batch("a")
            assert damage(again.findings) == []
            again.append_stage(named.id, 2, batch("c"))
        check_clean(files=left)


def test_entries_in_users_bytes_are_not_taken_for_entries(files: DiskFiles) -> None:
    """A header is damaged, and a body behind it looks like an entry."""
    forged = encode_stage_entry(FIRST_STAGE_ID, module._GONE, b"")
    rest = encode_stage_entry(1, 1, forged, records=1)
    with open_store(files=files) as store:
        stage(store, "one", "w", 1, batch("a"))
    data = bytearray(files.disk.inodes[files.disk.seen[LOG]].seen)
    whole = parse_stage_log(bytes(data))
    data += rest
    data[whole.end] ^= 1
    found = parse_stage_log(bytes(data))
    assert found.end == whole.end and found.stages == whole.stages


def test_a_damaged_file_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        stage(store, "one", "w", 1, batch("a"))
    log = tmp_path / STAGE_LOG
    for damaged in (b"nothing", log.read_bytes()[:-20]):
        log.write_bytes(damaged)
        with open_store(tmp_path) as store:
            [found] = damage(store.findings)
            assert found.where == STAGE_LOG
            assert store.stages() == []
            stage(store, "one", "w", 1, batch("a"))
        assert (tmp_path / f"{STAGE_LOG}.damaged").read_bytes() == damaged
        check_clean(tmp_path)


def test_a_stage_whose_first_entry_is_damaged(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        named = stage(store, "one", "w", 1, batch("a"))
    log = files.disk.inodes[files.disk.seen[LOG]]
    log.seen[log.seen.index(b'"topic"')] ^= 1
    with open_store(files=files) as store:
        assert [f.where for f in damage(store.findings)] == [STAGE_LOG]
        with pytest.raises(StageUnknown):
            store.stage(named.id)


def test_bytes_that_go_while_it_is_open(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        named = stage(store, "one", "w", 1, batch("a"))
        files.open(ROOT / STAGE_LOG).truncate(HEAD_BYTES + 300)
        with pytest.raises(StoreWriteFailed, match="the file is too short"):
            store.commit_stages("w", 1, [named])


def test_a_setting_of_none_gives_all_stages_files(files: DiskFiles) -> None:
    config = replace(StoreConfig(), stage_adopt_bytes=1)
    with open_store(files=files, config=config) as store:
        stage(store, "one", "w", 1, batch("a"))
        assert store.stages()[0].log is not None
    assert LOG not in files.disk.seen
