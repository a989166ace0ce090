"""Readers as Spark uses them: planned here, pickled, read elsewhere; without a JVM."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import StructField, StructType

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.driver import LogRef, Range
from lance_spark.client.lwp.places import RangeMark
from lance_spark.client.lwp.reader import OVERLAP_BYTES
from lance_spark.errors import (
    ConnectionLost,
    OptionError,
    RecordError,
    TopicNotFound,
    Unsupported,
)
from lance_spark.model import Partition
from lance_spark.offset import MARK_BYTES_MAX
from lance_spark.spark import planning
from lance_spark.spark.pool import clear_pool
from lance_spark.spark.reader import narrow_range
from lance_spark.wire.lwp import Record, RecordType
from tests.spark.reading import (
    DIALECTS,
    EVERY_COLUMN,
    EVERY_TYPE,
    ROW_COLUMNS,
    ROW_SCHEMA,
    Fetches,
    connect,
    fill,
    make_reader,
    make_records,
    make_schema,
    pick,
    plan,
    read,
    read_planned,
    run_broker,
)


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    yield
    clear_pool()


@pytest.fixture(params=DIALECTS)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with run_broker(request.param) as broker:
        yield broker


# Rows.


def test_a_default_read(server: EmbeddedBroker) -> None:
    rows = fill(server, "a", EVERY_TYPE)
    found = read(server, ROW_SCHEMA, topic="a")
    assert found == pick(rows, *ROW_COLUMNS)


def test_several_topics_in_the_order_of_their_names(server: EmbeddedBroker) -> None:
    rows = {name: fill(server, name, make_records(5)) for name in ("c", "a", "b")}
    found = read(server, EVERY_COLUMN, topic="c,a")
    assert found == rows["a"] + rows["c"]
    found = read(server, EVERY_COLUMN, topicPattern="[bc]")
    assert found == rows["b"] + rows["c"]


def test_names_of_columns_in_any_case(server: EmbeddedBroker) -> None:
    rows = fill(server, "a", EVERY_TYPE)
    schema = StructType(
        [StructField(f.name.title(), f.dataType, f.nullable) for f in EVERY_COLUMN]
    )
    assert read(server, schema, topic="a") == [
        {name.title(): value for name, value in row.items()} for row in rows
    ]
    # Filters have the names of the schema.
    reader = make_reader(server, schema, topic="a", pushFilters="true")
    filters: list[Filter] = [
        GreaterThan(("Offset",), rows[3]["offset"]),
        Not(EqualTo(("Key",), b"key")),
    ]
    assert list(reader.pushFilters(filters)) == []
    found = read_planned(reader, reader.partitions(), schema)
    assert [row["Offset"] for row in found] == [
        row["offset"]
        for row in rows[4:]
        if row["key"] is not None and row["key"] != b"key"
    ]


LATE = [
    Record(RecordType.TIMESTAMPED, b"timed", None, 2**63),
    Record(RecordType.KEY_TIMESTAMPED, b"both", b"k", 2**64 - 1),
    Record(RecordType.TIMESTAMPED, b"early", None, 2**63 - 1),
]


def test_every_timestamp_is_read_in_microseconds(server: EmbeddedBroker) -> None:
    rows = fill(server, "a", LATE)
    assert read(server, topic="a") == pick(rows, *ROW_COLUMNS)
    assert rows[1]["timestamp"].isoformat() == "2554-07-21T23:34:33.709551+00:00"
    # Filters on them, too.
    found, _ = read_filtered(
        *(server, [GreaterThan(("timestamp",), rows[2]["timestamp"])]),
        schema=ROW_SCHEMA,
        topic="a",
    )
    assert found == pick(rows[1:2], *ROW_COLUMNS)


def test_a_timestamp_that_is_no_bigint(server: EmbeddedBroker) -> None:
    rows = fill(server, "a", [*make_records(2), *LATE])
    schema = make_schema("offset long, timestamp_ns long")
    with pytest.raises(RecordError) as told:
        read(server, schema, topic="a")
    text = str(told.value)
    assert f"at byte {rows[2]['offset']}" in text and "topic 'a'" in text
    assert "timestamp 9223372036854775808 ns does not fit into timestamp_ns" in text
    assert "read column timestamp instead" in text
    found = read(server, schema, topic="a", onBadRecord="skip")
    assert found == pick([*rows[:2], rows[4]], "offset", "timestamp_ns")


def test_nothing_to_read(server: EmbeddedBroker) -> None:
    fill(server, "a")
    reader = make_reader(server, topic="a")
    assert reader.partitions() == []
    # Spark makes one up then.
    assert list(reader.read(InputPartition(None))) == []
    assert make_reader(server, topicPattern="b.*").partitions() == []


def test_a_topic_that_is_not_there(server: EmbeddedBroker) -> None:
    for fails in ("true", "false"):
        with pytest.raises(TopicNotFound, match="no topic is named 'a'"):
            make_reader(server, topic="a", failOnDataLoss=fails).partitions()


# Plans.


def test_ranges_are_fixed_when_partitions_are_planned(server: EmbeddedBroker) -> None:
    fill(server, "a")
    reader = make_reader(server, EVERY_COLUMN, topic="a")
    # Made before there was anything, and planned afterwards.
    rows = fill(server, "a", make_records(5))
    partitions = reader.partitions()
    fill(server, "a", make_records(5))
    for _ in range(2):
        assert read_planned(reader, partitions, EVERY_COLUMN) == rows


def test_partitions_are_what_spark_wants(server: EmbeddedBroker) -> None:
    fill(server, "a", make_records(5))
    partitions = make_reader(server, topic="a").partitions()
    assert type(partitions) is list
    assert [type(each) for each in partitions] == [InputPartition]


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({}, [1, 1]),
        ({"minPartitions": 2}, [1, 1]),
        ({"minPartitions": 8}, [6, 2]),
        ({"maxPartitionBytes": "1k"}, [8, 3]),
        ({"maxPartitionBytes": "1k", "minPartitions": 3}, [8, 3]),
        ({"maxPartitionBytes": "1k", "minPartitions": 40}, [30, 10]),
        ({"splitting": "none", "minPartitions": 8, "maxPartitionBytes": "1k"}, [1, 1]),
        ({"splitting": "probe", "minPartitions": 8}, [6, 2]),
    ],
)
def test_how_topics_are_cut(
    server: EmbeddedBroker, given: dict[str, Any], parts: list[int]
) -> None:
    rows = fill(server, "a", make_records(300)) + fill(server, "b", make_records(100))
    reader = make_reader(server, EVERY_COLUMN, topic="a,b", **given)
    partitions = reader.partitions()
    topics = [each.value.range.topic for each in partitions]
    assert [topics.count(name) for name in ("a", "b")] == parts
    assert read_planned(reader, partitions, EVERY_COLUMN) == rows


def test_locate_where_there_is_none(plain_broker: EmbeddedBroker) -> None:
    fill(plain_broker, "a", make_records(1))
    with pytest.raises(Unsupported, match="splitting=locate"):
        make_reader(plain_broker, topic="a", splitting="locate").partitions()


def test_too_many_partitions(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SPLITS_MAX", 10)
    fill(server, "a", make_records(11))
    with pytest.raises(OptionError, match="11 partitions, 10 are the most"):
        make_reader(server, topic="a", maxPartitionBytes=25).partitions()


def test_planning_asks_the_same_of_a_large_topic(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of more than what is looked at of each.
    fill(server, "small", make_records(2000))
    fill(server, "large", make_records(20_000, 200))
    fetches = Fetches(server, monkeypatch)

    def cost(topic: str) -> tuple[int, int, int]:
        before = server.metrics.snapshot().received_bytes, fetches.count, fetches.bytes
        assert len(plan(make_reader(server, topic=topic, minPartitions=50))) == 50
        after = server.metrics.snapshot().received_bytes, fetches.count, fetches.bytes
        asked, fetched, size = (b - a for a, b in zip(before, after, strict=True))
        return asked, fetched, size

    plan(make_reader(server, topic="small"))  # Whoever connects is greeted.
    assert cost("large") == cost("small")
    assert cost("large")[2] <= 2 * MARK_BYTES_MAX


def test_a_reader_travels_before_and_after_it_was_used(server: EmbeddedBroker) -> None:
    rows = fill(server, "a", make_records(10))
    reader = pickle.loads(pickle.dumps(make_reader(server, EVERY_COLUMN, topic="a")))
    partitions = reader.partitions()
    assert read_planned(reader, partitions, EVERY_COLUMN) == rows
    again = pickle.loads(pickle.dumps(reader))
    assert read_planned(again, partitions, EVERY_COLUMN) == rows


# Filters.


def test_spark_thinks_that_nothing_is_overridden(broker: EmbeddedBroker) -> None:
    # The very check of `plan_data_source_read`, in sessions that push no filters.
    for asked in ("false", "true"):
        reader = make_reader(broker, topic="a", pushFilters=asked)
        for each in (reader, pickle.loads(pickle.dumps(reader))):
            found = getattr(each.pushFilters, "__func__", None)
            assert found is DataSourceReader.pushFilters


def read_filtered(
    broker: EmbeddedBroker,
    filters: list[Filter],
    schema: StructType = EVERY_COLUMN,
    **given: Any,
) -> tuple[list[dict[str, Any]], list[Filter]]:
    """Read what filters leave; they are pushed as Spark does it."""
    reader = make_reader(broker, schema, **{"pushFilters": "true", **given})
    rest = list(reader.pushFilters(filters))
    return read_planned(reader, reader.partitions(), schema), rest


@pytest.mark.parametrize("parts", [1, 3])
def test_filters_are_applied_here(server: EmbeddedBroker, parts: int) -> None:
    rows = fill(server, "a", make_records(60)) + fill(server, "b", make_records(60))
    low, high = rows[20]["offset"], rows[40]["offset"]
    filters: list[Filter] = [
        IsNotNull(("offset",)),
        # Inside of records: a filter may name any byte.
        GreaterThan(("offset",), low - 3),
        LessThan(("offset",), high - 3),
        In(("topic",), ("b", "c")),
        StringStartsWith(("value",), "0000"),
    ]
    unknown = EqualTo(("other", "field"), 1)
    found, rest = read_filtered(
        *(server, [*filters, unknown]), topicPattern=".", minPartitions=parts
    )
    assert found == [row for row in rows[60:] if low <= row["offset"] < high]
    assert len(found) == 20
    assert rest == [unknown]


def test_offsets_and_topics_that_are_not_wanted_are_not_fetched(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fill(server, "a", make_records(4000))
    for name in ("b", "c"):
        fill(server, name, make_records(4000))
    fetches = Fetches(server, monkeypatch)
    first, last = rows[1000]["offset"], rows[1010]["offset"]
    found, rest = read_filtered(
        server,
        [
            GreaterThanOrEqual(("offset",), first),
            LessThan(("offset",), last),
            EqualTo(("topic",), "a"),
        ],
        topicPattern=".",
    )
    assert (found, rest) == (rows[1000:1010], [])
    if server.config.dialect == "lwp":
        assert fetches.bytes == last - first
    else:
        # A range has to start with a record, so that all of the topic is read; but
        # nothing of the others. Marks are two ends, of each topic when it is planned
        # and of the one that is read before and after. The second of the two fetches
        # of that one begins with what the first one ended with.
        again = 2 * 5 * MARK_BYTES_MAX + OVERLAP_BYTES
        assert fetches.bytes - rows[-1]["next_offset"] == again


def test_filters_that_leave_nothing(server: EmbeddedBroker) -> None:
    fill(server, "a", make_records(10))
    nothing: list[list[Filter]] = [
        [GreaterThan(("offset",), 10**12)],
        [LessThan(("offset",), -5)],
        [EqualTo(("topic",), "b")],
        [EqualTo(("type",), 1)],
    ]
    for filters in nothing:
        assert read_filtered(server, filters, topic="a") == ([], [])


def test_the_plan_says_what_was_pushed(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    rows = fill(broker, "a", make_records(10))
    reader = make_reader(broker, topic="a", pushFilters="true")
    reader.pushFilters([GreaterThan(("offset",), rows[5]["offset"] - 1)])
    with caplog.at_level(logging.INFO, "lance_spark.spark.reader"):
        reader.partitions()
    size = rows[-1]["next_offset"] - rows[5]["offset"]
    assert f"1 partitions of {size} bytes planned" in caplog.text
    assert "pushed filters: (GreaterThan(attribute=('offset',)" in caplog.text


def test_filters_that_are_pushed_are_warned_of(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    reader = make_reader(broker, topic="a", pushFilters="true")
    reader.pushFilters([EqualTo(("other", "field"), 1)])
    assert caplog.text == ""
    reader.pushFilters([GreaterThan(("offset",), 5)])
    assert "1 filters were pushed into the read." in caplog.text
    assert "call load() for each query" in caplog.text


def test_no_filter_is_taken_unless_the_user_asks(server: EmbeddedBroker) -> None:
    rows = fill(server, "a", make_records(10))
    filters: list[Filter] = [
        GreaterThan(("offset",), rows[5]["offset"]),
        EqualTo(("topic",), "b"),
        EqualTo(("key",), b"nothing"),
        IsNotNull(("timestamp",)),
    ]
    for given in ({}, {"pushFilters": "false"}):
        reader = make_reader(server, EVERY_COLUMN, topic="a", **given)
        assert list(reader.pushFilters(filters)) == filters
        assert read_planned(reader, reader.partitions(), EVERY_COLUMN) == rows


def test_a_session_that_pushes_nothing_is_told_of_once(
    server: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    rows = fill(server, "a", make_records(10))
    reader = make_reader(server, EVERY_COLUMN, topic="a", pushFilters="true")
    assert read_planned(reader, reader.partitions(), EVERY_COLUMN) == rows
    [told] = [each.message for each in caplog.records if "pushFilters" in each.message]
    assert "set spark.sql.python.filterPushdown.enabled to true" in told
    caplog.clear()
    reader = make_reader(server, EVERY_COLUMN, topic="a", pushFilters="true")
    reader.pushFilters([EqualTo(("other", "field"), 1)])
    reader.partitions()
    assert caplog.text == ""


LOG = LogRef(Partition("a"), 1)
WHOLE = Range(LOG, 100, 200, ends_log=True)
PROBED = Range(LOG, 100, 200, "probed", ends_log=True, mark=RangeMark(1, 2, 200))


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], (100, 200, True)),
        ([GreaterThan(("offset",), 50)], (100, 200, True)),
        ([GreaterThan(("offset",), 150)], (151, 200, True)),
        ([LessThan(("offset",), 150)], (100, 150, False)),
        ([LessThan(("offset",), 200)], (100, 200, True)),
        ([LessThan(("offset",), 300)], (100, 200, True)),
        ([EqualTo(("offset",), 120)], (120, 121, False)),
        ([EqualTo(("topic",), "a")], (100, 200, True)),
    ],
)
def test_what_is_left_of_a_range(
    filters: list[Filter], expected: tuple[int, int, bool]
) -> None:
    left = narrow_range(WHOLE, filters)
    assert (left.start, left.end, left.ends_log) == expected
    # A range that is probed has to start with a record, and no filter is one.
    assert narrow_range(PROBED, filters) == PROBED


@pytest.mark.parametrize(
    "filters",
    [
        [GreaterThan(("offset",), 199)],
        [GreaterThan(("offset",), 500)],
        [LessThan(("offset",), 100)],
        [LessThan(("offset",), -1)],
        [GreaterThan(("offset",), 150), LessThan(("offset",), 120)],
        [EqualTo(("topic",), "b")],
        [StringStartsWith(("topic",), "b")],
    ],
)
def test_nothing_is_left_of_a_range(filters: list[Filter]) -> None:
    assert narrow_range(WHOLE, filters).size == 0
    if filters[0].attribute == ("topic",):  # type: ignore[attr-defined]
        assert narrow_range(PROBED, filters).size == 0


# What a task needs is in what travels to it.


def test_a_task_needs_the_server_and_nothing_else(server: EmbeddedBroker) -> None:
    rows = fill(server, "a", make_records(10))
    reader = make_reader(server, make_schema("value binary, offset long"), topic="a")
    [partition] = reader.partitions()
    pickled = pickle.dumps((reader, partition))
    clear_pool()
    task, part = pickle.loads(pickled)
    found = [row for batch in task.read(part) for row in batch.to_pylist()]
    assert found == pick(rows, "value", "offset")


def test_a_client_is_shared_by_what_runs_after_each_other(
    server: EmbeddedBroker,
) -> None:
    fill(server, "a", make_records(10))
    with connect(server) as client:
        client.topics()
        opened = server.metrics.snapshot().connections_opened
        for _ in range(3):
            assert len(read(server, topic="a", minPartitions=4)) == 10
        assert server.metrics.snapshot().connections_opened == opened + 1


# A broker that is away.


def test_a_broker_that_stays_away(server: EmbeddedBroker) -> None:
    """Nobody waits for longer than the options say: who plans, and who reads."""
    fill(server, "a", make_records(3))
    given = {"topic": "a", "retryTimeout": "50ms"}
    reader = make_reader(server, ROW_SCHEMA, **given)
    partitions = reader.partitions()
    clear_pool()
    server.stop()
    with pytest.raises(ConnectionLost, match=f"could not connect to {server.address}"):
        make_reader(server, ROW_SCHEMA, **given).partitions()
    with pytest.raises(ConnectionLost, match=f"could not connect to {server.address}"):
        read_planned(reader, partitions)
