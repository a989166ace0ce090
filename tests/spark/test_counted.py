"""A second format: record numbers as positions, several partitions, another driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from lance_spark.client import driver as drivers
from lance_spark.errors import CheckpointError, DataLoss, OptionError, RowError
from lance_spark.model import Partition
from lance_spark.spark import options
from lance_spark.spark.pool import clear_pool
from lance_spark.spark.source import LanceDataSource, LogDataSource
from tests.spark import counted
from tests.spark.counted import Log
from tests.spark.reading import make_schema

Logs = dict[Partition, Log]


class CountedDataSource(LogDataSource):
    """All that a further format needs here."""

    protocol = "counted"


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Logs]:
    """A server with topic `a` of three partitions, one of them empty, and `b`."""
    modules = ("tests.spark.counted", "tests.spark.counted")
    monkeypatch.setitem(drivers._PROTOCOLS, "counted", modules)
    # Its servers list their topics.
    pattern = replace(options._BY_KEY["topicpattern"], formats=None)
    monkeypatch.setitem(options._BY_KEY, "topicpattern", pattern)
    found = {
        Partition("a", 0): Log([b"a0-%d" % n for n in range(1, 11)]),
        Partition("a", 1): Log(),
        Partition("a", 2): Log([b"a2-%d" % n for n in range(1, 6)]),
        Partition("b", 0): Log([b"b0-1"]),
    }
    monkeypatch.setitem(counted.SERVERS, "here:1", found)
    yield found
    clear_pool()


def make_source(**given: str) -> CountedDataSource:
    return CountedDataSource({"servers": "here:1", **given})


def gather(batches: Iterator[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def read(schema: StructType | None = None, **given: str) -> list[tuple[Any, ...]]:
    source = make_source(**given)
    reader = source.reader(source.schema() if schema is None else schema)
    return [row for split in reader.partitions() for row in gather(reader.read(split))]


def expect(logs: Logs, number: int, start: int = 1, end: int = 99) -> list[Any]:
    log = logs[Partition("a", number)]
    numbered = enumerate(log.values, log.start)
    return [("a", number, at, value) for at, value in numbered if start <= at < end]


# Options and columns.


def test_the_columns_are_those_of_the_traits(logs: Logs) -> None:
    source = make_source(topic="a")
    assert source.name() == "counted"
    assert source.schema().simpleString() == (
        "struct<topic:string,partition:int,offset:bigint,value:binary>"
    )
    for name in ("key", "timestamp_ns", "next_offset"):
        with pytest.raises(OptionError, match=f"no column {name}.*partition int"):
            source.reader(make_schema(f"{name} binary"))


@pytest.mark.parametrize("name", ["splitting", "maxPartitionBytes", "checksum"])
def test_an_option_of_another_format(logs: Logs, name: str) -> None:
    with pytest.raises(OptionError) as told:
        make_source(topic="a", **{name: "1"})
    assert str(told.value) == (
        f"option {name} is for format lance, not for counted: leave it out"
    )
    with pytest.raises(OptionError) as told:
        make_source(topic="a", whatever="1")
    assert name not in str(told.value) and "fetchBytes" in str(told.value)


# Batches.


def test_all_partitions_are_read(logs: Logs) -> None:
    assert read(topic="a") == [*expect(logs, 0), *expect(logs, 2)]
    assert read(topicPattern="a|b")[-1] == ("b", 0, 1, b"b0-1")
    only = make_schema("value string, partition integer")
    assert read(only, topic="a")[-1] == ("a2-5", 2)


def test_splits_are_cut_by_numbers(logs: Logs) -> None:
    source = make_source(topic="a", minPartitions="6")
    reader = source.reader(source.schema())
    splits = reader.partitions()
    assert len(splits) >= 6
    rows = [row for split in splits for row in gather(reader.read(split))]
    assert rows == [*expect(logs, 0), *expect(logs, 2)]


def test_offsets_by_partition(logs: Logs) -> None:
    start = '{"a": {"0": 4, "1": -1, "2": -2}}'
    end = '{"a": {"0": 8, "1": -1, "2": 3}}'
    found = read(topic="a", startingOffsets=start, endingOffsets=end)
    assert found == [*expect(logs, 0, 4, 8), *expect(logs, 2, 1, 3)]
    assert read(topic="b", startingOffsets='{"b": 1}') == [("b", 0, 1, b"b0-1")]


@pytest.mark.parametrize("given", ['{"a": 4}', '{"a": {"0": 1, "1": 1, "7": 1}}'])
def test_offsets_for_some_partitions(logs: Logs, given: str) -> None:
    with pytest.raises(OptionError, match=r"of topic 'a', which has \[0, 1, 2\]"):
        read(topic="a", startingOffsets=given)


def test_records_that_are_gone(logs: Logs) -> None:
    source = make_source(topic="a", failOnDataLoss="false")
    reader = source.reader(source.schema())
    [first, _] = reader.partitions()
    logs[Partition("a", 0)].drop(3)
    assert gather(reader.read(first)) == expect(logs, 0, 4)
    strict = make_source(topic="a", startingOffsets='{"a": {"0": 1, "1": 1, "2": 1}}')
    with pytest.raises(DataLoss, match="before the log start"):
        strict.reader(strict.schema()).partitions()


def test_a_task_without_all_of_its_rows_fails(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_source(topic="a")
    reader = source.reader(source.schema())
    [_, last] = reader.partitions()
    monkeypatch.setattr(counted.LogReader, "next_records", lambda reader: None)
    with pytest.raises(DataLoss, match=r"'a/2'.*the server gives no record there"):
        gather(reader.read(last))


def test_losses_are_reported_by_partition(
    logs: Logs, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(topic="a", failOnDataLoss="false", maxRecordsPerTrigger="2")
    query.run()
    for number in (0, 2):
        logs[Partition("a", number)].drop(4)
    query.run()
    for topic in ("a", "a/2"):
        assert f"topic {topic!r}: " in caplog.text


def test_topics_are_listed(logs: Logs) -> None:
    source = make_source(metadata="topics")
    rows = gather(source.reader(source.schema()).read(None))  # type: ignore[arg-type]
    assert [row[1:3] for row in rows] == [("a", 0), ("a", 1), ("a", 2), ("b", 0)]


# Streams.


class Query:
    """A stream, driven as Spark does it."""

    def __init__(self, **given: str) -> None:
        source = make_source(startingOffsets="earliest", **given)
        self.reader = source.streamReader(source.schema())
        self.offset = self.reader.initialOffset()

    def run(self) -> list[tuple[Any, ...]]:
        """Run one batch."""
        limit = self.reader.getDefaultReadLimit()
        end = self.reader.latestOffset(self.offset, limit)
        splits = self.reader.partitions(self.offset, end)
        self.offset = end
        return [row for split in splits for row in gather(self.reader.read(split))]


def test_a_stream_of_all_partitions(logs: Logs) -> None:
    query = Query(topic="a")
    assert isinstance(query.reader.getDefaultReadLimit(), ReadAllAvailable)
    assert query.run() == [*expect(logs, 0), *expect(logs, 2)]
    positions = {"0": 11, "1": 1, "2": 6}
    assert query.offset["protocol"] == "counted"
    assert query.offset["topics"]["a"]["partitions"] == positions
    logs[Partition("a", 1)].values.append(b"late")
    assert query.run() == [("a", 1, 1, b"late")]
    # A partition that comes later is read from its beginning.
    logs[Partition("a", 3)] = Log([b"new"])
    assert query.run() == [("a", 3, 1, b"new")]
    lag = query.reader.reportLatestOffset()["topics"]["a"]
    assert (lag["recordsBehind"], lag["bytesBehind"], lag["bytesLost"]) == (
        0,
        None,
        None,
    )


def test_how_far_behind_it_is(logs: Logs) -> None:
    query = Query(topic="a", maxRecordsPerTrigger="6")
    query.run()
    lag = query.reader.reportLatestOffset()["topics"]["a"]
    assert (lag["recordsBehind"], lag["bytesBehind"]) == (9, None)


def test_the_limit_of_a_batch_is_shared(logs: Logs) -> None:
    query = Query(topic="a", maxRecordsPerTrigger="6")
    assert isinstance(query.reader.getDefaultReadLimit(), ReadMaxRows)
    batches = []
    while rows := query.run():
        assert len(rows) <= 6
        batches.append(rows)
    assert len(batches) == 3
    found = sorted(row for rows in batches for row in rows)
    assert found == [*expect(logs, 0), *expect(logs, 2)]


def test_an_empty_topic_is_no_news(logs: Logs) -> None:
    for partition in list(logs):
        logs[partition] = Log()
    query = Query(topic="a")
    before = query.offset
    assert query.run() == [] and query.offset == before


def test_the_checkpoint_of_another_format(logs: Logs) -> None:
    query = Query(topic="a")
    query.run()
    lance = LanceDataSource({"topic": "a"})
    reader = lance.streamReader(lance.schema())
    with pytest.raises(CheckpointError, match="of protocol 'counted', not of 'lance'"):
        reader.partitions(query.offset, query.offset)
    theirs = {key: value for key, value in query.offset.items() if key != "protocol"}
    with pytest.raises(CheckpointError, match="of protocol 'lance', not of 'counted'"):
        query.reader.partitions(theirs, theirs)
    with pytest.raises(OptionError, match="has offsets of format counted, which mean"):
        LanceDataSource(
            {"topic": "a", "startingOffsets": str(query.offset).replace("'", '"')}
        )


def test_a_server_that_has_forgotten_is_a_loss(logs: Logs) -> None:
    query = Query(topic="b")
    query.run()
    logs[Partition("b", 0)].values = [b"other", b"more"]
    with pytest.raises(DataLoss, match="another log has taken the place"):
        query.run()


# Writes.


def test_rows_are_written_at_least_once(
    logs: Logs, caplog: pytest.LogCaptureFixture
) -> None:
    schema = make_schema("topic string, value binary")
    writer = make_source().writer(schema, overwrite=False)
    assert "delivery is at-least-once" in caplog.text
    rows = pa.record_batch({"topic": ["c", "b", "c"], "value": [b"1", b"2", b"3"]})
    writer.commit([writer.write(iter([rows]))])
    assert logs[Partition("c", 0)].values == [b"1", b"3"]
    assert logs[Partition("b", 0)].values == [b"b0-1", b"2"]


def test_what_the_protocol_can_not_carry(logs: Logs) -> None:
    schema = make_schema("value binary, key binary, type integer")
    writer = make_source(topic="c").writer(schema, overwrite=False)
    none = pa.array([None, None], pa.binary())
    rows = {"value": [b"1", b"2"], "key": none, "type": [1, 2]}
    writer.write(iter([pa.record_batch(rows)]))
    assert logs[Partition("c", 0)].values == [b"1", b"2"]
    rows["key"] = pa.array([None, b"k"])
    with pytest.raises(
        RowError, match="its key is not null, and this format can't carry"
    ) as told:
        writer.write(iter([pa.record_batch(rows)]))
    assert told.value.row == 1
    rows = {"value": [b"1", None]}
    with pytest.raises(RowError, match="its value is null") as told:
        writer.write(iter([pa.record_batch(rows)]))
    assert told.value.row == 1


@pytest.mark.parametrize("topic", ["a", None])
def test_rows_go_to_their_partition(logs: Logs, topic: str | None) -> None:
    for at in list(logs):
        logs[at] = Log()
    schema = make_schema("topic string, Partition integer, value string")
    given = {} if topic is None else {"topic": topic}
    writer = make_source(**given).writer(schema, overwrite=False)
    columns = {
        "topic": ["a"] * 4,
        "Partition": pa.array([2, 0, None, 2], pa.int32()),
        "value": [b"1", b"2", b"3", b"4"],
    }
    writer.write(iter([pa.record_batch(columns)]))
    found = {at.number: log.values for at, log in logs.items() if at.topic == "a"}
    assert found == {0: [b"2", b"3"], 1: [], 2: [b"1", b"4"]}
    for wrong in (-1, 3):
        columns["Partition"] = pa.array([0, 1, wrong, 1])
        said = f"topic 'a' has no partition {wrong}, only 0 to 2"
        with pytest.raises(RowError, match=said) as told:
            writer.write(iter([pa.record_batch(columns)]))
        assert told.value.row == 2
