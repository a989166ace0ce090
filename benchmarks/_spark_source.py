"""What the Spark benchmarks compare with: the most that Spark's Python API can do.

`ceiling` reads Arrow batches that are there already, `discard` writes nowhere. They are
in a module of their own as Spark's workers have to import it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

RECORD_BYTES = 100
TOPIC = "events"
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
        from lance_spark.spark.schema import ROW_SCHEMA

        return ROW_SCHEMA

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
