"""Queries from format to format in Spark itself: one broker, one line each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lance_spark.broker import EmbeddedBroker

ROWS = 1000


@pytest.fixture
def speaker() -> Iterator[EmbeddedBroker]:
    """Run a broker that speaks all protocols."""
    listeners = {"rustlog": "127.0.0.1:0", "tank": "127.0.0.1:0"}
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
