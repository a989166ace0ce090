"""The ways of the stream benchmark: where rows come from, and where they go.

A feed adds rows to what a query reads; a drain takes what it writes and tells when rows
have come. Of each there is one of ours, a topic, and two that do nothing and show what
the engine takes by itself: with sources and sinks in Python, and without any.
"""

from __future__ import annotations

import os
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.client import LanceClient, Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

RECORD_BYTES = 100
# Anything takes that long only if it hangs.
PATIENCE_S = 600


def make_rows(rows: int) -> pa.Table:
    """Make rows that are records of 100 bytes."""
    value = b"v" * (RECORD_BYTES - 5)
    return pa.table({"value": pa.array([value] * rows, pa.binary())})


def run_to_end(writer: DataStreamWriter) -> StreamingQuery:
    """Run a query that ends by itself.

    Raises:
        TimeoutError: it does not.
    """
    query = writer.start()
    if not query.awaitTermination(PATIENCE_S):
        query.stop()
        raise TimeoutError("the query does not end")
    return query


class Feed(ABC):
    """Gives a query its source, and the source its rows."""

    @abstractmethod
    def load(self, spark: SparkSession) -> DataFrame:
        """Make the stream."""

    @abstractmethod
    def add(self, rows: int) -> None:
        """Add rows; they are there when this returns."""


class MachineFeed(Feed):
    """Spark's own source of rows in the JVM, which always has the next ones.

    Args:
        rows: of each micro-batch.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def load(self, spark: SparkSession) -> DataFrame:
        """Make the stream."""
        reader = spark.readStream.format("rate-micro-batch")
        return reader.option("rowsPerBatch", self._rows).load()

    def add(self, rows: int) -> None:
        """Do nothing."""


class CounterFeed(Feed):
    """Says in a file how many rows there are.

    Args:
        directory: where the file is made.
    """

    def __init__(self, directory: Path) -> None:
        self._counter = directory / "counter"
        self._rows = 0
        self.add(0)

    def load(self, spark: SparkSession) -> DataFrame:
        """Make the stream."""
        reader = spark.readStream.format("ticks")
        return reader.option("counter", str(self._counter)).load()

    def add(self, rows: int) -> None:
        """Add rows."""
        self._rows += rows
        # A file that is written anew would be empty for a moment.
        new = self._counter.with_suffix(".new")
        new.write_bytes(self._rows.to_bytes(8, "little"))
        new.rename(self._counter)


class TopicFeed(Feed):
    """Appends rows to a topic, and waits until they are acknowledged.

    Args:
        producer: appends.
        options: of the source.
    """

    def __init__(self, producer: Producer, options: dict[str, str]) -> None:
        self._producer = producer
        self._options = options
        self._rows = make_rows(1000)

    def load(self, spark: SparkSession) -> DataFrame:
        """Make the stream."""
        reader = spark.readStream.format("lance").options(**self._options)
        return reader.option("startingOffsets", "earliest").load()

    def add(self, rows: int) -> None:
        """Add rows; up to a thousand of them are one batch."""
        if rows > self._rows.num_rows:
            self._rows = make_rows(rows)
        self._producer.write(self._rows.slice(0, rows))
        self._producer.flush()


class Drain(ABC):
    """Takes the rows of a query.

    Args:
        format: of the sink.
        options: of the sink.
    """

    def __init__(self, format: str, options: dict[str, str]) -> None:
        self.format = format
        self.options = options

    def follow(self, query: StreamingQuery) -> None:
        """Take note of the query that has been started."""
        self._query = query

    @abstractmethod
    def wait_for(self, rows: int) -> int | None:
        """Wait until so many more rows are committed.

        Returns:
            When a task had the last of them, by `time.monotonic_ns`, if that is known.

        Raises:
            TimeoutError: they do not come.
        """


class NoopDrain(Drain):
    """Spark's own sink that forgets rows; the query's progress tells of them."""

    def __init__(self) -> None:
        super().__init__("noop", {})
        self._seen = -1

    def wait_for(self, rows: int) -> int | None:
        """Wait until another micro-batch has had rows, however many."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            last = self._query.lastProgress
            if last and last["numInputRows"] and last["batchId"] > self._seen:
                self._seen = last["batchId"]
                return None
            # Looking more often would take time from the query.
            time.sleep(0.02)
        raise TimeoutError("no micro-batch comes")


class BellDrain(Drain):
    """Hears of rows through a pipe.

    Args:
        path: of the pipe, which is there.
        pipe: its descriptor.
    """

    def __init__(self, path: Path, pipe: int) -> None:
        super().__init__("bell", {"pipe": str(path)})
        self._pipe = pipe

    @classmethod
    @contextmanager
    def open(cls, directory: Path) -> Iterator[BellDrain]:
        """Make the pipe in a directory."""
        path = directory / "pipe"
        os.mkfifo(path)
        # Also to write, so that writers need not wait for us and we see no end.
        pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        try:
            yield cls(path, pipe)
        finally:
            os.close(pipe)

    def wait_for(self, rows: int) -> int | None:
        """Wait until so many more rows are committed."""
        from benchmarks._spark_source import RING

        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            if not select.select([self._pipe], [], [], left_s)[0]:
                raise TimeoutError("no micro-batch comes")
            came, at_ns = RING.unpack(os.read(self._pipe, RING.size))
            rows -= came
            if rows <= 0:
                return int(at_ns)


class TopicDrain(Drain):
    """Sees rows in a topic.

    Args:
        client: looks.
        topic: the name of a topic that is not there yet.
        options: of the sink.
    """

    def __init__(
        self, client: LanceClient, topic: str, options: dict[str, str]
    ) -> None:
        super().__init__("lance", options)
        self._client = client
        self._topic_id = client.create_topic(topic).id
        self._end = 0

    def wait_for(self, rows: int) -> int | None:
        """Wait until so many more rows are committed."""
        deadline_s = time.monotonic() + PATIENCE_S
        target = self._end + rows * RECORD_BYTES
        version = 0
        while self._end < target:
            if time.monotonic() > deadline_s:
                raise TimeoutError("no micro-batch comes")
            answer = self._client.wait(version, {self._topic_id: self._end}, 1.0)
            version = answer.version
            self._end = max(end.offset for end in answer.ends)
        return None
