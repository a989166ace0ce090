"""A data source over a few rows in memory that takes what filters it can.

It lives in a module of its own as Spark's workers have to import it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lance_spark.spark.filters import Pushed, push_filters

SCHEMA = (
    StructType()
    .add("topic", "string", nullable=False)
    .add("offset", "long", nullable=False)
    .add("type", "short", nullable=False)
    .add("key", "binary")
    .add("value", "string")
    .add("timestamp", "timestamp")
    .add("timestamp_ns", "long")
)

_DAY = datetime(2024, 1, 1, tzinfo=timezone.utc)
_LATER = _DAY.replace(microsecond=1)

ROWS: list[dict[str, object]] = [
    {
        "topic": topic,
        "offset": offset,
        "type": kind,
        "key": key,
        "value": value,
        "timestamp": stamp,
        "timestamp_ns": None if stamp is None else nanoseconds,
    }
    for topic, offset, kind, key, value, stamp, nanoseconds in [
        ("a", 0, 1, None, "", None, 0),
        ("a", 5, 16, b"", "a", None, 0),
        ("a", 9, 17, None, "ab", _DAY, 1_704_067_200_000_000_999),
        ("a", 14, 18, b"\x7f", "b", _LATER, 1_704_067_200_000_001_000),
        ("ab", 0, 18, b"\x80", "ä", _DAY, 1_704_067_200_000_000_000),
        ("ab", 20, 255, None, None, None, 0),
        ("ä", 5, 128, None, "\U0001f600", None, 0),
    ]
]


def make_rows() -> pa.RecordBatch:
    """Give the rows as a reader of that schema does."""
    arrow = to_arrow_schema(SCHEMA, timezone="UTC")
    return pa.RecordBatch.from_pylist(ROWS, schema=arrow)


class FilteredSource(DataSource):
    """Serves the rows under the name `filtered`; option `narrow` as a server may."""

    @classmethod
    def name(cls) -> str:
        return "filtered"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> FilteredReader:
        return FilteredReader(self.options["narrow"] == "true")


class FilteredReader(DataSourceReader):
    """Does with filters what a reader of topics has to do."""

    def __init__(self, narrow: bool) -> None:
        self._narrow = narrow
        self._pushed = Pushed()

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._pushed, left = push_filters(filters, narrow=self._narrow)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield apply(self._pushed, make_rows())


def apply(pushed: Pushed, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Read what is asked for: some topics, a range of offsets, then `select`."""
    start = 0 if pushed.start is None else pushed.start
    end = 2**63 if pushed.end is None else pushed.end
    wanted = [
        start <= row["offset"] < end and pushed.keeps_topic(row["topic"])
        for row in batch.select(["offset", "topic"]).to_pylist()
    ]
    return pushed.select(batch.filter(pa.array(wanted, pa.bool_())))
