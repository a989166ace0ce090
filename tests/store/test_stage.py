"""A stage by itself."""

from __future__ import annotations

import json

import pytest

from lance_spark.errors import (
    BatchGap,
    StageMismatch,
    StageUnknown,
    StoreError,
    StoreReadOnly,
)
from lance_spark.store import NamedStage, Store
from lance_spark.store.decisions import Job
from lance_spark.store.document import FIRST_STAGE_ID
from lance_spark.store.stage import StageMetadata, decode_stage, encode_stage
from tests.store.disk import DiskFiles
from tests.store.jobs import commit, content, kill, refusing, reopen, stage
from tests.store.kit import batch, open_store, read_stage

METADATA = StageMetadata(FIRST_STAGE_ID, "Ωμέγα", Job("w", 2**63), 1_700)


def test_metadata_comes_back() -> None:
    assert decode_stage(encode_stage(METADATA)) == METADATA


def test_every_field_is_needed() -> None:
    fields = json.loads(encode_stage(METADATA))
    for name in fields:
        less = {key: value for key, value in fields.items() if key != name}
        with pytest.raises(StoreError):
            decode_stage(json.dumps(less).encode())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("id", 2**32),
        ("topic", None),
        ("topic", "a/b"),
        ("writer", ""),
        ("sequence", -1),
        ("sequence", 2**64),
        ("opened_ns", "1"),
    ],
)
def test_fields_that_can_not_be(key: str, value: object) -> None:
    fields = {**json.loads(encode_stage(METADATA)), "format": 1}
    del fields["crc32c"]
    assert decode_stage(json.dumps(fields).encode()) == METADATA
    with pytest.raises(StoreError):
        decode_stage(json.dumps({**fields, key: value}).encode())


def test_batch_ids_are_1_2_3(store: Store) -> None:
    stage_id = store.open_stage("one", "w", 1)
    ends = [store.append_stage(stage_id, n, batch(str(n))).end for n in (1, 2, 3)]
    assert ends == [135, 270, 405]
    [found] = store.stages()
    assert (found.batches, found.size) == (3, 405)
    assert read_stage(found) == batch("1") + batch("2") + batch("3")


@pytest.mark.parametrize("number", [-1, 0, 3, 4, 2**64])
def test_a_gap_is_refused(store: Store, number: int) -> None:
    stage_id = store.open_stage("one", "w", 1)
    store.append_stage(stage_id, 1, batch("1"))
    with pytest.raises(BatchGap, match=f"batch {number} came where 2 was next"):
        store.append_stage(stage_id, number, batch("x"))
    store.append_stage(stage_id, 2, batch("2"))
    assert store.stages()[0].batches == 2


def test_a_repeated_batch_is_acknowledged_and_not_stored(store: Store) -> None:
    stage_id = store.open_stage("one", "w", 1)
    for number in (1, 2):
        store.append_stage(stage_id, number, batch(str(number)))
    for number in (1, 2, 2, 1):
        appended = store.append_stage(stage_id, number, batch(str(number)))
        assert (appended.start, appended.end, appended.records) == (270, 270, 0)
    assert store.stages()[0].size == 270


def repeat_all(store: Store, stage_id: int) -> None:
    for number in (1, 2, 3):
        store.append_stage(stage_id, number, batch(str(number), 20))
    [found] = store.stages()
    assert (found.batches, found.size) == (3, 2700)
    store.append_stage(stage_id, 4, batch("4"))
    named = NamedStage(stage_id, 4, 2700 + 135)
    store.commit_stages("w", 1, [named])
    expected = b"".join(batch(n, 20) for n in "123") + batch("4")
    assert content(store, "one") == expected


def test_a_repeated_batch_is_recognised_after_reopening(store: Store) -> None:
    named = stage(store, "one", "w", 1, *(batch(n, 20) for n in "123"))
    with reopen(store) as again:
        repeat_all(again, named.id)


def test_a_repeated_batch_is_recognised_after_a_kill(files: DiskFiles) -> None:
    store = open_store(files=files)
    named = stage(store, "one", "w", 1, *(batch(n, 20) for n in "123"))
    with kill(store) as again:
        repeat_all(again, named.id)


@pytest.mark.parametrize("after", ["at once", "after reopening"])
def test_a_repeated_batch_with_other_bytes_is_refused(store: Store, after: str) -> None:
    named = stage(store, "one", "w", 1, batch("1"), batch("2"))
    if after == "after reopening":
        store.close()
        store = open_store(store.path)
    with pytest.raises(StageMismatch, match="batch 1 was stored before with other"):
        store.append_stage(named.id, 1, batch("other"))
    assert store.stages()[0].size == 270
    store.close()


def test_a_repeated_batch_waits_for_the_first_to_be_durable(files: DiskFiles) -> None:
    with open_store(files=files) as store:
        stage_id = store.open_stage("one", "w", 1)
        appended = store.append_stage(stage_id, 1, batch("1"), wait=False)
        [found] = store.stages()
        assert not found.is_durable(135)
        store.append_stage(stage_id, 1, batch("1"))
        assert found.is_durable(135)
        store.wait_durable(stage_id, appended)


def test_a_batch_for_a_stage_that_was_dropped(store: Store) -> None:
    stage_id = store.open_stage("one", "w", 1)
    [found] = store.stages()
    store.abort_stages("w", 1)
    with pytest.raises(StageUnknown, match=f"stage {stage_id} is not open"):
        store.append_stage(stage_id, 1, batch("1"))
    with pytest.raises(StageUnknown, match=f"stage {stage_id} was dropped"):
        found.append(1, batch("1"), [0], now_ns=0)  # type: ignore[arg-type]


def test_a_stage_that_is_dropped_while_its_batch_waits(store: Store) -> None:
    stage_id = store.open_stage("one", "w", 1)
    [found] = store.stages()
    append = found.append

    def append_and_drop(*args, **options):  # type: ignore[no-untyped-def]
        appended = append(*args, **options)
        store.abort_stages("w", 1)
        return appended

    found.append = append_and_drop  # type: ignore[method-assign]
    with pytest.raises(StageUnknown, match=f"stage {stage_id} is not open"):
        store.append_stage(stage_id, 1, batch("1"))


def test_a_batch_that_is_not_durable(files: DiskFiles) -> None:
    store = open_store(files=files)
    named = stage(store, "one", "w", 1, batch("1"))
    with (
        refusing(files, "sync", "stages"),
        pytest.raises(StoreReadOnly, match="a sync failed"),
    ):
        store.append_stage(named.id, 2, batch("2"))


def test_a_batch_for_a_stage_that_was_committed(store: Store) -> None:
    commit(store, "one", "w", 1, batch("1"))
    with pytest.raises(StageUnknown):
        store.append_stage(FIRST_STAGE_ID, 2, batch("2"))
    with pytest.raises(StageUnknown):
        store.append_stage(FIRST_STAGE_ID, 1, batch("1"))
