"""A topic is counted by minute while it grows, and the counts are a topic again.

    topic clicks -> JSON parsed -> windows of a minute -> topic per-minute

A window is written once, when the watermark has passed it: append mode, exactly once.
The query is stopped in between and started again, and goes on where it was.

It starts a broker and a local Spark of its own and removes both at the end:

    .venv/bin/python examples/stream_etl.py

With a server of yours, `start` is all that is needed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer

START_S = 1_700_000_040  # A whole minute.
CLICKS_PER_MINUTE = 3_000


def run(spark: SparkSession, servers: str, directory: str) -> None:
    """Do the whole of it, and say what is done.

    Args:
        spark: any session.
        servers: where the topics are.
        directory: where the query's checkpoint goes.
    """
    produce_clicks(servers, first=0, end=3)
    print(f"1. Three minutes of clicks, {3 * CLICKS_PER_MINUTE:,}, are in topic clicks")
    start(spark, servers, directory).awaitTermination()
    print("2. The query has read them and has ended. Its windows that are over:")
    show_counts(spark, servers)

    produce_clicks(servers, first=3, end=6)
    start(spark, servers, directory).awaitTermination()
    print("3. Three minutes more, and the query started again, with what it had begun:")
    show_counts(spark, servers)


def produce_clicks(servers: str, *, first: int, end: int) -> None:
    """Put the clicks of some minutes into a topic, as some application would."""
    step_ms = 60_000 // CLICKS_PER_MINUTE
    numbers = range(first * CLICKS_PER_MINUTE, end * CLICKS_PER_MINUTE)
    clicks = [
        {"user": n % 97, "page": ("home", "shop", "help")[n % 3], "ms": n * n % 1000}
        for n in numbers
    ]
    rows = pa.table(
        {
            "value": [json.dumps(click).encode() for click in clicks],
            "timestamp_ns": [START_S * 10**9 + n * step_ms * 10**6 for n in numbers],
        }
    )
    with (
        LanceClient(servers) as client,
        Producer(client, "clicks", create_topic=True) as producer,
    ):
        producer.write(rows)


def start(spark: SparkSession, servers: str, directory: str) -> StreamingQuery:
    """Start the query; it reads what is there, and ends.

    Without its trigger it would run until it is stopped.
    """
    clicks = (
        spark.readStream.format("lance")
        .options(servers=servers, topic="clicks", startingOffsets="earliest")
        .option("maxBytesPerTrigger", "1m")
        .schema("timestamp timestamp, value string")
        .load()
    )
    return (
        count_by_minute(clicks)
        .writeStream.format("lance")
        .options(servers=servers, topic="per-minute")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )


def count_by_minute(clicks: DataFrame) -> DataFrame:
    """Count clicks, as rows that can be written: a key, a time, and JSON."""
    click = F.from_json("value", "user bigint, page string, ms bigint")
    parsed = clicks.select("timestamp", click.alias("click"))
    counts = (
        # A click that is more than ten seconds late is not counted any more.
        parsed.withWatermark("timestamp", "10 seconds")
        .groupBy(F.window("timestamp", "1 minute"), "click.page")
        .agg(F.count("*").alias("clicks"), F.max("click.ms").alias("slowest_ms"))
    )
    return counts.select(
        F.col("page").alias("key"),
        F.col("window.start").alias("timestamp"),
        F.to_json(F.struct("clicks", "slowest_ms")).alias("value"),
    )


def show_counts(spark: SparkSession, servers: str) -> None:
    """Show how many clicks each minute has, by what is in the topic."""
    counts = (
        spark.read.format("lance")
        .options(servers=servers, topic="per-minute")
        .schema("key string, timestamp timestamp, value string")
        .load()
    )
    clicks = F.get_json_object("value", "$.clicks").cast("bigint")
    by_minute = counts.groupBy(F.date_format("timestamp", "mm:ss").alias("minute"))
    shown = by_minute.agg(F.count("*").alias("pages"), F.sum(clicks).alias("clicks"))
    shown.orderBy("minute").show()


def main() -> None:
    """Run it with a broker, a Spark and a directory that are gone afterwards."""
    # Spark's workers are to be this Python, whatever is first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory() as directory, EmbeddedBroker() as broker:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            # A JVM that starts quickly, and would be slow in the long run.
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
            .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
            .getOrCreate()
        )
        try:
            run(spark, broker.address, directory)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
