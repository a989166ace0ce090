"""Streaming queries as users write them: state, joins, several sinks, failures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lance_spark.broker import EmbeddedBroker
from lance_spark.wire.lwp import Record
from tests.spark.querying import Query, append, by_topic, list_progress
from tests.spark.reading import fill, make_options, make_records, pick
from tests.spark.saving import save
from tests.spark.writing import count_stages, read_values

VALUES = "key string, value string"


def make_trouble(directory: Path) -> Any:
    """Make a step that lets rows pass but a bad one, and fails once in each task."""

    def pass_late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if "bad" in batch["value"].to_pylist():
                raise ValueError("a bad row")
            yield batch
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            (directory / f"failed-{context.taskAttemptId()}").touch()
            raise RuntimeError("as the test wants it")

    return pass_late


def test_tasks_that_fail(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Tasks are tried again; rows that fail always end the query until it is mended."""
    append(broker, "a", "1", "2", "3", "4", "5", "bad", "6")
    query = Query(
        *(spark, broker, tmp_path, "value string"),
        topic="a",
        startingOffsets="earliest",
        maxRecordsPerTrigger=4,
    )
    trouble = make_trouble(tmp_path)
    query.transform = lambda frame: frame.mapInArrow(trouble, "value string")
    query.write_to(broker, topic="b")
    assert "a bad row" in query.fail()
    assert read_values(broker, "b") == [b"1", b"2", b"3", b"4"]
    assert list(tmp_path.glob("failed-*")), "no task was tried again"
    query.transform = lambda frame: frame.selectExpr("concat('was ', value) value")
    append(broker, "a", "7")
    query.run()
    late = [b"was 5", b"was bad", b"was 6", b"was 7"]
    assert read_values(broker, "b") == [b"1", b"2", b"3", b"4", *late]
    assert count_stages(broker) == 0


def test_one_source_and_two_sinks(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Two queries on one topic, of one DataFrame, and at the same time."""
    append(broker, "a", "1", "2", "3")
    frame = Query(
        *(spark, broker, tmp_path, "value string"),
        topic="a",
        startingOffsets="earliest",
        maxRecordsPerTrigger=2,
    ).load()
    queries = []
    try:
        for name, made in [("b", frame), ("c", frame.where("value <> '2'"))]:
            writer = made.writeStream.format("lance")
            writer = writer.options(**make_options(broker, topic=name))
            path = str(tmp_path / name)
            queries.append(writer.option("checkpointLocation", path).start())
        for query in queries:
            query.processAllAvailable()
        append(broker, "a", "4")
        for query in queries:
            query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    assert read_values(broker, "b") == [b"1", b"2", b"3", b"4"]
    assert read_values(broker, "c") == [b"1", b"3", b"4"]


def test_a_join_with_itself(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    append(broker, "a", "1", "2", key="x")
    append(broker, "a", "3", key="y")
    append(broker, "a", "4", key="x")
    query = Query(
        *(spark, broker, tmp_path, VALUES),
        topic="a",
        startingOffsets="earliest",
        maxRecordsPerTrigger=3,
    )
    query.transform = lambda frame: frame.join(
        frame.withColumnRenamed("value", "other"), "key"
    )
    progress = query.run()
    pairs = sorted((row["value"], row["other"]) for row in query.rows)
    assert pairs == sorted([(x, y) for x in "124" for y in "124"] + [("3", "3")])
    # Spark makes a reader for each side; each of them has had every record once.
    assert sum(each["numInputRows"] for each in progress) == 2 * 4


def test_state_and_watermarks(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Duplicates are dropped and windows counted, over a restart."""

    def add(*events: tuple[str, int]) -> None:
        made = [Record(0x12, b"", key.encode(), at * 10**9) for key, at in events]
        fill(broker, "a", made)

    def count(frame: DataFrame) -> DataFrame:
        known = frame.withWatermark("timestamp", "10 seconds")
        once = known.dropDuplicates(["key", "timestamp"])
        counts = once.groupBy(F.window("timestamp", "10 seconds")).count()
        return counts.selectExpr("concat(unix_seconds(window.start), ' ', count) value")

    query = Query(
        *(spark, broker, tmp_path, "key string, timestamp timestamp"),
        topic="a",
        startingOffsets="earliest",
        maxRecordsPerTrigger=4,
    )
    query.transform = count
    query.write_to(broker, topic="b")
    add(("x", 1), ("y", 2), ("x", 1), ("x", 11), ("y", 2), ("z", 31))
    query.run()
    # The watermark is at 21.
    assert sorted(read_values(broker, "b")) == [b"0 2", b"10 1"]
    # One is too late, one was there before the restart.
    add(("x", 5), ("z", 31), ("z", 32), ("x", 60))
    query.run()
    assert sorted(read_values(broker, "b")) == [b"0 2", b"10 1", b"30 2"]


def test_batches_that_are_written_by_a_function(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """It fails between its two writes; the first is not done again, the second is."""
    append(broker, "a", "1", "2", "3")
    query = Query(
        *(spark, broker, tmp_path, "value string"),
        topic="a",
        startingOffsets="earliest",
        maxRecordsPerTrigger=2,
    )
    written: list[tuple[int, str]] = []
    failing = {1}

    def write(frame: DataFrame, batch: int) -> None:
        for topic in ("b", "c"):
            options: dict[str, Any] = {"txnAppId": "app", "txnVersion": batch}
            save(frame, broker, topic=topic, **options)
            written.append((batch, topic))
            if batch in failing:
                failing.remove(batch)
                raise RuntimeError("as the test wants it")

    query.write_by(write)
    assert "as the test wants it" in query.fail()
    assert read_values(broker, "b") == [b"1", b"2", b"3"]
    assert read_values(broker, "c") == [b"1", b"2"]
    append(broker, "a", "4")
    query.run()
    assert written == [
        *[(0, "b"), (0, "c"), (1, "b")],
        *[(1, "b"), (1, "c"), (2, "b"), (2, "c")],
    ]
    for topic in ("b", "c"):
        assert read_values(broker, topic) == [b"1", b"2", b"3", b"4"]


def test_a_broker_that_goes_and_comes(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Away for too long it ends the query, which goes on later; else nobody notices."""
    rows = fill(broker, "a", make_records(50))
    rows += fill(broker, "b", make_records(50))
    query = Query(
        *(spark, broker, tmp_path, "topic string, offset long, value binary"),
        topic="a,b",
        startingOffsets="earliest",
        maxRecordsPerTrigger=20,
        retryTimeout="300ms",
    )
    query.before = lambda batch: broker.stop() if batch == 2 else None
    text = query.fail()
    assert f"could not connect to {broker.address}" in text
    broker.start()
    assert len(query.rows) == 40
    del query.given["retryTimeout"]
    restarts = []

    def restart(batch: int) -> None:
        restarts.append(batch)
        broker.stop()
        broker.start()

    query.before = restart
    with query.running() as running:
        query.wait_for(100)
        rows += fill(broker, "a", make_records(1))
        query.wait_for(101)
        running.processAllAvailable()
        assert all(each["numInputRows"] <= 20 for each in list_progress(running))
    assert restarts == [2, 3, 4, 5]
    found = by_topic(query.rows)
    columns = ("topic", "offset", "value")
    rows.sort(key=lambda row: (row["topic"], row["offset"]))
    assert found["a"] + found["b"] == pick(rows, *columns)
