"""Reads of a server without extensions, where record boundaries are looked for.

Whatever values look like: rows are exactly right, or the read fails and says why.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lance_spark.broker import EmbeddedBroker
from lance_spark.errors import SplitError
from lance_spark.spark.pool import clear_pool
from lance_spark.wire.lwp import Record, encode_record
from tests.spark.reading import (
    EVERY_COLUMN,
    EVERY_TYPE,
    ROW_COLUMNS,
    Fetches,
    append_bytes,
    collect,
    drop_old,
    fail_to,
    fill,
    load,
    log_of,
    make_payload,
    make_reader,
    make_records,
    make_rows,
    pick,
    plan_now,
    read_planned,
    run_broker,
)

CHANCE = random.Random(20240501)

# Records that make a boundary hard to find, and still leave it to be found.
TRICKY: dict[str, list[Record]] = {
    "regular": make_records(3000, 100),
    "every-type": EVERY_TYPE * 200,
    "random": [Record(1, CHANCE.randbytes(CHANCE.randrange(300))) for _ in range(2000)],
    "empty": [Record(1, b"")] * 4000,
    "null": [Record(0xFF)] * 4000,
    "empty-keys": [Record(0x10, b"", b"")] * 4000,
    "zeros": [Record(1, bytes(100))] * 2000,
    "ones": [Record(1, b"\x01" * 100)] * 2000,
    "high": [Record(0xFE, b"\xff" * 100)] * 2000,
    # Each value is a stream of records.
    "streams": [
        Record(0x10, make_payload(make_records(number % 20)), b"%d" % number)
        for number in range(1000)
    ],
    # Each five bytes of it are a header, and lead to another one.
    "headers": [Record(1, b"\x01\x05\x00\x00\x00" * 30)] * 1000,
    "nested": [
        Record(1, encode_record(Record(1, encode_record(Record(1, b"%d" % number)))))
        for number in range(5000)
    ],
    "one": [Record(1, b"x" * 300_000)],
    "one-empty": [Record(1, b"")],
    # Across several splits, with others before and behind it.
    "huge": [*make_records(500), Record(1, b"\x02" * 3_000_000), *make_records(500)],
    "large": [Record(1, CHANCE.randbytes(200_000)) for _ in range(10)],
    "mixed": [
        Record(1, b"m" * size) for size in (0, 1, 100_000, 5, 300_000, 17) for _ in "ab"
    ],
}
# A value that holds so many records that nobody can tell them from those of the topic.
HOPELESS = [Record(1, make_payload(make_records(60_000, 45)))]


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    yield
    clear_pool()


# Every topic, cut in many ways, without Spark.


@pytest.mark.parametrize("name", TRICKY)
def test_rows_are_right_however_hard_it_is(
    plain_broker: EmbeddedBroker, name: str
) -> None:
    rows = fill(plain_broker, name, TRICKY[name])
    for parts in (2, 8, 25):
        reader = make_reader(
            plain_broker, EVERY_COLUMN, topic=name, minPartitions=parts
        )
        try:
            found = read_planned(reader, reader.partitions(), EVERY_COLUMN)
        except SplitError as error:
            assert "set splitting=none" in str(error)
            assert name in MAY_FAIL, error
        else:
            assert (found == rows) is True


# Values that hold records may mislead; no other may, however often it is cut.
MAY_FAIL = {"streams", "headers", "nested"}


def test_what_is_regular_is_cut_indeed(plain_broker: EmbeddedBroker) -> None:
    rows = fill(plain_broker, "a", make_records(20_000, 100))
    reader = make_reader(plain_broker, EVERY_COLUMN, topic="a", minPartitions=4)
    found = [
        len(read_planned(reader, [partition], EVERY_COLUMN))
        for partition in reader.partitions()
    ]
    assert len(found) == 4
    assert sum(found) == len(rows)
    # Nearly equal in bytes, and so in records here.
    assert min(found) > len(rows) / 6


def test_a_value_that_is_a_topic_of_its_own(plain_broker: EmbeddedBroker) -> None:
    rows = fill(plain_broker, "a", HOPELESS)
    cut = make_reader(plain_broker, EVERY_COLUMN, topic="a", minPartitions=2)
    with pytest.raises(SplitError):
        read_planned(cut, cut.partitions(), EVERY_COLUMN)
    whole = make_reader(
        *(plain_broker, EVERY_COLUMN), topic="a", minPartitions=2, splitting="none"
    )
    assert (read_planned(whole, whole.partitions(), EVERY_COLUMN) == rows) is True


# Through Spark.


def test_topics_of_all_kinds(spark: SparkSession, plain_broker: EmbeddedBroker) -> None:
    rows: list[dict[str, Any]] = []
    for name in ("every-type", "huge", "one", "one-empty", "regular", "zeros"):
        rows += fill(plain_broker, name, TRICKY[name])
    # The last record of a topic is not there as a whole.
    rows += fill(plain_broker, "torn", make_records(3))
    append_bytes(plain_broker, "torn", encode_record(Record(1, b"x" * 100))[:-1])
    fill(plain_broker, "without")
    frame = load(
        *(spark, plain_broker, EVERY_COLUMN),
        topicPattern=".*",
        checksum="auto",
        maxPartitionBytes="200k",
    )
    assert plan_now(frame) > 20
    found = sorted(collect(frame), key=lambda row: (row["topic"], row["offset"]))
    expected = sorted(rows, key=lambda row: (row["topic"], row["offset"]))
    assert (found == pick(expected, *EVERY_COLUMN.names)) is True


def test_a_cut_in_a_wrong_place_fails(
    spark: SparkSession, plain_broker: EmbeddedBroker
) -> None:
    rows = fill(plain_broker, "a", HOPELESS)
    text = fail_to(load(spark, plain_broker, topic="a", minPartitions=2).collect)
    assert "SplitError: topic 'a': a partition was taken to start at offset" in text
    assert "set splitting=none to read each topic in one partition" in text
    whole = load(
        *(spark, plain_broker, "next_offset long"),
        topic="a",
        minPartitions=2,
        splitting="none",
    )
    assert collect(whole) == pick(rows, "next_offset")


def test_offsets_that_shift_while_they_are_read(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_broker("plain", segment_bytes=50_000) as broker:
        rows = fill(broker, "a", make_records(2000, 500), batch_bytes=10_000)
        frame = load(
            *(spark, broker), topic="a", fetchBytes="20k", failOnDataLoss="false"
        )
        assert plan_now(frame) == 1
        fetches = Fetches(broker, monkeypatch)
        fetches.after(200_000, lambda: drop_old(broker, "a", 500_000))
        # Nothing can be read by these offsets any more, whatever is allowed.
        text = fail_to(frame.collect)
        assert "DataLoss: topic 'a': data at offset" in text
        assert "its offsets have shifted since the query was planned" in text
        assert log_of(broker, "a")[0] > 0
        # Planned anew, it is what the server has now, counted from there.
        left = [row for row in rows if row["offset"] >= log_of(broker, "a")[0]]
        again = load(spark, broker, "key binary, value binary, offset long", topic="a")
        found = collect(again)
    assert pick(found, "key", "value") == pick(left, "key", "value")
    assert found[0]["offset"] == 0


def test_rows_of_a_plain_server(
    spark: SparkSession, plain_broker: EmbeddedBroker
) -> None:
    rows = fill(plain_broker, "a", EVERY_TYPE)
    assert rows == make_rows("a", EVERY_TYPE)
    frame = load(spark, plain_broker, topic="a")
    assert collect(frame) == pick(rows, *ROW_COLUMNS)
    topics = load(spark, plain_broker, "name string, records long", metadata="topics")
    assert collect(topics) == [{"name": "a", "records": None}]
