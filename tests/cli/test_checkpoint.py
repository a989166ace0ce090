"""Checkpoint directories of Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lance_spark.cli import checkpoint as module
from lance_spark.cli.checkpoint import Checkpoint, SourceOffset
from lance_spark.errors import CheckpointError
from lance_spark.offset import StreamOffset, TopicPlace
from tests.cli.checkpoint import (
    PLANNED_MS,
    QUERY_ID,
    write_batch,
    write_checkpoint,
)

OFFSET = StreamOffset.of({"events": TopicPlace.at(3, 1706918400, 4096)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A checkpoint with batches 8 to 11, the last one not committed."""
    path = write_checkpoint(tmp_path / "checkpoint")
    for number in range(8, 12):
        sources = [OFFSET, '{"logOffset":1}', None]
        write_batch(path, number, sources, is_committed=number < 11)
    return path


def test_newest_batch(path: Path) -> None:
    checkpoint = Checkpoint(path)
    assert checkpoint.batches == [8, 9, 10, 11]
    assert checkpoint.read_query_id() == QUERY_ID
    batch = checkpoint.read_batch()
    assert (batch.number, batch.is_newest, batch.is_committed) == (11, True, False)
    assert batch.planned_ms == PLANNED_MS
    assert batch.sources == (
        SourceOffset(OFFSET.to_document(), OFFSET),
        SourceOffset({"logOffset": 1}, None),
        SourceOffset(None, None),
    )


def test_older_batch(path: Path) -> None:
    batch = Checkpoint(path).read_batch(9)
    assert (batch.number, batch.is_newest, batch.is_committed) == (9, False, True)


@pytest.mark.parametrize("number", [7, 12])
def test_batch_that_is_not_there(path: Path, number: int) -> None:
    match = f"batch {number} is not in it; it has 8 to 11"
    with pytest.raises(CheckpointError, match=match):
        Checkpoint(path).read_batch(number)


def test_only_numbers_are_batches(path: Path) -> None:
    for name in (".99.crc", "99.tmp", ".99.8c2f.tmp", "099", "-99", "٩٩", "9" * 20):
        (path / "offsets" / name).write_text("v1\n")
    assert Checkpoint(path).batches == [8, 9, 10, 11]


@pytest.mark.parametrize("end", ["\n", ""])
def test_lines_end_as_on_any_system(path: Path, end: str) -> None:
    file = path / "offsets" / "11"
    # U+2028 ends a line for Python, and not for Spark.
    file.write_bytes('v1\r\n{}\r\n{"a": "\u2028"}'.encode() + end.encode())
    batch = Checkpoint(path).read_batch()
    assert batch.planned_ms is None
    assert batch.sources == (SourceOffset({"a": "\u2028"}, None),)


@pytest.mark.parametrize("planned", ["true", "1.5", "null", '"7"'])
def test_time_that_is_none(path: Path, planned: str) -> None:
    text = f'v1\n{{"batchTimestampMs": {planned}}}\n-'
    (path / "offsets" / "11").write_text(text)
    assert Checkpoint(path).read_batch().planned_ms is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty; restore the file from a copy, or look at another"),
        (
            b"v2\n{}\n-",
            "the file is v2, and this release reads v1: a newer Spark wrote it, or",
        ),
        (b"{}\n-", "no offsets of Spark: the first line is not v1"),
        (b"v1", "cut off: there is no source in it"),
        (b"v1\n{}", "cut off: there is no source in it"),
        (b"v1\n{}\n", "cut off: there is no source in it"),
        (b"v1\n{\n-", "line 2 can't be read as JSON"),
        (b"v1\n[]\n-", "line 2 is no JSON object"),
        (b'v1\n{}\n-\n{"version": 1, "to', "line 4 can't be read as JSON"),
        (b"v1\n{}\n" + b"9" * 5000, "line 3 can't be read as JSON"),
        (b"v1\n{}\n" + b"[" * 100_000, "line 3 can't be read as JSON"),
        (b"v1\n{}\n\n-", "line 3 can't be read as JSON"),
        (b"v1\n{}\n\xff", "byte 6 is not UTF-8"),
        (
            b'v1\n{}\n-\n{"version": 1, "topics": {"a": {}}}',
            "source 1: stream offset, topic 'a': 'partitions' is missing",
        ),
        (
            b'v1\n{}\n{"version": 2, "topics": {}}',
            "source 0: stream offset: version 2 was written by a newer release",
        ),
    ],
)
def test_damaged_file(path: Path, content: bytes, reason: str) -> None:
    file = path / "offsets" / "11"
    file.write_bytes(content)
    with pytest.raises(CheckpointError) as told:
        Checkpoint(path).read_batch()
    assert reason in str(told.value)
    assert told.value.where.startswith(str(file))
    # Others can be read all the same.
    assert Checkpoint(path).read_batch(10).number == 10


def test_file_that_is_too_large(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (path / "offsets" / "11").stat().st_size
    monkeypatch.setattr(module, "FILE_BYTES_MAX", size)
    assert Checkpoint(path).read_batch().number == 11
    monkeypatch.setattr(module, "FILE_BYTES_MAX", size - 1)
    with pytest.raises(CheckpointError, match=f"over {size - 1} bytes"):
        Checkpoint(path).read_batch()


def test_batch_that_is_a_directory(path: Path) -> None:
    (path / "offsets" / "12").mkdir()
    with pytest.raises(CheckpointError, match="12: not a file"):
        Checkpoint(path).read_batch()


def test_query_without_an_id(path: Path) -> None:
    (path / "metadata").unlink()
    assert Checkpoint(path).read_query_id() is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it can't be read as JSON"),
        ("[]", "there is no id of a query in it"),
        ("{}", "there is no id of a query in it"),
        ('{"id": 7}', "there is no id of a query in it"),
    ],
)
def test_damaged_metadata(path: Path, text: str, reason: str) -> None:
    (path / "metadata").write_text(text)
    with pytest.raises(CheckpointError, match=reason):
        Checkpoint(path).read_query_id()


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere: no such directory; give the d"):
        Checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"there is no checkpoint here \(no offs"):
        Checkpoint(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file: not a directory"):
        Checkpoint(tmp_path / "file")


def test_empty_checkpoint(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "checkpoint")
    (path / "offsets" / ".0.crc").touch()
    with pytest.raises(CheckpointError, match="empty: the query has not planned a bat"):
        Checkpoint(path)
    (path / "offsets" / ".0.crc").unlink()
    (path / "offsets").rmdir()
    with pytest.raises(CheckpointError, match="empty: the query has not planned a bat"):
        Checkpoint(path)


def test_what_the_system_refuses(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: object) -> None:
        raise PermissionError(13, os.strerror(13))

    checkpoint = Checkpoint(path)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match="11: Permission denied; check that it"):
        checkpoint.read_batch()
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(CheckpointError, match="checkpoint: Permission denied"):
        Checkpoint(path)
