"""What the tests of streaming queries share: queries that are started again, rows."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.types import StructType

from lance_spark.broker import EmbeddedBroker
from lance_spark.wire.lwp import Record
from tests.integration.kit import PATIENCE_S
from tests.spark.reading import collect, connect, fill, make_options

Row = dict[str, Any]
# What Spark tells of one trigger: its JSON.
Progress = dict[str, Any]


class Query:
    """A stream of topics that can be started again from its checkpoint.

    Its rows are kept here, by batch, unless it is sent elsewhere.

    Args:
        spark: the session.
        broker: where the topics are.
        directory: where its checkpoint is.
        schema: the columns that are asked for.
        given: options of the source; may be changed before it is started again.
    """

    def __init__(
        self,
        spark: SparkSession,
        broker: EmbeddedBroker,
        directory: Path,
        schema: str | StructType | None = None,
        **given: Any,
    ) -> None:
        self.given = given
        self.checkpoint = directory / "checkpoint"
        self.batches: dict[int, list[Row]] = {}
        self.transform: Callable[[DataFrame], DataFrame] = lambda frame: frame
        # Called with the batch's number when Spark has planned it, before it is read.
        self.before: Callable[[int], None] = lambda _: None
        self._spark = spark
        self._broker = broker
        self._schema = schema
        self._sink: Callable[[DataStreamWriter], DataStreamWriter] = self._to_rows
        self._came = threading.Condition()

    @property
    def rows(self) -> list[Row]:
        """The rows of all batches, in order."""
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    def load(self) -> DataFrame:
        """Make the DataFrame, without the transform."""
        return load_stream(self._spark, self._broker, self._schema, **self.given)

    # Where the rows go.

    def write_to(self, broker: EmbeddedBroker, **options: Any) -> None:
        """Send the rows to topics."""
        given = make_options(broker, **options)
        self._sink = lambda writer: writer.format("lance").options(**given)

    def write_by(self, write: Callable[[DataFrame, int], None]) -> None:
        """Have each batch written by a function."""
        self._sink = lambda writer: writer.foreachBatch(write)

    def _to_rows(self, writer: DataStreamWriter) -> DataStreamWriter:
        return writer.foreachBatch(self._keep)

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self.before(batch)
        rows = collect(frame)
        with self._came:
            self.batches[batch] = rows
            self._came.notify_all()

    def wait_for(self, rows: int) -> None:
        """Wait until so many rows have come."""
        with self._came:
            came = self._came.wait_for(lambda: len(self.rows) >= rows, PATIENCE_S)
        assert came, f"{len(self.rows)} rows, and not {rows}"

    # Running.

    def start(self, **trigger: Any) -> StreamingQuery:
        """Start it, with Spark's default trigger if none is given."""
        writer = self._sink(self.transform(self.load()).writeStream)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(**trigger) if trigger else writer).start()

    @contextmanager
    def running(self, **trigger: Any) -> Iterator[StreamingQuery]:
        """Run it for a while."""
        query = self.start(**trigger)
        try:
            yield query
        finally:
            query.stop()

    def run(self) -> list[Progress]:
        """Let it read what there is now, and end; give its progress."""
        with self.running(availableNow=True) as query:
            assert query.awaitTermination(int(PATIENCE_S)), "it does not end"
            return list_progress(query)

    def fail(self) -> str:
        """Let it read what there is now, which fails; give what the user is told."""
        with self.running(availableNow=True) as query:
            return wait_for_failure(query)


def load_stream(
    spark: SparkSession,
    broker: EmbeddedBroker,
    schema: str | StructType | None = None,
    **given: Any,
) -> DataFrame:
    """Make a streaming DataFrame of what a broker has."""
    reader = spark.readStream.format("lance").options(**make_options(broker, **given))
    return (reader if schema is None else reader.schema(schema)).load()


def wait_for_failure(query: StreamingQuery) -> str:
    """Wait until a query fails, and give what the user is told."""
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(int(PATIENCE_S))
    return str(query.exception())


def list_progress(query: StreamingQuery) -> list[Progress]:
    """Give what Spark tells of the triggers so far that had a batch."""
    return [json.loads(each.json) for each in query.recentProgress]


def count_bytes(progress: Progress) -> dict[str, int]:
    """Say how much of each topic a batch has, by its offsets alone."""
    [source] = progress["sources"]
    start = (source["startOffset"] or {"topics": {}})["topics"]
    return {
        topic: place["partitions"]["0"]
        - (start[topic]["partitions"]["0"] if topic in start else 0)
        for topic, place in source["endOffset"]["topics"].items()
    }


def append(
    broker: EmbeddedBroker, topic: str, *values: str, key: str | None = None
) -> list[Row]:
    """Append values, made a topic if need be; give their rows."""
    kind = 1 if key is None else 0x10
    encoded = None if key is None else key.encode()
    return fill(broker, topic, [Record(kind, v.encode(), encoded) for v in values])


def delete(broker: EmbeddedBroker, *topics: str) -> None:
    """Delete topics."""
    with connect(broker) as client:
        for topic in topics:
            client.delete_topic(topic)


def by_topic(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Sort rows by topic, in their order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["topic"], []).append(row)
    return found
