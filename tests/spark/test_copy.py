"""The formats besides `lance` in Spark itself: streams, and from format to format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient
from lance_spark.client.log import connect
from tests.integration.kit import PATIENCE_S, wait_for

ROWS = 1000


@pytest.fixture
def speaker() -> Iterator[EmbeddedBroker]:
    """Run a broker that speaks all protocols."""
    names = ("rustlog", "kimberlite", "fluvio", "tank")
    listeners = dict.fromkeys(names, "127.0.0.1:0")
    with EmbeddedBroker(fsync="none", **listeners) as broker:
        yield broker


def test_a_topic_goes_from_format_to_format(
    spark: SparkSession, speaker: EmbeddedBroker, tmp_path: Path
) -> None:
    servers = {name: speaker.address_of(name) for name in ("rustlog", "tank")}

    def write(start: int, end: int) -> None:
        rows = spark.range(start, end, numPartitions=2)
        rows = rows.selectExpr(
            "cast(id as string) value", "cast(id % 50 as string) key"
        )
        rows.write.format("tank").mode("append").options(
            servers=servers["tank"], topic="a", partitions="3"
        ).save()

    def copy() -> None:
        """Copy what is new, in micro-batches of 300 rows; the checkpoint says what."""
        source = spark.readStream.format("tank").options(
            servers=servers["tank"],
            topic="a",
            startingOffsets="earliest",
            maxRecordsPerTrigger="300",
        )
        # RustLog's records have neither keys nor times.
        rows = source.load().drop("key", "timestamp")
        query = (
            rows.writeStream.format("rustlog")
            .options(servers=servers["rustlog"], topic="b", partitions="3")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        counts = [each.numInputRows for each in query.recentProgress]
        assert max(counts) <= 300

    write(0, ROWS // 2)
    copy()
    write(ROWS // 2, ROWS)
    copy()
    read = spark.read.format("rustlog").options(servers=servers["rustlog"], topic="b")
    sums = "count(*)", "count(distinct value)", "count(distinct partition)"
    found = read.load().selectExpr(*sums).first()
    assert found is not None and tuple(found) == (ROWS, ROWS, 3)
    # Into LANCE's own format and back, with all columns that there are.
    lance = {"servers": speaker.address, "topic": "c"}
    tank = spark.read.format("tank").options(servers=servers["tank"], topic="a").load()
    tank.write.format("lance").mode("append").options(**lance).save()
    back = spark.read.format("lance").options(**lance).load()
    back.write.format("tank").mode("append").options(
        servers=servers["tank"], topic="d", partitions="2"
    ).save()
    same = "SELECT key, value, timestamp FROM {}"
    again = spark.read.format("tank").options(servers=servers["tank"], topic="d").load()
    left = spark.sql(same.format("{a}"), a=tank).exceptAll(
        spark.sql(same.format("{b}"), b=again)
    )
    assert again.count() == ROWS and left.count() == 0


class Stream:
    """A query between topics of one format, which can be started again."""

    def __init__(
        self, spark: SparkSession, broker: EmbeddedBroker, protocol: str, path: Path
    ) -> None:
        self.spark = spark
        self.protocol = protocol
        self.servers = broker.address_of(protocol)
        self.checkpoint = str(path / "checkpoint")
        self.client = connect(f"{protocol}://{self.servers}")

    def fill(self, topic: str, *counts: int, tag: str) -> None:
        """Append so many records to each partition."""
        for number, count in enumerate(counts):
            values = [b"%s-%d-%d" % (tag.encode(), number, n) for n in range(count)]
            self.client.append(
                topic, values, number, create=True, partitions=len(counts)
            )

    def start(self, *, is_finite: bool = True, **given: Any) -> StreamingQuery:
        """Start, or start again, a copy of `in` and all topics `in-…` into `out`."""
        given = {"topicPattern": "in(-.*)?", "startingOffsets": "earliest", **given}
        source = self.spark.readStream.format(self.protocol)
        rows = source.options(servers=self.servers, **given).load().select("value")
        sink = rows.writeStream.format(self.protocol).options(
            servers=self.servers, topic="out", partitions="2"
        )
        sink = sink.option("checkpointLocation", self.checkpoint)
        if is_finite:
            sink = sink.trigger(availableNow=True)
        return sink.start()

    def run(self, **given: Any) -> list[int]:
        """Copy what is there, and tell how many rows each batch had."""
        query = self.start(**given)
        assert query.awaitTermination(120)
        return [each.numInputRows for each in query.recentProgress]

    def wait(self, query: StreamingQuery, count: int) -> None:
        """Wait until a query has written so many records, or has failed."""
        wait_for(
            lambda: len(self.written()) >= count or not query.isActive,
            f"{count} records",
            PATIENCE_S,
        )

    def written(self) -> list[bytes]:
        """Give all records of `out`, sorted."""
        batches = [
            batch
            for number in self.client.bounds("out")
            for batch in self.client.read("out", partition=number)
        ]
        return sorted(value for b in batches for value in b["value"].to_pylist())

    def list_topics(self) -> list[Row]:
        """List the partitions as Spark does."""
        source = self.spark.read.format(self.protocol).option("servers", self.servers)
        found = source.option("metadata", "topics").load()
        return (
            found.select("name", "partition", "records")
            .orderBy("name", "partition")
            .collect()
        )


@pytest.mark.parametrize("protocol", ["rustlog", "fluvio", "tank"])
def test_a_stream_of_partitions(
    spark: SparkSession, speaker: EmbeddedBroker, tmp_path: Path, protocol: str
) -> None:
    stream = Stream(spark, speaker, protocol, tmp_path)
    with stream.client:
        stream.fill("in", 9, 0, 6, tag="a")
        # The limit holds for all partitions together, and each batch is full.
        counts = stream.run(maxRecordsPerTrigger="7")
        assert [count for count in counts if count] == [7, 7, 1]
        # A restart goes on at the checkpoint, also in a partition that was empty.
        stream.fill("in", 0, 2, 0, tag="b")
        query = stream.start(is_finite=False)
        try:
            stream.wait(query, 17)
            # A running query finds a topic that comes, and reads it from its start.
            stream.fill("in-later", 2, 3, tag="c")
            stream.wait(query, 22)
            # A batch that is stopped before Spark has noted it is written again.
            query.processAllAvailable()
        finally:
            query.stop()
        assert query.exception() is None
        rows = stream.written()
        assert len(rows) == len({*rows}) == 22
        assert [tuple(row) for row in stream.list_topics() if row.name != "out"] == [
            *(("in", 0, 9), ("in", 1, 2), ("in", 2, 6)),
            *(("in-later", 0, 2), ("in-later", 1, 3)),
        ]
        # The topic is deleted, and created again with more partitions and records.
        with LanceClient(speaker.address) as lance:
            lance.delete_topic("in")
        stream.fill("in", 12, 12, 12, 12, tag="d")
        with pytest.raises(
            StreamingQueryException, match="DataLoss: topic 'in"
        ) as told:
            stream.run()
        assert "set failOnDataLoss=false to go on with what is left" in str(told.value)
        assert len(stream.written()) == 22
        stream.run(failOnDataLoss="false")
        fresh = [row for row in stream.written() if row.startswith(b"d-3-")]
        assert len(fresh) == 12


def test_a_stream_from_fluvio_to_kimberlite(
    spark: SparkSession, speaker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Tasks of several partitions share one stream: each row is there once."""
    fluvio = {"servers": speaker.address_of("fluvio"), "topic": "a"}
    kimberlite = {"servers": speaker.address_of("kimberlite"), "topic": "b"}
    rows = spark.range(ROWS, numPartitions=3).selectExpr("cast(id as string) value")
    for codec in ("zstd", "gzip"):
        writer = rows.write.format("fluvio").mode("append").options(**fluvio)
        writer.options(compression=codec, partitions="3").save()
        source = spark.readStream.format("fluvio").options(
            **fluvio, startingOffsets="earliest", isolation="read_committed"
        )
        query = (
            source.load()
            .select("value")
            .writeStream.format("kimberlite")
            .options(**kimberlite)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
    found = spark.read.format("kimberlite").options(**kimberlite).load()
    sums = "count(*)", "count(distinct value)", "max(offset)"
    assert tuple(found.selectExpr(*sums).first() or ()) == (
        2 * ROWS,
        ROWS,
        2 * ROWS - 1,
    )
