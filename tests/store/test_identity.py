"""Ids that are given out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lance_spark.errors import StoreError
from lance_spark.store.files import read_file
from lance_spark.store.identity import FIRST_STAGE_ID, STAGE_ID_END, Identity
from tests.store.disk import DiskFiles
from tests.store.jobs import refusing

PATH = Path("/store.json")


def make(
    files: DiskFiles, next_topic: int = 1, next_stage: int = FIRST_STAGE_ID
) -> Identity:
    identity = Identity(files, PATH, next_topic=next_topic, next_stage=next_stage)
    identity.write()
    return identity


def read(files: DiskFiles) -> Identity:
    identity = Identity.read(files, PATH)
    assert identity is not None
    return identity


def test_no_file(files: DiskFiles) -> None:
    assert Identity.read(files, PATH) is None


def test_the_file(files: DiskFiles) -> None:
    make(files).new_topic()
    assert json.loads(read_file(files, PATH) or b"") == {
        "format": 1,
        "next_topic": 2,
        "next_stage": 2**31,
    }


def test_topics_count_up(files: DiskFiles) -> None:
    identity = make(files)
    assert [identity.new_topic() for _ in range(3)] == [1, 2, 3]
    assert identity.next_topic == 4
    assert read(files).new_topic() == 4


def test_an_id_is_reserved_before_it_is_used(files: DiskFiles) -> None:
    identity = make(files)
    with refusing(files, "pwrite", "store.json"), pytest.raises(OSError):
        identity.new_topic()
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
    assert identity.new_topic() == 2**31 - 1
    assert identity.new_stage() == 2**32 - 1
    with pytest.raises(StoreError, match="no topic id is left"):
        identity.new_topic()
    with pytest.raises(StoreError, match="no stage id is left"):
        identity.new_stage()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "can't be read"),
        (b"[]", "can't be read"),
        (b'{"format": 1}', "can't be read"),
        (b'{"format": 1, "next_topic": "x", "next_stage": 1}', "can't be read"),
        (b'{"format": 2}', "format 2 is not supported"),
    ],
)
def test_a_file_that_can_not_be_used(
    files: DiskFiles, data: bytes, reason: str
) -> None:
    files.open(PATH, create=True).pwrite(data, 0)
    with pytest.raises(StoreError, match=f"/store.json: {reason}"):
        Identity.read(files, PATH)
