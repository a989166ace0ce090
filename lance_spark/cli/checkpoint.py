"""The checkpoint directory of a streaming query, as Spark lays it out.

    metadata        {"id": the query's id}
    offsets/N       v1, a line about the batch, a line per source: where the batch ends
    commits/N       there once batch N is done

Spark writes N before it runs the batch, and runs it again after a crash unless it is
committed. Hidden and temporary files stand beside these; only numbers are batches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lance_spark.errors import CheckpointError
from lance_spark.offset import (
    LANCE,
    StreamOffset,
    is_offset_document,
    read_protocol,
)

# A file has some KiB of settings, and about 100 bytes for each topic.
FILE_BYTES_MAX = 64 * 1024 * 1024

_VERSION = "v1"
_NO_OFFSET = "-"
# Spark counts batches in 64 bits.
_BATCH = re.compile(r"0|[1-9][0-9]{0,18}")

_OLDER = "restore the file from a copy, or look at another batch with --batch"
_ELSEWHERE = "give the directory that is the query's checkpointLocation"


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """Where a batch ends in one of the query's sources.

    Args:
        document: what the file says, None if the source had nothing yet.
        offset: what it means, None if it is a source of another format.
        protocol: what the source's servers speak.
    """

    document: Any
    offset: StreamOffset | None
    protocol: str = LANCE


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch of a query, with the sources in their order.

    Args:
        number: which one it is.
        planned_ms: when it was planned, None if the file does not say.
        is_newest: there is none behind it.
        is_committed: it is done, and not run again.
        sources: where it ends in each source.
    """

    number: int
    planned_ms: int | None
    is_newest: bool
    is_committed: bool
    sources: tuple[SourceOffset, ...]


class Checkpoint:
    """Reads a checkpoint directory, and changes nothing in it.

    Args:
        path: the directory.

    Raises:
        CheckpointError: there is no checkpoint, or none with a batch.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.batches = _list_batches(path)

    def read_query_id(self) -> str | None:
        """Return the id that the query keeps for ever; None if there is none.

        Raises:
            CheckpointError: the file is damaged.
        """
        file = self.path / "metadata"
        with _reading(file):
            if not file.exists():
                return None
        document = _parse(_read(file), file, "it")
        query_id = document.get("id") if isinstance(document, dict) else None
        if not isinstance(query_id, str):
            raise _error(file, "there is no id of a query in it")
        return query_id

    def read_batch(self, number: int | None = None) -> PlannedBatch:
        """Return a batch, the newest if no other is asked for.

        Raises:
            CheckpointError: it is not there, or its file is damaged.
        """
        if number is None:
            number = self.batches[-1]
        if number not in self.batches:
            there = f"it has {self.batches[0]} to {self.batches[-1]}"
            raise _error(self.path, f"batch {number} is not in it", there)
        file = self.path / "offsets" / str(number)
        lines = _check_version(_read(file), file)
        about = _parse(lines[0], file, "line 2")
        if not isinstance(about, dict):
            raise _error(file, "line 2 is no JSON object")
        commit = self.path / "commits" / str(number)
        with _reading(commit):
            is_committed = commit.exists()
        sources = (_read_source(line, file, n) for n, line in enumerate(lines[1:]))
        planned_ms = about.get("batchTimestampMs")
        return PlannedBatch(
            number=number,
            planned_ms=planned_ms if type(planned_ms) is int else None,
            is_newest=number == self.batches[-1],
            is_committed=is_committed,
            sources=tuple(sources),
        )


def _list_batches(path: Path) -> list[int]:
    offsets = path / "offsets"
    with _reading(path):
        if not path.exists():
            raise _error(path, "no such directory", _ELSEWHERE)
        if not path.is_dir():
            raise _error(path, "not a directory", _ELSEWHERE)
        if not offsets.is_dir() and not (path / "metadata").is_file():
            reason = "there is no checkpoint here (no offsets, no metadata)"
            raise _error(path, reason, _ELSEWHERE)
        names = [file.name for file in offsets.iterdir()] if offsets.is_dir() else []
    batches = sorted(int(name) for name in names if _BATCH.fullmatch(name))
    if not batches:
        reason = "the checkpoint is empty: the query has not planned a batch yet"
        raise _error(path, reason, "look again when it has")
    return batches


def _check_version(text: str, file: Path) -> list[str]:
    """Return the lines behind the first, which has the version."""
    if not text:
        raise _error(file, "the file is empty")
    # Not `splitlines`: JSON may hold other characters that end a line for Python.
    version, *lines = text.removesuffix("\n").split("\n")
    version = version.strip()
    if re.fullmatch(r"v[0-9]{1,9}", version) and version != _VERSION:
        # Spark 4.3 can write v2 itself, if that setting asks for it.
        raise _error(
            file,
            f"the file is {version}, and this release reads {_VERSION}: a newer Spark "
            "wrote it, or one with spark.sql.streaming.offsetLog.formatVersion",
            "upgrade lance_spark",
        )
    if version != _VERSION:
        raise _error(file, f"no offsets of Spark: the first line is not {_VERSION}")
    if len(lines) < 2:
        raise _error(file, "cut off: there is no source in it")
    return lines


def _read_source(line: str, file: Path, number: int) -> SourceOffset:
    if line.strip() == _NO_OFFSET:
        return SourceOffset(None, None)
    # Version and metadata are the first two lines.
    document = _parse(line, file, f"line {number + 3}")
    if not is_offset_document(document):
        return SourceOffset(document, None)
    try:
        protocol = read_protocol(document)
        offset = StreamOffset.from_document(document, protocol)
        return SourceOffset(document, offset, protocol)
    except CheckpointError as error:
        where = f"{file}, source {number}: {error.where}"
        raise CheckpointError(where, error.reason, error.remedy) from None


def _parse(text: str, file: Path, what: str) -> Any:
    try:
        return json.loads(text)
    # A ValueError is also what a number of thousands of digits gives.
    except (ValueError, RecursionError) as error:
        raise _error(file, f"{what} can't be read as JSON ({error})") from None


def _read(file: Path) -> str:
    with _reading(file):
        if not file.is_file():
            raise _error(file, "not a file")
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise _error(file, f"over {FILE_BYTES_MAX} bytes, which no such file has")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _error(file, f"byte {error.start} is not UTF-8") from None


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise _error(path, reason, "check that it can be read") from error


def _error(path: Path, reason: str, remedy: str = _OLDER) -> CheckpointError:
    return CheckpointError(str(path), reason, remedy)
