"""The formats besides `lance`, on a broker that speaks them; no JVM."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.log import LogClient, connect
from lance_spark.errors import (
    CheckpointError,
    DataLoss,
    OptionError,
    RecordError,
    RemoteProtocolError,
    RowError,
    StorageError,
    TopicNotFound,
)
from lance_spark.model import Bounds, Retention
from lance_spark.spark import stream
from lance_spark.spark.pool import clear_pool
from lance_spark.spark.source import (
    FluvioDataSource,
    KimberliteDataSource,
    LanceDataSource,
    LogDataSource,
    RustLogDataSource,
    TankDataSource,
)
from tests.client.rustlog import field as rustlog
from tests.client.tank import field as tank
from tests.spark.reading import make_schema

SOURCES = {
    "rustlog": RustLogDataSource,
    "fluvio": FluvioDataSource,
    "tank": TankDataSource,
}
ALL_SOURCES = {**SOURCES, "kimberlite": KimberliteDataSource}
# The position of the first record.
FIRST = {"rustlog": 0, "kimberlite": 0, "fluvio": 0, "tank": 1}


@dataclass
class Server:
    """A broker that speaks a format, and a client of the same."""

    broker: Any
    protocol: str
    client: LogClient
    address: str

    def source(self, **given: str) -> LogDataSource:
        return ALL_SOURCES[self.protocol]({"servers": self.address, **given})

    def lance(self, **given: str) -> LogDataSource:
        return LanceDataSource({"servers": self.broker.address, **given})

    def fill(self, topic: str, *counts: int, start: int = 0) -> None:
        """Give each partition so many records, which say where they are."""
        for number, count in enumerate(counts):
            values = [b"%d-%d" % (number, n) for n in range(start, start + count)]
            if values or not start:
                self.client.append(
                    topic, values, number, create=True, partitions=len(counts)
                )

    @property
    def first(self) -> int:
        return FIRST[self.protocol]


@contextmanager
def serve(protocol: str, **settings: Any) -> Iterator[Server]:
    with (
        EmbeddedBroker(fsync="none", **{protocol: "127.0.0.1:0"}, **settings) as broker,
        connect(f"{protocol}://{broker.address_of(protocol)}") as client,
    ):
        yield Server(broker, protocol, client, broker.address_of(protocol))
    clear_pool()


@pytest.fixture(params=sorted(SOURCES))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with topic `a` of three partitions, one of them empty, and `b`."""
    with serve(request.param) as made:
        made.fill("a", 10, 0, 5)
        made.fill("b", 1)
        yield made


def gather(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def read(source: LogDataSource, schema: StructType | None = None) -> list[Any]:
    """Read as Spark does."""
    reader = source.reader(source.schema() if schema is None else schema)
    return [row for split in reader.partitions() for row in gather(reader.read(split))]


def places(rows: list[Any]) -> list[tuple[int, int, bytes]]:
    return [(row["partition"], row["offset"], row["value"]) for row in rows]


def expect(number: int, start: int, end: int, *, first: int) -> list[Any]:
    """Give what `fill` has put into [start, end) of a partition, counted from 0."""
    return [(number, first + n, b"%d-%d" % (number, n)) for n in range(start, end)]


def write(source: LogDataSource, schema: str, *tables: dict[str, Any]) -> None:
    """Write as Spark does, in one task."""
    writer = source.writer(make_schema(schema), overwrite=False)
    writer.commit([writer.write(iter([pa.record_batch(table) for table in tables]))])


# Batches.


def test_all_partitions_are_read(server: Server) -> None:
    first = server.first
    found = read(server.source(topic="a"))
    assert places(found) == [
        *expect(0, 0, 10, first=first),
        *expect(2, 0, 5, first=first),
    ]
    assert {row["topic"] for row in found} == {"a"}
    both = read(server.source(topicPattern="a|b"))
    assert (len(both), both[-1]["topic"]) == (16, "b")


def test_splits(server: Server) -> None:
    source = server.source(topic="a", maxPartitionRecords="4")
    reader = source.reader(source.schema())
    splits = [places(gather(reader.read(split))) for split in reader.partitions()]
    assert [len(rows) for rows in splits] == [3, 3, 4, 2, 3]
    assert [*chain(*splits)] == places(read(server.source(topic="a")))
    wide = server.source(topic="a", minPartitions="12")
    assert len(wide.reader(wide.schema()).partitions()) >= 12
    assert places(read(wide)) == [*chain(*splits)]


def test_offsets_by_partition(server: Server) -> None:
    first = server.first
    start = json.dumps({"a": {"0": first + 3, "1": -1, "2": -2}})
    end = json.dumps({"a": {"0": first + 7, "1": -1, "2": first + 2}})
    found = read(server.source(topic="a", startingOffsets=start, endingOffsets=end))
    expected = [*expect(0, 3, 7, first=first), *expect(2, 0, 2, first=first)]
    assert places(found) == expected
    bare = server.source(topic="b", startingOffsets=json.dumps({"b": first}))
    assert len(read(bare)) == 1
    some = json.dumps({"a": {"0": first}})
    with pytest.raises(OptionError, match=r"for the partitions \[0\] of topic 'a', wh"):
        read(server.source(topic="a", startingOffsets=some))


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_positions_that_a_format_has_not(server: Server, option: str) -> None:
    """It is known when the DataFrame is made, and no data is lost."""
    for offset in (-3, *range(server.first)):
        for given in ({"b": offset}, {"b": {"0": offset}}):
            text = "is not an offset for" if offset < 0 else "positions of tank begin"
            with pytest.raises(OptionError, match=f"option {option}: .*{text}"):
                server.source(topic="b", **{option: json.dumps(given)})
    lowest = server.source(topic="b", **{option: json.dumps({"b": server.first})})
    assert len(read(lowest)) == (option == "startingOffsets")


def test_positions_that_are_not_there(server: Server) -> None:
    end = json.dumps({"b": server.first + 7})
    with pytest.raises(DataLoss, match="the log ends before it"):
        read(server.source(topic="b", endingOffsets=end))
    with pytest.raises(TopicNotFound, match="'gone'"):
        read(server.source(topic="gone"))


def test_a_task_that_gets_fewer_rows(server: Server) -> None:
    source = server.source(topic="b")
    reader = source.reader(source.schema())
    [split] = reader.partitions()
    forget(server, "b")
    with pytest.raises(DataLoss, match="is gone"):
        gather(reader.read(split))
    server.fill("b", 0)
    with pytest.raises(DataLoss):
        gather(reader.read(split))


def test_topics_are_listed(server: Server) -> None:
    found = read(
        server.source(metadata="topics"), server.source(metadata="topics").schema()
    )
    names = ("name", "partition", "log_start", "log_end", "records")
    first = server.first
    assert [tuple(row[name] for name in names) for row in found] == [
        ("a", 0, first, first + 10, 10),
        ("a", 1, first, first, 0),
        ("a", 2, first, first + 5, 5),
        ("b", 0, first, first + 1, 1),
    ]
    assert {row["id"] for row in found} == {row["created"] for row in found} == {None}
    some = server.source(metadata="topics", topic="a")
    assert read(some, make_schema("PARTITION integer"))[-1] == {"PARTITION": 2}


@pytest.mark.timeout(60)
def test_servers_of_another_protocol(server: Server) -> None:
    """Reads, streams and writes end at once, and not after `retryTimeout`."""
    # One whose server answers what it does not understand.
    other = "rustlog" if server.protocol == "tank" else "tank"
    with EmbeddedBroker(fsync="none", **{other: "127.0.0.1:0"}) as broker:
        servers = broker.address_of(other)
        source = server.source(servers=servers, topic="a")
        reader = source.streamReader(source.schema())
        text = f"{servers}: the answer is not {server.protocol} .*another protocol may"
        for call in (
            lambda: read(source),
            reader.initialOffset,
            lambda: write(source, "value binary", {"value": [b"x"]}),
        ):
            with pytest.raises(RemoteProtocolError, match=text):
                call()


def test_lance_names_the_partitions(server: Server) -> None:
    with pytest.raises(TopicNotFound, match="'a/0' to 'a/2', or read it with a format"):
        read(server.lance(topic="a"))
    assert len(read(server.lance(topic="a/0"))) == 10
    assert len(read(server.lance(topicPattern="a/.*"))) == 15
    with pytest.raises(TopicNotFound, match="'a/0' to 'a/2'"):
        write(server.lance(topic="a"), "value binary", {"value": [b"1"]})


def test_times_of_tank() -> None:
    with serve("tank") as server:
        stamp = pa.array([1_700_000_000_123_000], pa.timestamp("us", "UTC"))
        write(
            server.source(topic="t"),
            "value binary, timestamp timestamp, key string",
            {"value": [b"1"], "timestamp": stamp, "key": ["k"]},
        )
        schema = make_schema("timestamp_ns long, key string, offset long")
        found = read(server.source(topic="t"), schema)
        assert found == [
            {"timestamp_ns": 1_700_000_000_123_000_000, "key": "k", "offset": 1}
        ]


def test_a_value_that_is_no_text(server: Server) -> None:
    """The error counts as the format does, and names no option that it has not."""
    server.client.append("b", [b"\xff"])
    with pytest.raises(RecordError) as told:
        read(server.source(topic="b"), make_schema("value string"))
    text = str(told.value)
    assert text.startswith(f"malformed record at offset {server.first + 1}: topic 'b'")
    assert "give later startingOffsets" in text and "onBadRecord" not in text


def test_a_key_that_tank_can_not_carry() -> None:
    with serve("tank") as server:
        rows = {"value": ["1", "2"], "key": ["k", "k" * 256]}
        write(server.lance(topic="t"), "value string, key string", rows)
        with pytest.raises(
            StorageError, match="t/0 at 2: the broker can't send this r"
        ):
            read(server.source(topic="t"))
        with pytest.raises(
            RowError, match="its key has 256 bytes, and tank carries 255"
        ):
            write(server.source(topic="u"), "value string, key string", rows)


# Streams.


class Query:
    """A stream, driven as Spark does it."""

    def __init__(
        self, server: Server, offset: dict[str, Any] | None = None, **given: str
    ) -> None:
        given = {"startingOffsets": "earliest", **given}
        source = server.source(**given)
        self.reader = source.streamReader(source.schema())
        self.offset = self.reader.initialOffset() if offset is None else offset

    def run(self, limit: Any = None) -> list[tuple[int, int, bytes]]:
        """Run one batch; its end goes through JSON, as that of a checkpoint does."""
        limit = limit or self.reader.getDefaultReadLimit()
        end = json.loads(json.dumps(self.reader.latestOffset(self.offset, limit)))
        splits = self.reader.partitions(self.offset, end)
        self.offset = end
        rows = [row for split in splits for row in gather(self.reader.read(split))]
        return places(rows)


def test_a_stream_reads_what_comes(server: Server) -> None:
    query = Query(server, topicPattern="a|c")
    assert isinstance(query.reader.getDefaultReadLimit(), ReadAllAvailable)
    assert len(query.run()) == 15
    assert query.offset["protocol"] == server.protocol
    assert query.run() == []
    first = server.first
    server.client.append("a", [b"late"], 1)
    assert query.run() == [(1, first, b"late")]
    # A topic that comes later is read from its beginning, in all its partitions.
    server.fill("c", 2, 1)
    found = query.run()
    assert found == [*expect(0, 0, 2, first=first), *expect(1, 0, 1, first=first)]
    lag = query.reader.reportLatestOffset()
    assert lag is not None and lag["topics"]["a"]["recordsBehind"] == 0


def test_a_stream_starts_at_the_end(server: Server) -> None:
    query = Query(server, topic="a", startingOffsets="latest")
    assert query.run() == []
    server.fill("a", 1, 1, 0, start=10)
    first = server.first
    assert query.run() == [(0, first + 10, b"0-10"), (1, first, b"1-10")]


def test_the_limit_of_records_is_exact(server: Server) -> None:
    query = Query(server, topic="a", maxRecordsPerTrigger="4")
    assert isinstance(query.reader.getDefaultReadLimit(), ReadMaxRows)
    batches = [query.run() for _ in range(5)]
    assert [len(rows) for rows in batches] == [4, 4, 4, 3, 0]
    first = server.first
    assert sorted(chain(*batches)) == [
        *expect(0, 0, 10, first=first),
        *expect(2, 0, 5, first=first),
    ]


def test_available_now(server: Server) -> None:
    query = Query(server, topic="a", maxRecordsPerTrigger="10")
    query.reader.prepareForTriggerAvailableNow()  # type: ignore[attr-defined]
    server.fill("a", 1, 1, 1, start=10)
    assert [len(query.run()) for _ in range(3)] == [10, 5, 0]


def test_a_restart_goes_on_at_the_checkpoint(server: Server) -> None:
    query = Query(server, topic="a", maxRecordsPerTrigger="6")
    seen = query.run()
    server.client.append("a", [b"new"], 1)
    again = Query(server, query.offset, topic="a")
    rest = again.run()
    assert len(seen) == 6 and len({*seen, *rest}) == 16 == len(seen) + len(rest)
    # A batch that was planned and not run is the same.
    replay = Query(server, query.offset, topic="a")
    splits = replay.reader.partitions(query.offset, again.offset)
    rows = [row for split in splits for row in gather(replay.reader.read(split))]
    assert places(rows) == rest


def test_the_checkpoint_of_another_format(server: Server) -> None:
    query = Query(server, topic="b")
    query.run()
    lance = server.lance(topic="b")
    reader = lance.streamReader(lance.schema())
    with pytest.raises(CheckpointError, match=f"of protocol '{server.protocol}', not"):
        reader.partitions(query.offset, query.offset)


@pytest.mark.parametrize("protocol", sorted(SOURCES))
def test_what_retention_has_removed_is_a_loss(protocol: str) -> None:
    with serve(protocol, segment_bytes=500) as server:
        value = bytes(200)
        for _ in range(8):
            server.client.append("a", [value], 0, create=True, partitions=2)
        query = Query(server, topic="a", maxRecordsPerTrigger="2")
        assert len(query.run()) == 2
        lax = Query(server, query.offset, topic="a", failOnDataLoss="false")
        begin = json.dumps({"a": {"0": server.first, "1": server.first}})
        store = server.broker.service.store
        log = store.find_topic("a/0")
        assert log is not None
        store.set_retention(log.metadata.id, Retention(max_bytes=600))
        server.broker.service.maintain()
        start = server.client.bounds("a")[0].start
        assert server.first + 2 < start < server.first + 8
        with pytest.raises(DataLoss, match="before the log start"):
            read(server.source(topic="a", startingOffsets=begin))
        gone = start - server.first - 2
        with pytest.raises(DataLoss, match=f"{gone} records gone: .*before the log st"):
            query.run()
        assert lax.run() == [(0, at, value) for at in range(start, server.first + 8)]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("protocol", sorted(ALL_SOURCES))
def test_a_log_that_retention_has_emptied(protocol: str) -> None:
    """Not one record is left that could be marked."""
    with serve(protocol, segment_bytes=500) as server:
        server.client.append("a", [bytes(200)] * 8, create=True)
        source = server.source(
            topic="a", startingOffsets="earliest", maxRecordsPerTrigger="2"
        )
        reader = source.streamReader(source.schema())
        start = reader.latestOffset(
            reader.initialOffset(), reader.getDefaultReadLimit()
        )
        store = server.broker.service.store
        log = store.find_topic("a")
        assert log is not None
        store.set_retention(log.metadata.id, Retention(max_bytes=600))
        server.broker.service.maintain()
        end = server.first + 8
        assert server.client.bounds("a")[0] == Bounds(end, end)
        with pytest.raises(DataLoss, match=r"6 records gone: .*before the log start"):
            reader.latestOffset(start, reader.getDefaultReadLimit())
        lax = server.source(topic="a", failOnDataLoss="false")
        other = lax.streamReader(lax.schema())
        after = other.latestOffset(start, other.getDefaultReadLimit())
        assert after["topics"]["a"]["partitions"] == {"0": end}
        assert other.partitions(start, after) == []
        server.client.append("a", [b"new"])
        last = other.latestOffset(after, other.getDefaultReadLimit())
        splits = other.partitions(after, last)
        rows = [row for split in splits for row in gather(other.read(split))]
        assert [(row["offset"], row["value"]) for row in rows] == [(end, b"new")]


@pytest.mark.parametrize("protocol", sorted(SOURCES))
def test_lost_records_of_all_partitions_are_counted(protocol: str) -> None:
    with serve(protocol, segment_bytes=500) as server:
        for number in (0, 1):
            for _ in range(8):
                server.client.append(
                    "a", [bytes(200)], number, create=True, partitions=2
                )
        query = Query(server, topic="a", failOnDataLoss="false")
        store = server.broker.service.store
        for name in ("a/0", "a/1"):
            log = store.find_topic(name)
            assert log is not None
            store.set_retention(log.metadata.id, Retention(max_bytes=600))
        server.broker.service.maintain()
        bounds = server.client.bounds("a")
        gone = sum(bounds[number].start - server.first for number in (0, 1))
        assert gone > 0 and len(query.run()) == 16 - gone
        told = query.reader.reportLatestOffset()
        assert told is not None
        assert told["topics"]["a"]["recordsLost"] == gone
        assert told["topics"]["a"]["bytesLost"] is None


@pytest.mark.parametrize("protocol", sorted(SOURCES))
def test_a_server_that_has_forgotten_all(protocol: str) -> None:
    """RustLog's broker loses everything at a restart: the marks tell."""
    with serve(protocol) as server:
        server.fill("a", 4, 2)
        query = Query(server, topic="a")
        assert len(query.run()) == 6
        forget(server, "a/0", "a/1")
        server.client.append("a", [b"x"] * 9, 0, create=True, partitions=2)
        server.client.append("a", [b"y"] * 9, 1)
        with pytest.raises(DataLoss, match="records before the offset are not those"):
            query.run()
        lax = Query(server, query.offset, topic="a", failOnDataLoss="false")
        assert lax.run() == []
        server.client.append("a", [b"z"], 1)
        assert [value for _, _, value in lax.run()] == [b"z"]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for a log that is shorter to come back."""
    monkeypatch.setattr(stream, "_GRACE_S", 0.0)


def values_of(rows: list[tuple[int, int, bytes]]) -> list[bytes]:
    return [value for _, _, value in rows]


def numbered(start: int, end: int, name: bytes = b"old") -> list[bytes]:
    return [b"%s %d" % (name, n) for n in range(start, end)]


@contextmanager
def half_read(protocol: str, **given: str) -> Iterator[tuple[Server, Query]]:
    """Serve a log of 100 records, and a query that has read 50 of them."""
    with serve(protocol) as server:
        server.client.append("a", numbered(0, 100), create=True)
        query = Query(server, topic="a", maxRecordsPerTrigger="50", **given)
        assert values_of(query.run()) == numbered(0, 50)
        yield server, query


def refill(server: Server, values: list[bytes]) -> None:
    """Let the log hold other records: there are no ids that would tell."""
    forget(server, "a")
    server.client.append("a", values, create=True)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("protocol", sorted(SOURCES))
@pytest.mark.parametrize("left", [50, 51, 60, 99])
def test_a_log_that_has_lost_its_tail(protocol: str, left: int) -> None:
    """It reaches the position: all that is there is read, and what comes."""
    with half_read(protocol) as (server, query):
        refill(server, numbered(0, left))
        text = f"the log was {100 - left} records longer when .*failOnDataLoss=false"
        with pytest.raises(DataLoss, match=text):
            query.run()
        lax = Query(server, query.offset, topic="a", failOnDataLoss="false")
        assert values_of(lax.run()) == numbered(50, left)
        server.client.append("a", [b"new"])
        assert lax.run() == [(0, server.first + left, b"new")]
        # What was reported once is settled.
        strict = Query(server, lax.offset, topic="a")
        assert strict.run() == []


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("protocol", sorted(SOURCES))
def test_a_log_that_has_lost_its_tail_and_grows_again(protocol: str) -> None:
    """Before the next look: what is written anew is read as well."""
    with half_read(protocol, failOnDataLoss="false") as (server, query):
        refill(server, numbered(0, 60) + numbered(60, 80, b"new"))
        assert values_of(query.run()) == numbered(50, 60) + numbered(60, 80, b"new")
    with half_read(protocol) as (server, query):
        # Past the end that was known, nothing tells; but nothing is passed over.
        expected = numbered(50, 60) + numbered(60, 120, b"new")
        refill(server, numbered(0, 60) + numbered(60, 120, b"new"))
        assert values_of(query.run() + query.run()) == expected


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("protocol", sorted(SOURCES))
@pytest.mark.parametrize(
    "found",
    [
        numbered(0, 100, b"other"),
        numbered(0, 130, b"other"),
        numbered(0, 45) + numbered(45, 100, b"other"),
        [b"other", *numbered(1, 100)],
        numbered(1, 101),
    ],
    ids=["same length", "longer", "before the position", "head", "one before"],
)
def test_another_log_in_its_place(protocol: str, found: list[bytes]) -> None:
    with half_read(protocol) as (server, query):
        refill(server, found)
        with pytest.raises(DataLoss, match="another log has taken the place"):
            query.run()
        lax = Query(server, query.offset, topic="a", failOnDataLoss="false")
        assert lax.run() == []
        server.client.append("a", [b"new"])
        assert lax.run() == [(0, server.first + len(found), b"new")]


def test_a_query_goes_on_behind_a_record_that_can_not_be_sent() -> None:
    with serve("tank") as server:
        rows = {"value": ["1", "2", "3"], "key": ["k", "k" * 256, None]}
        write(server.lance(topic="t"), "value string, key string", rows)
        query = Query(server, topic="t", startingOffsets='{"t": {"0": 3}}')
        assert query.run() == [(0, 3, b"3")]
        server.client.append("t", [b"4"])
        assert Query(server, query.offset, topic="t").run() == [(0, 4, b"4")]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("protocol", sorted(SOURCES))
def test_a_log_that_is_empty_now(protocol: str) -> None:
    with half_read(protocol) as (server, query):
        refill(server, [])
        with pytest.raises(DataLoss, match="the log ends 50 records before it"):
            query.run()
        lax = Query(server, query.offset, topic="a", failOnDataLoss="false")
        assert lax.run() == []
        server.client.append("a", numbered(0, 3, b"new"))
        assert values_of(lax.run()) == numbered(0, 3, b"new")


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("protocol", sorted(SOURCES))
def test_the_tail_goes_while_a_batch_is_planned(protocol: str) -> None:
    """The end of the batch is gone; what is there before it is read."""
    with half_read(protocol) as (server, query):
        reader, limit = query.reader, query.reader.getDefaultReadLimit()
        end = reader.latestOffset(query.offset, limit)
        refill(server, numbered(0, 60))
        with pytest.raises(DataLoss, match="the log ends before it") as told:
            reader.partitions(query.offset, end)
        first = server.first
        assert (told.value.asked, told.value.log_end) == (first + 100, first + 60)
        lax = Query(server, query.offset, topic="a", failOnDataLoss="false").reader
        rows = [gather(lax.read(split)) for split in lax.partitions(query.offset, end)]
        assert values_of(places([*chain(*rows)])) == numbered(50, 60)


def test_a_topic_that_gains_a_partition() -> None:
    """Servers in the field may add some; a query reads them from their beginning."""
    with rustlog.FieldServer() as plain, tank.FieldServer() as other:
        plain.fill("a", [b"1", b"2"])
        other.fill("a", [b"1", b"2"])
        # By the format: where it is, and what adds a partition with one record.
        for protocol, address, gain in (
            ("rustlog", plain.address, lambda: plain.topics["a"].append([b"3"])),
            ("tank", other.address, lambda: other.gain("a", [b"3"])),
        ):
            with connect(f"{protocol}://{address}") as client:
                server = Server(None, protocol, client, address)
                query = Query(server, topic="a")
                first = server.first
                assert query.run() == [(0, first, b"1"), (0, first + 1, b"2")]
                gain()
                again = Query(server, query.offset, topic="a")
                for each in (query, again):
                    assert each.run() == [(1, first, b"3")]
        clear_pool()


def forget(server: Server, *logs: str) -> None:
    """Lose logs, as a restart of RustLog's broker does."""
    store = server.broker.service.store
    found = [log for log in store.topics() if log.metadata.name in logs]
    store.delete_topics([log.metadata.id for log in found])


# Writes.


def test_rows_go_by_key_column_and_option() -> None:
    with serve("tank") as server:
        keys = [f"k{n}" for n in range(50)]
        write(
            server.source(topic="a", partitions="3"),
            "value string, key string",
            {"value": keys, "key": keys},
        )
        found = read(server.source(topic="a"))
        assert len(found) == 50
        assert all(row["partition"] == crc32c(row["key"]) % 3 for row in found)
        table = {"value": ["x", "y"], "partition": pa.array([2, None], pa.int32())}
        write(
            server.source(topic="b", partitions="3"),
            "value string, partition integer",
            table,
        )
        found = read(server.source(topic="b"))
        assert places(found) == [(0, 1, b"y"), (2, 1, b"x")]
        write(
            server.source(topic="b", partition="1"),
            "value string, partition integer",
            table,
        )
        assert [row["partition"] for row in read(server.source(topic="b"))] == [
            0,
            1,
            1,
            2,
        ]


@pytest.mark.parametrize("protocol", sorted(ALL_SOURCES))
def test_tasks_that_begin_together(protocol: str) -> None:
    """Each finds no topic and creates it; without a fault, each row is there once."""
    tasks, rows = 4, 50
    with serve(protocol) as server, ThreadPoolExecutor(tasks) as pool:
        for attempt in range(15):
            topic = f"new-{attempt}"
            given = {} if protocol == "kimberlite" else {"partitions": "2"}
            source = server.source(topic=topic, batchBytes="400", **given)
            start = Barrier(tasks)

            def run(task: int, source: LogDataSource, start: Barrier) -> None:
                values = [f"{task} {n}" for n in range(rows)]
                start.wait(30)
                write(source, "value string", {"value": values})

            jobs = [pool.submit(run, task, source, start) for task in range(tasks)]
            for job in jobs:
                job.result(60)
            found = [row["value"].decode() for row in read(server.source(topic=topic))]
            assert len(found) == len({*found}) == tasks * rows


def test_at_least_once_is_said(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        write(server.source(topic="b"), "value string", {"value": ["1"]})
    assert caplog.text.count("delivery is at-least-once") == 1


@pytest.mark.parametrize("protocol", sorted(ALL_SOURCES))
def test_a_task_that_runs_twice(protocol: str) -> None:
    """A second attempt appends its rows, too: only `lance` has stages."""
    with serve(protocol) as server:
        for source, copies in (
            (server.source(topic="twice"), 2),
            (server.lance(topic="once"), 1),
        ):
            writer = source.writer(make_schema("value string"), overwrite=False)
            rows = [pa.record_batch({"value": ["x", "y"]})]
            first, second = (writer.write(iter(rows)) for _ in range(2))
            assert first is not None
            # Spark commits the one attempt that came first.
            writer.commit([second])
            assert [row["value"] for row in read(source)] == [b"x", b"y"] * copies


def test_a_copy_from_format_to_format_is_one_line(server: Server) -> None:
    """All columns of a read can be written, whatever the other format has."""
    rows = {
        "value": [b"1", b"2"],
        "topic": ["x", "y"],
        "partition": pa.array([0, 0], pa.int32()),
    }
    write(server.source(), "value binary, topic string, partition integer", rows)
    source = server.source(topicPattern="x|y")
    reader = source.reader(source.schema())
    batches = [batch for split in reader.partitions() for batch in reader.read(split)]
    target = server.lance(topic="copy")
    writer = target.writer(source.schema(), overwrite=False)
    writer.commit([writer.write(iter(batches))])
    copied = read(server.lance(topic="copy"))
    assert [row["value"] for row in copied] == [b"1", b"2"]
    # Back again: LWP's columns, of which key and timestamp are null.
    schema = server.lance(topic="copy").schema()
    table = pa.Table.from_pylist(copied).to_pydict()
    names = {"key": pa.binary(), "timestamp": pa.timestamp("us", "UTC")}
    columns = {k: pa.array(v, names.get(k)) for k, v in table.items()}
    if server.protocol == "rustlog":
        columns["timestamp"] = pa.nulls(2, names["timestamp"])
    writer = server.source(topic="back").writer(schema, overwrite=False)
    writer.commit([writer.write(iter([pa.record_batch(columns)]))])
    assert [row["value"] for row in read(server.source(topic="back"))] == [b"1", b"2"]


def test_what_a_record_can_not_hold() -> None:
    with serve("rustlog") as server:
        for column in ("key", "timestamp_ns"):
            kind = {"key": "binary", "timestamp_ns": "long"}[column]
            given = {"key": b"k", "timestamp_ns": 7}[column]
            rows = {"value": [b"1", b"2"], column: [None, given]}
            with pytest.raises(RowError, match=f"its {column} is not null") as told:
                write(server.source(topic="r"), f"value binary, {column} {kind}", rows)
            assert told.value.row == 1
        with pytest.raises(RowError, match="its value is null"):
            write(server.source(topic="r"), "value binary", {"value": [b"1", None]})


def test_a_topic_that_may_not_be_created(server: Server) -> None:
    with pytest.raises(TopicNotFound, match="createTopic=false"):
        write(
            server.source(topic="new", createTopic="false"),
            "value string",
            {"value": ["1"]},
        )
    write(
        server.source(topic="b", createTopic="false"), "value string", {"value": ["1"]}
    )
    with pytest.raises(RowError, match="'b' has no partition 4, only 0 to 0"):
        write(server.source(topic="b", partition="4"), "value string", {"value": ["1"]})
