"""What the Spark benchmarks compare with: the most that Spark's Python API can do.

`ceiling` reads Arrow batches that are there already, `discard` writes nowhere. Of
streams, `ticks` has as many rows as a file says, and `bell` says through a pipe that
rows have come. They are in a module of their own as Spark's workers have to import it,
and it imports nothing of `lance_spark`, which would be part of the floor then.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

# What `bell` writes into its pipe for each micro-batch that has rows: how many, and
# when its task had the last of them, by the clock that all processes share.
RING = struct.Struct("<qq")
# The columns of a topic. `tests/test_bench.py` compares them with those of a read.
SCHEMA = (
    "topic string, offset bigint, type smallint, key binary, value binary, "
    "timestamp timestamp"
)
# As much as a reader of topics fetches at once.
_BATCH_BYTES = 4 * 1024 * 1024
_TOPIC = "events"
_TICK_BYTES = 95


class CeilingSource(DataSource):
    """Reads one batch over and over, until it has given `rows`, in `partitions`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ceiling"

    def schema(self) -> str:
        """Return the columns that a topic has."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader."""
        return _CeilingReader(
            tuple(schema.names),
            *(int(self.options[name]) for name in ("rows", "partitions", "size")),
        )


class _CeilingReader(DataSourceReader):
    def __init__(
        self, columns: tuple[str, ...], rows: int, partitions: int, size: int
    ) -> None:
        self._columns = columns
        self._rows = rows
        self._partitions = partitions
        self._size = size

    def partitions(self) -> Sequence[InputPartition]:
        share, rest = divmod(self._rows, self._partitions)
        return [InputPartition(share + (n < rest)) for n in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return repeat_batch(self._columns, self._size, partition.value)


def repeat_batch(
    columns: tuple[str, ...], size: int, rows: int
) -> Iterator[pa.RecordBatch]:
    """Give one batch over and over, as many rows of it as are wanted."""
    batch = make_batch(columns, size)
    for done in range(0, rows, batch.num_rows):
        yield batch.slice(0, rows - done)


@lru_cache
def make_batch(columns: tuple[str, ...], size: int) -> pa.RecordBatch:
    """Make what a reader of topics makes of a fetch; a worker does so once.

    Args:
        columns: their names.
        size: of each value.
    """
    rows = max(1, _BATCH_BYTES // size)
    arrays = {
        "topic": _repeat(_TOPIC.encode(), rows, pa.string()),
        "offset": _make_integers(np.arange(0, rows * size, size), pa.int64()),
        "type": _make_integers(np.ones(rows, np.int16), pa.int16()),
        "key": pa.nulls(rows, pa.binary()),
        "value": _repeat(b"v" * size, rows, pa.binary()),
        "timestamp": pa.nulls(rows, pa.timestamp("us", "UTC")),
    }
    return pa.RecordBatch.from_arrays([arrays[name] for name in columns], [*columns])


# Not by `pa.array`, which imports pandas.


def _repeat(value: bytes, rows: int, kind: pa.DataType) -> pa.Array:
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(value))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(value * rows)]
    return pa.Array.from_buffers(kind, rows, buffers)


def _make_integers(values: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


class DiscardSource(DataSource):
    """Takes rows as Arrow batches and forgets them."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Make the writer."""
        return _DiscardWriter()


@dataclass
class _Discarded(WriterCommitMessage):
    rows: int


class _DiscardWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _Discarded(sum(batch.num_rows for batch in iterator))


class TicksSource(DataSource):
    """A stream that has as many rows as the file `counter` says, all of them alike."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ticks"

    def schema(self) -> str:
        """Return the columns that a topic has."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Make the reader."""
        return _TicksReader(tuple(schema.names), self.options["counter"])


class _TicksReader(DataSourceStreamReader):
    def __init__(self, columns: tuple[str, ...], counter: str) -> None:
        self._columns = columns
        self._counter = counter

    def initialOffset(self) -> dict[str, Any]:
        return {"rows": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"rows": int.from_bytes(Path(self._counter).read_bytes(), "little")}

    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[InputPartition]:
        rows = end["rows"] - start["rows"]
        return [InputPartition(rows)] if rows else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return repeat_batch(self._columns, _TICK_BYTES, partition.value)


class BellSource(DataSource):
    """Forgets the rows of micro-batches, and says through `pipe` that they came."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "bell"

    def streamWriter(
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Make the writer."""
        return _BellWriter(self.options["pipe"])


@dataclass
class _Seen(WriterCommitMessage):
    rows: int
    at_ns: int


class _BellWriter(DataSourceStreamArrowWriter):
    def __init__(self, pipe: str) -> None:
        self._pipe = pipe

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        rows = sum(batch.num_rows for batch in iterator)
        return _Seen(rows, time.monotonic_ns())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        seen = [each for each in messages if isinstance(each, _Seen) and each.rows]
        if seen:
            rows = sum(each.rows for each in seen)
            ring = RING.pack(rows, max(each.at_ns for each in seen))
            with Path(self._pipe).open("wb", buffering=0) as pipe:
                pipe.write(ring)
