"""What the Spark benchmarks compare with: the most that Spark's Python API can do.

`ceiling` reads Arrow batches that are there already, `discard` writes nowhere. Of
streams, `ticks` has as many rows as a file says, and `bell` says through a pipe that
rows have come. They are in a module of their own as Spark's workers have to import it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

RECORD_BYTES = 100
TOPIC = "events"
# What `bell` writes into its pipe for each micro-batch that has rows: how many, and
# when its task had the last of them, by the clock that all processes share.
RING = struct.Struct("<qq")
# As much as a reader of topics fetches at once.
_BATCH_BYTES = 4 * 1024 * 1024


class CeilingSource(DataSource):
    """Reads one batch over and over, until it has given `rows`, in `partitions`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ceiling"

    def schema(self) -> StructType:
        """Return the columns that a topic has."""
        from lance_spark.spark.schema import make_row_schema

        return make_row_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader."""
        return _CeilingReader(
            tuple(schema.names),
            int(self.options["rows"]),
            int(self.options["partitions"]),
        )


class _CeilingReader(DataSourceReader):
    def __init__(self, columns: tuple[str, ...], rows: int, partitions: int) -> None:
        self._columns = columns
        self._rows = rows
        self._partitions = partitions

    def partitions(self) -> Sequence[InputPartition]:
        share, rest = divmod(self._rows, self._partitions)
        return [InputPartition(share + (n < rest)) for n in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = make_batch(self._columns)
        for done in range(0, partition.value, batch.num_rows):
            yield batch.slice(0, partition.value - done)


@lru_cache
def make_batch(columns: tuple[str, ...]) -> pa.RecordBatch:
    """Make what a reader of topics makes of a fetch; a worker does so once."""
    from lance_spark.columnar.decode import decode

    record = b"\x01" + (RECORD_BYTES - 5).to_bytes(4, "little")
    data = (record + b"v" * (RECORD_BYTES - 5)) * (_BATCH_BYTES // RECORD_BYTES)
    return decode(data, columns=columns, topic=TOPIC).batch


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

    def schema(self) -> StructType:
        """Return the columns that a topic has."""
        from lance_spark.spark.schema import make_row_schema

        return make_row_schema()

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
        yield make_batch(self._columns).slice(0, partition.value)


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
