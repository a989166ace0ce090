"""Reads through Spark, of a broker with all that ours has.

A job takes some tenths of a second, so that tests look at as much as they can of each.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import Producer
from lance_spark.errors import ConnectionLost
from lance_spark.spark.schema import TOPICS_SCHEMA
from lance_spark.wire.lwp import RECORD_VALUE_BYTES_MAX, Record
from tests.columnar.strategies import PLAIN_TYPES, blobs, keys, stamps
from tests.integration.kit import PATIENCE_S
from tests.spark.reading import (
    EVERY_COLUMN,
    EVERY_TYPE,
    ROW_COLUMNS,
    ROW_SCHEMA,
    Fetches,
    collect,
    connect,
    drop_old,
    fail_to,
    fill,
    load,
    log_of,
    make_options,
    make_records,
    make_rows,
    pick,
    plan_now,
    run_broker,
)

# How many rows make the long way; `make long` has more of them.
ROWS = int(os.environ.get("LANCE_LONG_ROWS", "500000"))
ROWS_IN_MEMORY_MAX = 1_000_000


# Rows and columns.


def test_a_default_read(spark: SparkSession, broker: EmbeddedBroker) -> None:
    rows = pick(fill(broker, "a", EVERY_TYPE), *ROW_COLUMNS)
    frame = load(spark, broker, topic="a", minPartitions=3)
    assert frame.schema == ROW_SCHEMA
    assert plan_now(frame) == 3
    assert collect(frame) == rows
    # The same without us: as others would write those rows down.
    columns = [field.name for field in ROW_SCHEMA]
    data = [tuple(row[name] for name in columns) for row in rows]
    expected = spark.createDataFrame(data, ROW_SCHEMA)
    assert_df_equality(frame.orderBy("offset"), expected)


def test_columns_that_are_asked_for(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    texts = ["", "żółw 🐢", "line\nline", "\u0000", "x" * 100_000]
    kept = [Record(0x12, text.encode(), b"k", 2**62 + 999) for text in texts]
    rows = fill(broker, "a", [*kept, Record(0xFF)])
    schema = (
        "value string, next_offset bigint, timestamp_ns long, key string, type short"
    )
    frame = load(spark, broker, schema, topic="a")
    assert frame.columns == ["value", "next_offset", "timestamp_ns", "key", "type"]
    assert collect(frame) == [
        {
            **pick([row], "value", "next_offset", "timestamp_ns", "key", "type")[0],
            "value": text,
            "key": None if text is None else "k",
        }
        for row, text in zip(rows, [*texts, None], strict=True)
    ]
    # Names of options are Spark's: in any case.
    reader = spark.read.format("lance").schema("offset long not null")
    options = {"SERVERS": broker.address, "Topic": "a", "MINPARTITIONS": "2"}
    assert collect(reader.options(**options).load()) == pick(rows, "offset")


def test_the_largest_values(spark: SparkSession, broker: EmbeddedBroker) -> None:
    large = [
        Record(1, b"x" * RECORD_VALUE_BYTES_MAX),
        Record(0x12, b"y" * (RECORD_VALUE_BYTES_MAX - 13), b"key", 5),
        Record(1, b"small"),
    ]
    fill(broker, "a", large)
    frame = load(spark, broker, "value binary, key binary", topic="a")
    found = frame.selectExpr("length(value) as size", "md5(value) as digest", "key")
    expected = spark.createDataFrame(
        [(bytearray(r.value), r.key and bytearray(r.key)) for r in large],
        "value binary, key binary",
    ).selectExpr("length(value) as size", "md5(value) as digest", "key")
    assert_df_equality(found, expected, ignore_row_order=True)


# Topics.


def test_fifty_topics_by_a_pattern(spark: SparkSession, broker: EmbeddedBroker) -> None:
    rows: list[dict[str, Any]] = []
    for number in range(50):
        made = [Record(1, b"%d %d" % (number, each)) for each in range(number % 4)]
        rows += fill(broker, f"many-{number:02}", made)
    fill(broker, "other", make_records(3))
    frame = load(spark, broker, topicPattern="many-.*")
    assert collect(frame) == pick(rows, *ROW_COLUMNS)
    # Those without a record have no partition.
    assert plan_now(frame) == len({row["topic"] for row in rows}) == 37


def test_topics_without_records(spark: SparkSession, broker: EmbeddedBroker) -> None:
    fill(broker, "empty")
    rows = fill(broker, "full", make_records(2))
    empty = load(spark, broker, topic="empty")
    assert collect(empty) == []
    assert empty.schema == ROW_SCHEMA
    both = load(spark, broker, topic="full,empty")
    assert collect(both) == pick(rows, *ROW_COLUMNS)


def test_metadata(spark: SparkSession, broker: EmbeddedBroker) -> None:
    end = fill(broker, "a", make_records(4))[-1]["next_offset"]
    fill(broker, "b")
    frame = load(spark, broker, metadata="topics")
    assert frame.schema == TOPICS_SCHEMA
    now = datetime.now(timezone.utc)
    found = collect(frame)
    for row in found:
        assert abs((now - row.pop("created")).total_seconds()) < 3600
    assert found == [
        {
            "id": number,
            "name": name,
            "log_start": 0,
            "log_end": size,
            "records": count,
            "retention": {"max_age_s": 0, "max_bytes": 0},
        }
        for number, name, size, count in [(1, "a", end, 4), (2, "b", 0, 0)]
    ]
    # It is asked when it runs, and each time.
    fill(broker, "c")
    some = load(spark, broker, "name string", metadata="topics", topicPattern="[bc]")
    assert collect(some) == [{"name": "b"}, {"name": "c"}]
    assert frame.count() == 3


def test_sql(spark: SparkSession, broker: EmbeddedBroker) -> None:
    fill(broker, "a", make_records(10))
    fill(broker, "b", make_records(20))
    spark.sql(
        f"""
        CREATE OR REPLACE TEMPORARY VIEW lance_rows (
            topic STRING, value STRING, next_offset BIGINT
        )
        USING lance
        OPTIONS (servers '{broker.address}', topic 'a,b')
        """
    )
    try:
        found = spark.sql(
            """
            SELECT topic, count(*) AS rows, max(next_offset) AS log_end,
                   min(substr(value, 1, 6)) AS first
            FROM lance_rows WHERE value > '000004' GROUP BY topic ORDER BY topic
            """
        )
        assert collect(found) == [
            {"topic": "a", "rows": 6, "log_end": 250, "first": "000004"},
            {"topic": "b", "rows": 16, "log_end": 500, "first": "000004"},
        ]
    finally:
        spark.catalog.dropTempView("lance_rows")


# Where reads start and end.


def test_offsets(spark: SparkSession, broker: EmbeddedBroker) -> None:
    names = ("a", "b", "c")
    rows = {name: fill(broker, name, make_records(10)) for name in names}
    some = load(
        *(spark, broker),
        topic="a,b,c",
        startingOffsets=f'{{"a": {rows["a"][3]["offset"]}, "b": -2, "c": -1}}',
        endingOffsets=f'{{"a": {rows["a"][7]["offset"]}, "b": 1, "c": -1}}',
    )
    expected = rows["a"][3:7] + rows["b"][:1]
    assert collect(some) == pick(expected, *ROW_COLUMNS)


def test_times(spark: SparkSession, broker: EmbeddedBroker) -> None:
    first = fill(broker, "a", make_records(5))
    between = next_millisecond()
    second = fill(broker, "a", make_records(5))
    late = load(spark, broker, topic="a", startingTimestamp=between.isoformat())
    milliseconds = round(between.timestamp() * 1000)
    early = load(spark, broker, topic="a", endingTimestamp=milliseconds)
    never = load(spark, broker, topic="a", startingTimestamp="2200-01-01")
    # All of it in one job.
    found = collect(late.union(early).union(never))
    assert found == pick(second + first, *ROW_COLUMNS)


def next_millisecond() -> datetime:
    """Wait for a millisecond to begin, and give its time."""
    began = time.time_ns() // 10**6
    while (now := time.time_ns() // 10**6) == began:
        pass
    return datetime.fromtimestamp(0, timezone.utc) + timedelta(milliseconds=now)


def test_a_read_is_bound_when_it_is_planned(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    # Nothing has to be there when a DataFrame is made.
    late = load(spark, broker, "offset long", topic="a")
    first = pick(fill(broker, "a", make_records(5)), "offset")
    assert collect(late) == first
    fill(broker, "a", make_records(5))
    # One that is used again reads what it did, also twice in one query.
    assert collect(late) == first
    assert collect(late.union(late)) == first + first
    assert late.alias("a").join(late.alias("b"), "offset").count() == 5
    # A new one has it all.
    assert load(spark, broker, "offset long", topic="a").count() == 10


# Little is fetched for little.


def test_limit_and_show(
    spark: SparkSession,
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = pa.array([b"%06d" % number + b"v" * 4090 for number in range(16_000)])
    with connect(broker) as client:
        with Producer(client, "a", create_topic=True) as producer:
            producer.write(pa.table({"value": values}))
        size = client.bounds("a").end
    assert size > 64_000_000
    fetches = Fetches(broker, monkeypatch)
    frame = load(spark, broker, "value string", topic="a", maxPartitionBytes="1g")
    found = frame.selectExpr("substr(value, 1, 6) as head").limit(3)
    assert collect(found) == [{"head": f"{number:06}"} for number in range(3)]
    frame.selectExpr("substr(value, 1, 6) as head").show(2)
    assert "|000001|" in capsys.readouterr().out
    # Both together. Spark's sockets take some megabytes before anybody looks at them.
    assert fetches.bytes < size / 2


# Filters.

FILTERS = [
    "offset > 503 and offset <= 1003 and offset <> 700",
    "offset in (0, 25, 26, 10000000)",
    "topic in ('a', 'x') and key = X'303033'",
    "type = 16 and key > X'303937'",
    "value is not null and key is null",
    "timestamp >= timestamp'2023-11-14 22:13:20.123456'",
    "timestamp = timestamp'2023-11-14 22:13:20' or offset = 25",
    "not (key = X'303031') and topic like 'c%'",
    "offset < 0",
    "length(value) > 15 and topic = 'c'",
]


@contextmanager
def pushing_filters(spark: SparkSession) -> Iterator[None]:
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    try:
        yield
    finally:
        spark.conf.unset(name)


def read_filtered(
    spark: SparkSession, broker: EmbeddedBroker, **given: str
) -> list[Any]:
    """Read with each of the filters, all in one job."""

    def read(number: int) -> DataFrame:
        frame = load(spark, broker, topic="a,c", **given)
        return frame.where(FILTERS[number]).withColumn("filter", F.lit(number))

    frames = [read(number) for number in range(len(FILTERS))]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    # The value is checked by other tests.
    rows = [tuple(row.values()) for row in collect(whole.drop("value"))]
    return sorted(rows, key=lambda row: (row[-1], row[0], row[1]))


def test_filters_mean_the_same_whoever_applies_them(
    spark: SparkSession, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "a", make_records(100))
    fill(broker, "c", EVERY_TYPE)
    fetches = Fetches(broker, monkeypatch)
    unpushed = read_filtered(spark, broker)
    fetched_unpushed = fetches.bytes
    # The option alone changes nothing.
    assert read_filtered(spark, broker, pushFilters="true") == unpushed
    fetched_unpushed = fetches.bytes - fetched_unpushed
    fetched_before = fetches.bytes
    with pushing_filters(spark):
        pushed = read_filtered(spark, broker, pushFilters="true")
    assert pushed == unpushed
    fetched_pushed = fetches.bytes - fetched_before
    found = {row[-1] for row in unpushed}
    assert found == {n for n, text in enumerate(FILTERS) if text != "offset < 0"}
    # They were pushed indeed: other offsets and topics are not even read.
    assert 0 < fetched_pushed < 0.75 * fetched_unpushed


@pytest.mark.parametrize("is_pushing", [False, True])
def test_queries_of_one_load_do_not_see_filters_of_each_other(
    spark: SparkSession, broker: EmbeddedBroker, is_pushing: bool
) -> None:
    """Spark 4.3 has one plan per `load()`, which is that of the last query planned."""
    rows = fill(broker, "a", make_records(100))
    offsets = [row["offset"] for row in rows]
    low, high = offsets[30], offsets[60]
    with pushing_filters(spark) if is_pushing else nullcontext():
        frame = load(spark, broker, "offset long, key binary", topic="a")
        first = frame.where(f"offset < {low}")
        second = frame.where(f"offset >= {high}").select("offset")
        # Both are planned before one of them is read.
        for each in (first, second, frame):
            plan_now(each)
        found = [
            sorted(row["offset"] for row in collect(each))
            for each in (
                *(first, second, frame),
                first.select("offset").unionAll(second),
                first.join(frame, "offset").select("offset"),
                first.join(second, "offset").select("offset"),
                frame.where(f"offset > (SELECT {low})").select("offset"),
            )
        ]
        counted = (frame.count(), first.count(), second.count(), frame.count())
    assert found == [
        *(offsets[:30], offsets[60:], offsets),
        offsets[:30] + offsets[60:],
        offsets[:30],
        [],
        offsets[31:],
    ]
    assert counted == (100, 30, 40, 100)


@pytest.mark.parametrize("is_pushing", [False, True])
def test_one_load_while_records_are_appended(
    spark: SparkSession, broker: EmbeddedBroker, is_pushing: bool
) -> None:
    """A query reads what was there when it, or an earlier one, was planned."""
    rows = fill(broker, "a", make_records(10))
    with pushing_filters(spark) if is_pushing else nullcontext():
        frame = load(spark, broker, topic="a")
        assert frame.count() == 10
        rows += fill(broker, "a", make_records(15))
        # A session that offers filters has a query with filters planned anew.
        assert frame.where("offset >= 0").count() == (25 if is_pushing else 10)
        assert frame.count() == (25 if is_pushing else 10)
        assert collect(frame.select("offset")) == [
            {"offset": row["offset"]} for row in rows[: 25 if is_pushing else 10]
        ]
        assert load(spark, broker, topic="a").where("offset >= 0").count() == 25


# Things that change while they are read.


def test_a_topic_that_is_gone(spark: SparkSession, broker: EmbeddedBroker) -> None:
    fill(broker, "a", make_records(10))
    failing = load(spark, broker, topic="a")
    going_on = load(spark, broker, topic="a", failOnDataLoss="false")
    assert (plan_now(failing), plan_now(going_on)) == (1, 1)
    with connect(broker) as client:
        client.delete_topic("a")
    # Another one of that name, which nobody has asked for.
    rows = fill(broker, "a", make_records(30))
    assert collect(going_on) == []
    text = fail_to(failing.collect)
    assert "lance_spark.errors.DataLoss: topic 'a': data at offset 0 is lost" in text
    assert "the topic was deleted; set failOnDataLoss=false" in text
    assert load(spark, broker, topic="a").count() == len(rows)


@pytest.fixture
def segmented() -> Iterator[EmbeddedBroker]:
    """Run a broker whose topics can be cut in small pieces."""
    with run_broker(segment_bytes=50_000) as broker:
        yield broker


@pytest.mark.parametrize("fails", ["true", "false"])
def test_retention_that_passes_a_read(
    spark: SparkSession,
    segmented: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    fails: str,
) -> None:
    rows = fill(segmented, "a", make_records(2000, 500), batch_bytes=10_000)
    frame = load(
        *(spark, segmented, "offset long, value binary"),
        topic="a",
        fetchBytes="20k",
        failOnDataLoss=fails,
    )
    assert plan_now(frame) == 1
    fetches = Fetches(segmented, monkeypatch)
    fetches.after(100_000, lambda: drop_old(segmented, "a", 300_000))
    if fails == "true":
        text = fail_to(frame.collect)
        assert "DataLoss: topic 'a': data at offset" in text
        assert "what was before the log start is removed; set failOnDataLoss" in text
        return
    found = collect(frame)
    start, _ = log_of(segmented, "a")
    assert start > 600_000
    passed = [row for row in found if row["offset"] < start]
    assert 100 <= len(passed) < 1000
    assert passed == pick(rows[: len(passed)], "offset", "value")
    left = [row for row in rows if row["offset"] >= start]
    assert found[len(passed) :] == pick(left, "offset", "value")


def test_a_broker_that_restarts(
    spark: SparkSession, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fill(broker, "a", make_records(2000, 500))
    schema = "offset long, value binary"
    frame = load(spark, broker, schema, topic="a", fetchBytes="20k")
    assert plan_now(frame) == 1
    fetches = Fetches(broker, monkeypatch)
    with restarting(broker, fetches, after=200_000) as restarted:
        found = collect(frame)
        assert restarted.is_set()
    assert found == pick(rows, "offset", "value")


@contextmanager
def restarting(
    broker: EmbeddedBroker, fetches: Fetches, *, after: int
) -> Iterator[threading.Event]:
    """Restart a broker when so many bytes were fetched; say when that was done."""
    reached, restarted = threading.Event(), threading.Event()
    server = broker._server
    assert server is not None

    def cut_off() -> None:
        # Nobody is served by the old one while it stops.
        if reached.is_set() and server._stopping.wait(PATIENCE_S):
            raise ConnectionLost("the broker is restarted")

    def restart() -> None:
        if reached.wait(PATIENCE_S):
            broker.stop()
            fetches.gate = lambda: None
            broker.start()
            restarted.set()

    fetches.after(after, reached.set)
    fetches.gate = cut_off
    thread = threading.Thread(target=restart)
    thread.start()
    try:
        yield restarted
    finally:
        reached.set()
        thread.join(PATIENCE_S)


# There and back again.

RECORDS = st.one_of(
    st.builds(Record, st.sampled_from(PLAIN_TYPES), blobs),
    st.builds(Record, st.just(0x10), blobs, keys),
    st.builds(Record, st.just(0x11), blobs, st.none(), stamps),
    st.builds(Record, st.just(0x12), blobs, keys, stamps),
    st.just(Record(0xFF)),
)
WRITTEN = pa.schema(
    [
        ("topic", pa.string()),
        ("type", pa.int16()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp_ns", pa.int64()),
    ]
)


@settings(
    max_examples=3,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(written=st.lists(st.lists(RECORDS, max_size=12), min_size=6, max_size=10))
def test_rows_come_back_as_they_were(
    spark: SparkSession, written: list[list[Record]]
) -> None:
    # Each list is a topic, so that one job has many examples.
    made = [make_rows(f"topic-{n:02}", each) for n, each in enumerate(written)]
    rows = [row for each in made for row in each]
    table = pa.Table.from_pylist(pick(rows, *WRITTEN.names), WRITTEN)
    with run_broker() as broker:
        writer = spark.createDataFrame(table).coalesce(1).write.format("lance")
        writer.option("servers", broker.address).mode("append").save()
        frame = load(
            *(spark, broker, EVERY_COLUMN), topicPattern="topic-.*", minPartitions=15
        )
        assert collect(frame) == pick(rows, *EVERY_COLUMN.names)


@pytest.mark.long
def test_many_rows_come_back(spark: SparkSession, tmp_path: Path) -> None:
    def sum_up(frame: DataFrame) -> dict[str, Any]:
        digest = "cast(xxhash64(key, value, timestamp_ns) as decimal(38, 0))"
        summed = frame.selectExpr(
            "count(*) as rows", f"sum({digest}) as sum", "count(key) as keys"
        )
        [found] = collect(summed)
        return found

    rows = spark.range(0, ROWS, 1, 4).selectExpr(
        "if(id % 7 = 0, null, cast(id % 1000 as string)) as key",
        "concat('value ', id, repeat('x', cast(id % 50 as int))) as value",
        "if(id % 3 = 0, null, id * 1001) as timestamp_ns",
    )
    where = None if ROWS <= ROWS_IN_MEMORY_MAX else tmp_path
    with run_broker(where=where) as broker:
        writer = rows.write.format("lance").options(**make_options(broker, topic="a"))
        writer.mode("append").save()
        schema = "key string, value string, timestamp_ns long"
        frame = load(spark, broker, schema, topic="a", minPartitions=6)
        assert plan_now(frame) >= 6
        found = sum_up(frame)
    assert found["rows"] == ROWS
    assert found == sum_up(rows)
