"""Rows of DataFrames become records, or the user is told why not."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lance_spark.broker import EmbeddedBroker
from lance_spark.wire.lwp import RECORD_VALUE_BYTES_MAX, Record
from tests.spark.reading import EVERY_TYPE, fill
from tests.spark.saving import (
    check_untouched,
    make_numbers,
    refuse,
    save,
    small_batches,
    to_numbers,
)
from tests.spark.writing import (
    create_topics,
    list_topics,
    read_records,
    read_values,
)

NOON = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)
NOON_NS = 1_714_564_800 * 10**9

TYPE_OF_KEY, TYPE_OF_TIME, TYPE_OF_BOTH, NULL = 0x10, 0x11, 0x12, 0xFF


@pytest.fixture(params=["broker", "plain_broker"])
def server(request: pytest.FixtureRequest) -> EmbeddedBroker:
    """Give a broker of each dialect."""
    found: EmbeddedBroker = request.getfixturevalue(request.param)
    return found


def _load(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> DataFrame:
    reader = spark.read.format("lance")
    return reader.options(servers=broker.address, topic=topic).load()


# Columns.


def test_every_column(spark: SparkSession, server: EmbeddedBroker) -> None:
    rows = [
        (b"v", None, None, None),
        (b"", None, None, 0x02),
        (b"\x00\xff", None, None, 0xFE),
        (None, None, None, None),
        (None, None, None, NULL),
        (b"v", b"k", None, None),
        (b"", b"", None, TYPE_OF_KEY),
        (b"v", None, NOON, None),
        (b"v", None, NOON, TYPE_OF_TIME),
        ("ż 🐢".encode(), "ключ".encode(), NOON, TYPE_OF_BOTH),
    ]
    schema = "value binary, key binary, timestamp timestamp, type smallint"
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    save(frame, server, topic="a", recordType="json", allowNullRecords="true")
    assert read_records(server, "a") == [
        Record(0x02, b"v"),
        Record(0x02, b""),
        Record(0xFE, b"\x00\xff"),
        Record(NULL, b""),
        Record(NULL, b""),
        Record(TYPE_OF_KEY, b"v", b"k"),
        Record(TYPE_OF_KEY, b"", b""),
        Record(TYPE_OF_TIME, b"v", None, NOON_NS),
        Record(TYPE_OF_TIME, b"v", None, NOON_NS),
        Record(TYPE_OF_BOTH, "ż 🐢".encode(), "ключ".encode(), NOON_NS),
    ]


# What is written is in front, and then what becomes of it.
KINDS: dict[str, tuple[str, Record]] = {
    "texts": ("'ä' value, 'k' key", Record(TYPE_OF_KEY, "ä".encode(), b"k")),
    "nanoseconds": (
        "'v' value, 1714564800000000001L timestamp_ns",
        Record(TYPE_OF_TIME, b"v", None, NOON_NS + 1),
    ),
    "a time without a zone": (
        "'v' value, timestamp_ntz'2024-05-01 12:00:00.000001' timestamp",
        Record(TYPE_OF_TIME, b"v", None, NOON_NS + 1000),
    ),
    "small and large numbers": (
        "'v' value, 7 timestamp_ns, 17L type",
        Record(TYPE_OF_TIME, b"v", None, 7),
    ),
    "columns of nothing": (
        "'v' value, null key, null timestamp, null type",
        Record(0x01, b"v"),
    ),
    "a value of nothing": ("null value", Record(NULL, b"")),
    "what a read gives": (
        "'b' topic, 9L offset, 12L next_offset, 'v' value, 3Y type",
        Record(0x03, b"v"),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_types_of_columns(
    spark: SparkSession, broker: EmbeddedBroker, kind: str
) -> None:
    columns, expected = KINDS[kind]
    save(spark.sql(f"select {columns}"), broker, topic="a")
    assert read_records(broker, "a") == [expected]
    assert list_topics(broker) == ["a"]


@pytest.mark.parametrize(("given", "stored"), [("avro", 5), ("0xFE", 254)])
def test_the_type_of_plain_values(
    spark: SparkSession, broker: EmbeddedBroker, given: str, stored: int
) -> None:
    frame = spark.sql("select 'v' value, cast(null as string) key")
    save(frame.union(spark.sql("select 'v', 'k'")), broker, topic="a", recordType=given)
    assert [record.type for record in read_records(broker, "a")] == [stored, 0x10]


def test_names_in_any_case_and_the_last_timestamp(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    """As Spark takes names; and what is read can be written, up to the last."""
    last = "timestamp'2554-07-21 23:34:33.709551'"
    frame = spark.sql(
        f"SELECT 'v' AS VALUE, X'6B' AS Key, {last} AS TimeStamp, 'a' AS Topic, "
        "1 AS OFFSET"
    )
    save(frame, broker)
    reader = spark.read.format("lance").options(servers=broker.address, topic="a")
    again = reader.schema("OFFSET long, Value string, TIMESTAMP timestamp").load()
    assert again.columns == ["OFFSET", "Value", "TIMESTAMP"]
    found = again.where(f"offset >= 0 AND timestamp = {last}").selectExpr(
        "offset", "value", "CAST(timestamp AS string)"
    )
    assert found.collect() == [(0, "v", "2554-07-21 23:34:33.709551")]
    save(reader.load(), broker, topic="b")
    [record] = read_records(broker, "b")
    assert (record.value, record.timestamp_ns) == (b"v", 2**64 - 1 - 615)
    late = spark.sql("SELECT 'v' AS value, timestamp'2554-07-22 00:00:00' AS timestamp")
    with pytest.raises(PySparkException, match="a timestamp beyond the year 2554"):
        save(late, broker, topic="c")


def test_order_is_that_of_the_partitions(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    save(make_numbers(spark, 1000, partitions=5), broker, topic="a")
    assert to_numbers(read_values(broker, "a")) == list(range(1000))


def test_a_copy_of_a_topic(spark: SparkSession, broker: EmbeddedBroker) -> None:
    fill(broker, "a", EVERY_TYPE)
    save(_load(spark, broker, "a"), broker, topic="b")
    originals = _load(spark, broker, "a").drop("topic")
    assert_df_equality(originals, _load(spark, broker, "b").drop("topic"))


# Where rows go.


def test_rows_are_routed(spark: SparkSession, server: EmbeddedBroker) -> None:
    frame = spark.range(0, 90, numPartitions=3).selectExpr(
        "concat('topic-', id % 3) topic", "cast(id as string) value"
    )
    with small_batches(spark, 7):
        save(frame, server)
    for number in range(3):
        found = to_numbers(read_values(server, f"topic-{number}"))
        if server.config.dialect == "plain":
            found.sort()
        assert found == list(range(number, 90, 3))


def test_the_option_wins_over_the_column(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    rows = [("b", "1"), (None, "2")]
    frame = spark.createDataFrame(rows, "topic string, value string").coalesce(1)
    save(frame, broker, topic="a")
    assert read_values(broker, "a") == [b"1", b"2"]
    assert list_topics(broker) == ["a"]


def test_topics_that_may_not_be_created(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    there = spark.sql("select 'there' topic, 'v' value")
    gone = spark.sql("select 'gone' topic, 'v' value")
    create_topics(broker, "there")
    no = {"createTopic": "false"}
    told = "there is no topic 'gone': create it, or set createTopic=true"
    assert told in refuse(there, broker, topic="gone", **no)
    assert told in refuse(there.union(gone).coalesce(1), broker, **no)
    assert read_values(broker, "there") == []
    check_untouched(broker, "there")
    save(there, broker, **no)
    assert read_values(broker, "there") == [b"v"]


# How rows travel.


def test_compressed(spark: SparkSession, broker: EmbeddedBroker) -> None:
    size = 1_000_000
    before = broker.metrics.snapshot().received_bytes
    frame = spark.sql(f"select repeat('x', {size}) value")
    save(frame, broker, topic="a", compression="lz4")
    assert read_values(broker, "a") == [b"x" * size]
    assert broker.metrics.snapshot().received_bytes - before < size / 10


def test_many_rows_in_small_frames(spark: SparkSession, server: EmbeddedBroker) -> None:
    frame = make_numbers(spark, 20_000, padding=100)
    save(frame, server, topic="a", batchBytes="1k", maxInFlight=1)
    found = to_numbers(read_values(server, "a"))
    assert sorted(found) == list(range(20_000))


# Modes.


def test_append_and_overwrite(spark: SparkSession, broker: EmbeddedBroker) -> None:
    first, second = make_numbers(spark, 10), make_numbers(spark, 3, partitions=1)
    save(first, broker, topic="a")
    save(second, broker, topic="a")
    assert to_numbers(read_values(broker, "a")) == [*range(10), *range(3)]
    (size,) = {r.log_end for r in _topics(spark, broker)}
    save(second, broker, topic="a", mode="overwrite")
    (info,) = _topics(spark, broker)
    # Offsets go on: nobody takes new records for old ones.
    assert (info.log_start, info.records) == (size, 3)
    save(second.limit(0), broker, topic="a", mode="overwrite")
    (info,) = _topics(spark, broker)
    assert (info.log_start, info.records) == (info.log_end, 0)
    save(first, broker, topic="new", mode="overwrite")
    assert to_numbers(read_values(broker, "new")) == list(range(10))


def _topics(spark: SparkSession, broker: EmbeddedBroker) -> list[Any]:
    reader = spark.read.format("lance").option("servers", broker.address)
    return reader.option("metadata", "topics").load().collect()


def test_no_rows(spark: SparkSession, broker: EmbeddedBroker) -> None:
    none = make_numbers(spark, 10).limit(0)
    save(none, broker, topic="a")
    check_untouched(broker)
    save(none, broker, topic="a", mode="overwrite")
    check_untouched(broker, "a")


def test_a_reader_in_the_middle_of_an_overwrite(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    rows = make_numbers(spark, 10)
    save(rows, broker, topic="a")
    # A frame is planned by the first that is done with it.
    frame = _load(spark, broker, "a")
    assert frame.count() == 10
    save(rows, broker, topic="a", mode="overwrite")
    with pytest.raises(PySparkException, match="DataLoss"):
        frame.count()
    assert _load(spark, broker, "a").count() == 10


@pytest.mark.parametrize("mode", [None, "error", "ignore"])
def test_other_modes_are_refused(
    spark: SparkSession, server: EmbeddedBroker, mode: str | None
) -> None:
    said = refuse(spark.sql("select 'v' value"), server, mode=mode, topic="a")
    assert "Append" in said and "Overwrite" in said
    check_untouched(server)


def test_overwrite_needs_one_topic(spark: SparkSession, broker: EmbeddedBroker) -> None:
    frame = spark.sql("select 'a' topic, 'v' value")
    said = refuse(frame, broker, mode="overwrite")
    assert 'mode("overwrite") needs option topic' in said
    check_untouched(broker)


# Columns and rows that can't be written. Others are tried without Spark.


def test_bad_columns(spark: SparkSession, broker: EmbeddedBroker) -> None:
    said = refuse(spark.sql("select 'v' value, 1 other, 2 more"), broker, topic="a")
    assert "OptionError: can't write columns other, more: drop" in said
    check_untouched(broker)


def test_no_topic(spark: SparkSession, broker: EmbeddedBroker) -> None:
    frame = spark.sql("select 'v' value")
    assert "no topic to write to: name it with option topic" in refuse(frame, broker)
    check_untouched(broker)


def test_a_bad_row(spark: SparkSession, broker: EmbeddedBroker) -> None:
    good = spark.range(10).selectExpr("'a' topic", "string(id) value", "'k' key")
    frame = good.union(spark.sql("select 'a', null, 'k'")).coalesce(1)
    said = refuse(frame, broker)
    assert re.search(
        "RowError: row 10: .*a key but no value.*in Spark's partition 0", said
    )
    check_untouched(broker)


def test_the_largest_row(spark: SparkSession, server: EmbeddedBroker) -> None:
    frame = spark.sql(f"select repeat('x', {RECORD_VALUE_BYTES_MAX}) value")
    save(frame, server, topic="a")
    (found,) = read_values(server, "a")
    assert found == b"x" * RECORD_VALUE_BYTES_MAX
