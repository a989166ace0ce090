"""Streams of topics through Spark: starts, limits, triggers, progress.

Each query takes seconds, most of it for a Python process of its own, so that tests look
at as much as they can of each. Cases of Spark's KafkaMicroBatchSourceSuite are here
where they apply.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import consumer_id
from lance_spark.model import Retention
from lance_spark.wire.lwp import Record
from tests.integration.kit import PATIENCE_S, wait_for
from tests.spark.querying import (
    Progress,
    Query,
    append,
    by_topic,
    count_bytes,
    load_stream,
    wait_for_failure,
)
from tests.spark.reading import (
    EVERY_COLUMN,
    EVERY_TYPE,
    ROW_COLUMNS,
    ROW_SCHEMA,
    append_bytes,
    connect,
    fill,
    make_payload,
    make_records,
    pick,
)

_STOP_TIMEOUT = "spark.sql.streaming.stopTimeout"

PLACES = "topic string, offset long, next_offset long"


# Where a stream starts.


def test_offsets_to_start_at(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    rows = {name: fill(broker, name, make_records(10)) for name in ("a", "b", "c")}
    inside = rows["a"][6]["offset"] + 3
    query = Query(spark, broker, tmp_path, topic="a,b,c", maxRecordsPerTrigger=4)
    query.given["startingOffsets"] = json.dumps({"a": inside, "b": -2, "c": -1})
    query.run()
    expected = {"a": rows["a"][7:], "b": rows["b"]}
    assert by_topic(query.rows) == {
        name: pick(found, *ROW_COLUMNS) for name, found in expected.items()
    }
    # The first batch is there to write down where it starts, and the others are full.
    sizes = [len(query.batches[number]) for number in sorted(query.batches)]
    assert sizes == [0, 4, 4, 4, 1]
    # From now on the checkpoint tells, whatever the options say.
    query.given["startingOffsets"] = "earliest"
    late = fill(broker, "c", make_records(3))
    query.batches.clear()
    query.run()
    assert query.rows == pick(late, *ROW_COLUMNS)


def test_a_time_to_start_at(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    fill(broker, "a", make_records(5))
    began_ms = time.time_ns() // 10**6
    while (now_ms := time.time_ns() // 10**6) == began_ms:
        pass
    rows = fill(broker, "a", make_records(4))
    query = Query(spark, broker, tmp_path, topic="a", startingTimestamp=now_ms)
    query.run()
    assert query.rows == pick(rows, *ROW_COLUMNS)


# Bounds.


def check_batches(query: Query, progress: list[Progress]) -> None:
    """Check that rows, offsets and what Spark has counted say the same."""
    for each in progress:
        rows = query.batches[each["batchId"]]
        assert each["numInputRows"] == len(rows)
        found = by_topic(rows)
        sizes = {
            topic: sum(row["next_offset"] - row["offset"] for row in found[topic])
            for topic in found
        }
        assert sizes == {t: size for t, size in count_bytes(each).items() if size}


def test_bytes_of_ten_topics(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Also what comes while it runs, which is for the next run."""
    limit, largest = 16_000, 25 + 7 * 9
    rows: dict[str, Any] = {
        f"topic-{n}": fill(broker, f"topic-{n}", make_records(20 + 20 * n, 20 + 7 * n))
        for n in range(10)
    }
    more: dict[str, Any] = {}
    query = Query(
        *(spark, broker, tmp_path, PLACES),
        topicPattern="topic-.*",
        startingOffsets="earliest",
        maxBytesPerTrigger=limit,
    )

    def add(batch: int) -> None:
        if batch == 0:
            for name in ("topic-3", "topic-new"):
                more[name] = fill(broker, name, make_records(300, 40))

    query.before = add
    columns = [part.split()[0] for part in PLACES.split(", ")]
    for number, there in enumerate((rows, more)):
        query.batches.clear()
        progress = query.run()
        check_batches(query, progress)
        assert by_topic(query.rows) == {
            name: pick(found, *columns) for name, found in there.items()
        }
        sizes = [sum(count_bytes(each).values()) for each in progress]
        assert all(limit - largest < size <= limit for size in sizes[:-1])
        assert 0 < sizes[-1] <= limit
        assert len(sizes) == (5 if number == 0 else 2)
        # None of the topics waits for another.
        assert all(
            size > 0 for t, size in count_bytes(progress[0]).items() if t in there
        )


def test_records_in_many_tasks(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """All kinds of records and all columns, in batches that take several tasks."""
    rows = fill(broker, "a", make_records(1000, 100))
    rows += fill(broker, "b", make_records(500, 100))
    rows += fill(broker, "c", EVERY_TYPE)
    query = Query(
        *(spark, broker, tmp_path, EVERY_COLUMN),
        topic="a,b,c",
        startingOffsets="earliest",
        maxRecordsPerTrigger=700,
        maxPartitionBytes=20_000,
    )
    query.transform = lambda frame: frame.withColumn("task", F.spark_partition_id())
    progress = query.run()
    assert [each["numInputRows"] for each in progress] == [700, 700, 118]
    tasks = [len({row.pop("task") for row in b}) for b in query.batches.values()]
    # 700 records have about 73 kB, and so do a task for each 20 kB and topic at least.
    assert min(tasks[:2]) >= 5
    check_batches(query, progress)
    found = by_topic(query.rows)
    assert [row for name in "abc" for row in found[name]] == pick(
        rows, *EVERY_COLUMN.names
    )


def test_limits_of_a_plain_server(
    spark: SparkSession, plain_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Bytes end some batches and records others; half a record is not there yet."""
    rows = fill(plain_broker, "a", make_records(30, 95))
    rows += fill(plain_broker, "b", make_records(100, 15))
    torn = make_payload([Record(1, b"the rest comes later")])
    append_bytes(plain_broker, "a", torn[:10])
    query = Query(
        *(spark, plain_broker, tmp_path, PLACES),
        topic="a,b",
        startingOffsets="earliest",
        maxBytesPerTrigger=1010,
        maxRecordsPerTrigger=25,
    )
    progress = query.run()
    check_batches(query, progress)
    found = by_topic(query.rows)
    columns = [part.split()[0] for part in PLACES.split(", ")]
    assert found["a"] + found["b"] == pick(rows, *columns)
    sizes = [sum(count_bytes(each).values()) for each in progress]
    counts = [each["numInputRows"] for each in progress]
    assert max(sizes) <= 1010 and max(counts) <= 25
    for size, count in list(zip(sizes, counts, strict=True))[:-1]:
        assert size > 1010 - 100 or count == 25
    # It is read when it is whole.
    append_bytes(plain_broker, "a", torn[10:])
    query.batches.clear()
    query.run()
    end = rows[29]["next_offset"]
    assert query.rows == [{"topic": "a", "offset": end, "next_offset": end + len(torn)}]


# Triggers, and what a running query tells.


@contextmanager
def stopping_soon(spark: SparkSession) -> Iterator[None]:
    """Have Spark raise an error if a query does not stop for long."""
    spark.conf.set(_STOP_TIMEOUT, f"{int(PATIENCE_S)}s")
    try:
        yield
    finally:
        spark.conf.unset(_STOP_TIMEOUT)


def test_a_query_that_waits(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """From the latest record on, with topics that come, as a consumer group."""
    fill(broker, "a", make_records(5))
    query = Query(spark, broker, tmp_path, topicPattern="[a-z]", consumerGroup="group")
    with stopping_soon(spark), query.running() as running:
        running.processAllAvailable()
        assert query.rows == []
        rows = append(broker, "a", "1")
        query.wait_for(1)
        rows += append(broker, "b", "2", "3")
        append(broker, "other", "not one of them")
        query.wait_for(3)
        # What was appended just before is part of it.
        for number in range(3):
            rows += append(broker, "ab"[number % 2], str(number))
            running.processAllAvailable()
            assert len(query.rows) == len(rows)
        assert query.rows == pick(rows, *ROW_COLUMNS)
        ends = {row["topic"]: row["next_offset"] for row in rows}
        with connect(broker) as client:
            group = consumer_id("group")
            for topic, end in ends.items():
                wait_for(
                    lambda t=topic, e=end: client.committed_offset(t, group) == e,
                    f"what the group has read of {topic}",
                )
    assert not running.isActive and running.exception() is None


def test_progress(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """A trigger by time; lag and headroom of each topic while it catches up."""
    rows = append(broker, "a", *(f"{number:06}" for number in range(6)))
    with connect(broker) as client:
        client.set_retention("a", Retention(3600, 1_000_000))
    query = Query(
        *(spark, broker, tmp_path),
        topicPattern="[ab]",
        startingOffsets="earliest",
        maxRecordsPerTrigger=2,
    )
    with query.running(processingTime="10 milliseconds") as running:
        query.wait_for(6)
        rows += append(broker, "b", "late")
        query.wait_for(7)
        running.processAllAvailable()
        told = [each for each in running.recentProgress if each.numInputRows]
    assert query.rows == pick(rows, *ROW_COLUMNS)
    lags = [json.loads(each.json)["sources"][0]["latestOffset"] for each in told]
    size = rows[0]["next_offset"]
    for number, lag in enumerate(lags):
        unread = max(0, 4 - 2 * number)
        a = lag["topics"]["a"]
        assert a["partitions"] == {"0": 6 * size}
        assert (a["bytesBehind"], a["recordsBehind"]) == (unread * size, unread)
        assert a["retentionHeadroomBytes"] == 1_000_000 - unread * size
        oldest_ms = a["oldestUnreadMs"]
        assert (oldest_ms is None) == (unread == 0)
        assert a["retentionHeadroomMs"] == 3_600_000 - (oldest_ms or 0)
        assert a["bytesLost"] == 0
    assert len(lags) == 4
    b = lags[-1]["topics"]["b"]
    assert (b["bytesBehind"], b["retentionHeadroomBytes"]) == (0, None)


# What the user is told.


def test_options_that_are_wrong(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    append(broker, "a", "1")
    assert load_stream(spark, broker, topic="a").schema == ROW_SCHEMA
    for given, said in [
        ({"topci": "a"}, "did you mean topic"),
        ({"topic": "a", "maxBytesPerTrigger": "0"}, "maxBytesPerTrigger"),
        ({"topic": "a", "maxRecordsPerTrigger": "1.5"}, "maxRecordsPerTrigger"),
    ]:
        with pytest.raises(PySparkException, match=said):
            load_stream(spark, broker, **given)
    for number, (given, said) in enumerate(
        [
            ({"topic": "a", "endingOffsets": "latest"}, "endingOffsets is for batch"),
            ({"topic": "a,gone"}, "no topic is named 'gone'"),
        ]
    ):
        query = Query(spark, broker, tmp_path / str(number), **given)
        with query.running() as running:
            assert said in wait_for_failure(running)
    assert query.batches == {}
