"""Checkpoint directories, written as Spark writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from lance_spark.offset import StreamOffset

QUERY_ID = "4d137be2-29b0-48c8-87bb-7d526895d186"
PLANNED_MS = 1_794_822_708_704


def write_checkpoint(path: Path) -> Path:
    """Write a checkpoint without a batch."""
    for name in ("offsets", "commits", "sources/0"):
        (path / name).mkdir(parents=True)
    (path / "metadata").write_text(json.dumps({"id": QUERY_ID}))
    (path / ".metadata.crc").write_bytes(b"crc\0\0\0\2\0\xff\xff\xff\xff")
    return path


def write_batch(
    path: Path, number: int, sources: Iterable[object], *, is_committed: bool = True
) -> Path:
    """Write a batch, and return its file.

    Args:
        path: the checkpoint.
        number: of the batch.
        sources: a `StreamOffset`, the text of another source, or None for no offset.
        is_committed: write that it is done, too.
    """
    about = {"batchWatermarkMs": 0, "batchTimestampMs": PLANNED_MS, "conf": {}}
    lines = ["v1", json.dumps(about), *map(_to_line, sources)]
    file = path / "offsets" / str(number)
    # Spark ends it without a newline.
    file.write_text("\n".join(lines), encoding="utf-8")
    (path / "offsets" / f".{number}.crc").write_bytes(b"crc\0\xff")
    if is_committed:
        text = 'v1\n{"nextBatchWatermarkMs":0}'
        (path / "commits" / str(number)).write_text(text)
    return file


def _to_line(source: object) -> str:
    if isinstance(source, StreamOffset):
        return json.dumps(source.to_document())
    return "-" if source is None else str(source)
