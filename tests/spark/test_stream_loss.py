"""Streams of topics that lose data, and queries whose target is deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lance_spark.broker import EmbeddedBroker
from tests.spark.querying import (
    Query,
    append,
    by_topic,
    delete,
    wait_for_failure,
)
from tests.spark.reading import (
    drop_old,
    fill,
    log_of,
    make_records,
    pick,
    run_broker,
)
from tests.spark.writing import count_stages, read_values

SCHEMA = "topic string, offset long, value binary"
COLUMNS = ("topic", "offset", "value")


def test_topics_that_are_others_by_now(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Recreated with more and with less than was read, or not at all."""
    for name in "abcd":
        fill(broker, name, make_records(10))
    query = Query(
        spark, broker, tmp_path, SCHEMA, topic="a,b,c,d", startingOffsets="earliest"
    )
    query.run()
    assert len(query.rows) == 40
    # While it is away.
    delete(broker, "a", "b", "c")
    rows = {
        "a": append(broker, "a", *(f"new {number}" for number in range(50))),
        "b": append(broker, "b", "new"),
        "d": append(broker, "d", "more", "and more"),
    }
    query.batches.clear()
    text = query.fail()
    assert "DataLoss: topic 'a': data at offset 250 is lost: the topic was" in text
    assert "created anew" in text and "set failOnDataLoss=false to go on" in text
    assert query.rows == []
    query.given["failOnDataLoss"] = "false"
    query.run()
    assert by_topic(query.rows) == {
        name: pick(found, *COLUMNS) for name, found in rows.items()
    }
    # And while it runs.
    query.batches.clear()
    with query.running() as running:
        running.processAllAvailable()
        assert query.rows == []
        delete(broker, "a", "d")
        running.processAllAvailable()
        found = append(broker, "c", "again")
        running.processAllAvailable()
        found += append(broker, "a", *(f"newer {number}" for number in range(80)))
        running.processAllAvailable()
        delete(broker, "a")
        found += append(broker, "a", "newest")
        running.processAllAvailable()
    assert query.rows == pick(found, *COLUMNS)


def test_a_topic_that_is_deleted_while_it_is_read(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    rows = append(broker, "a", "1", "2")
    query = Query(
        spark, broker, tmp_path, SCHEMA, topicPattern="[ab]", startingOffsets="earliest"
    )
    with query.running() as running:
        running.processAllAvailable()
        delete(broker, "a")
        text = wait_for_failure(running)
    end = rows[-1]["next_offset"]
    assert f"DataLoss: topic 'a': data at offset {end} is lost" in text
    assert "the topic was deleted; set failOnDataLoss=false to go on" in text
    # It is not known to those that go on.
    query.given["failOnDataLoss"] = "false"
    rows += append(broker, "b", "3")
    query.run()
    assert query.rows == pick(rows, *COLUMNS)


def test_a_topic_that_vanishes_and_comes_back(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """While another broker answers for its own; the target is exactly once."""
    data = tmp_path / "first"
    with run_broker() as second:
        append(second, "other", "to have another id")
        with EmbeddedBroker(data_dir=data) as first:
            servers, port = f"{first.address},{second.address}", first.port
            append(first, "a", "1", "2")
            query = Query(
                *(spark, first, tmp_path, "value string"),
                servers=servers,
                topicPattern="a",
                startingOffsets="earliest",
                failOnDataLoss="false",
            )
            query.write_to(broker, topic="copy")
            running = query.start()
            running.processAllAvailable()
        # The second one has no such topic, and then one of its own.
        running.processAllAvailable()
        append(second, "a", "another 1")
        running.processAllAvailable()
        running.stop()
    with EmbeddedBroker(data_dir=data, listen=f"127.0.0.1:{port}") as first:
        append(first, "a", "3")
        with query.running() as running:
            running.processAllAvailable()
            append(first, "a", "4")
            running.processAllAvailable()
    assert read_values(broker, "copy") == [b"1", b"2", b"another 1", b"3", b"4"]


@pytest.fixture
def segmented() -> Iterator[EmbeddedBroker]:
    """Run a broker whose topics can be cut in small pieces."""
    with run_broker(segment_bytes=50_000) as broker:
        yield broker


def test_retention_that_passes_a_slow_query(
    spark: SparkSession, segmented: EmbeddedBroker, tmp_path: Path
) -> None:
    """Between the plan of a batch and its tasks, which is the worst moment."""
    rows = fill(segmented, "a", make_records(2000, 500), batch_bytes=10_000)
    query = Query(
        *(spark, segmented, tmp_path, SCHEMA),
        topic="a",
        startingOffsets="earliest",
        maxBytesPerTrigger=101_000,
    )
    kept = {2: 500_000, 6: 200_000}

    def cut(batch: int) -> None:
        if batch in kept:
            drop_old(segmented, "a", kept.pop(batch))

    query.before = cut
    text = query.fail()
    start, end = log_of(segmented, "a")
    assert start > 303_000
    asked = rows[400]["offset"]
    assert f"DataLoss: topic 'a': data at offset {asked} is lost" in text
    assert "set failOnDataLoss=false to go on with what is left" in text
    assert f"{start - asked} bytes gone" in text
    assert f"(log start {start}, log end {end})" in text
    assert sorted(query.batches) == [0, 1]
    assert query.rows == pick(rows[:400], *COLUMNS)
    # The batch that was planned has nothing left; the next one starts at what there is.
    query.given["failOnDataLoss"] = "false"
    progress = query.run()
    assert query.batches[2] == [] and not kept
    last_start, _ = log_of(segmented, "a")
    assert last_start > start + 200_000
    found = [row["offset"] for row in query.rows]
    assert found == sorted(set(found))
    # What is missing is what was removed before it was read, and nothing else.
    missing = {row["offset"] for row in rows} - set(found)
    assert min(missing) == asked and max(missing) < last_start
    assert {row["offset"] for row in rows if asked <= row["offset"] < start} <= missing
    values = {row["offset"]: row["value"] for row in rows}
    assert all(row["value"] == values[row["offset"]] for row in query.rows)
    [lost] = {
        each["sources"][0]["latestOffset"]["topics"]["a"]["bytesLost"]
        for each in progress
        if 3 <= each["batchId"] <= 6
    }
    assert lost == start - asked


def test_the_target_is_deleted(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    append(broker, "a", "1", "2")
    query = Query(
        spark, broker, tmp_path, "value string", topic="a", startingOffsets="earliest"
    )
    query.write_to(broker, topic="b")
    with query.running() as running:
        running.processAllAvailable()
        assert read_values(broker, "b") == [b"1", b"2"]
        delete(broker, "b")
        append(broker, "a", "3")
        running.processAllAvailable()
        assert read_values(broker, "b") == [b"3"]
    # And while it is away.
    delete(broker, "b")
    append(broker, "a", "4")
    query.run()
    assert (read_values(broker, "b"), count_stages(broker)) == ([b"4"], 0)
