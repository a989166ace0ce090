"""`store.json`: the ids that are given out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lance_spark.errors import DamagedFile, StoreClosed, StoreError
from lance_spark.store.document import (
    FIRST_STAGE_ID,
    STAGE_ID_END,
    Identity,
    encode_document,
)
from lance_spark.store.files import read_file
from tests.store.disk import DiskFiles
from tests.store.jobs import refusing
from tests.store.kit import newer

PATH = Path("/store.json")


def make(
    files: DiskFiles, next_topic: int = 1, next_stage: int = FIRST_STAGE_ID
) -> Identity:
    identity = Identity(files, PATH, next_topic=next_topic, next_stage=next_stage)
    identity.prepare()
    return identity


def read(files: DiskFiles) -> Identity:
    identity = Identity.read(files, PATH)
    assert identity is not None
    return identity


def test_a_caller_that_is_late_writes_nothing(files: DiskFiles) -> None:
    """The file may be another process's by then."""
    identity = make(files)
    identity.close()
    after = read(files)
    after.new_topics(1)
    for late in (lambda: identity.new_topics(1), identity.new_stage):
        with pytest.raises(StoreClosed):
            late()
    assert read(files).next_topic == 2


def test_no_file(files: DiskFiles) -> None:
    assert Identity.read(files, PATH) is None


def test_the_file(files: DiskFiles) -> None:
    make(files).new_topics(1)
    data = read_file(files, PATH) or b""
    fields = {"next_topic": 2, "next_stage": 2**31, "upgrading": False}
    assert data == encode_document(fields)
    assert json.loads(data)["format"] == 2


def test_topics_count_up(files: DiskFiles) -> None:
    identity = make(files)
    assert [*identity.new_topics(1), *identity.new_topics(2)] == [1, 2, 3]
    assert identity.next_topic == 4
    assert read(files).new_topics(1) == range(4, 5)


def test_an_id_is_reserved_before_it_is_used(files: DiskFiles) -> None:
    identity = make(files)
    with refusing(files, "pwrite", "store.json"), pytest.raises(OSError):
        identity.new_topics(1)
    with refusing(files, "pwrite", "store.json"), pytest.raises(OSError):
        identity.new_stage()
    stage = identity.new_stage()
    assert read(files).new_stage() > stage


def test_stages_count_up_and_jump_after_a_restart(files: DiskFiles) -> None:
    identity = make(files)
    first = [identity.new_stage() for _ in range(2_000)]
    assert first == list(range(FIRST_STAGE_ID, FIRST_STAGE_ID + 2_000))
    assert identity.next_stage == first[-1] + 1
    assert read(files).new_stage() > first[-1]


def test_stages_reserve_their_ids_by_the_block(files: DiskFiles) -> None:
    identity = make(files)
    identity.new_stage()
    with refusing(files, "pwrite", "store.json"):
        identity.new_stage()


def test_no_id_is_left(files: DiskFiles) -> None:
    identity = make(files, FIRST_STAGE_ID - 1, STAGE_ID_END - 1)
    assert identity.new_topics(1)[0] == 2**31 - 1
    assert identity.new_stage() == 2**32 - 1
    with pytest.raises(StoreError, match="no topic id is left"):
        identity.new_topics(1)
    with pytest.raises(StoreError, match="no stage id is left"):
        identity.new_stage()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the checksum does not hold"),
        (b"[]", "the checksum does not hold"),
        (b'{"format": 1}', "other fields than next_stage, next_topic"),
        (b'{"format": 1, "next_topic": "x", "next_stage": 1}', "next_topic is x"),
        (b'{"format": 2}', "the checksum does not hold"),
        (b'{"format": 99}', "the checksum does not hold"),
    ],
)
def test_a_file_that_can_not_be_used(
    files: DiskFiles, data: bytes, reason: str
) -> None:
    files.open(PATH, create=True).pwrite(data, 0)
    with pytest.raises(DamagedFile, match=f"/store.json is damaged .*{reason}") as met:
        Identity.read(files, PATH)
    assert "run `lance-spark check --repair /`" in str(met.value)


def test_a_newer_format_is_no_damage(files: DiskFiles) -> None:
    files.open(PATH, create=True).pwrite(newer(encode_document({})), 0)
    with pytest.raises(StoreError, match=r"/store.json: format 99 is not supported"):
        Identity.read(files, PATH)


def test_format_1_is_read_and_written_anew(files: DiskFiles) -> None:
    data = b'{"format": 1, "next_topic": 7, "next_stage": 2147483700}'
    files.open(PATH, create=True).pwrite(data, 0)
    identity = read(files)
    assert (identity.next_topic, identity.upgrading) == (7, True)
    identity.prepare()
    assert read(files).upgrading
    identity.finish_upgrade()
    assert not read(files).upgrading and read(files).next_topic == 7
