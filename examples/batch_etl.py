"""A topic becomes a DataFrame, then Parquet, and what comes of it a topic again.

    topic clicks -> JSON parsed -> Parquet by page -> counts -> topic per-minute

It starts a broker and a local Spark of its own and removes both at the end:

    .venv/bin/python examples/batch_etl.py

With a server of yours, `run` is all that is needed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer

CLICKS = 30_000
START_S = 1_700_000_040  # A whole minute.


def run(spark: SparkSession, servers: str, directory: str) -> None:
    """Do the whole of it, and say what is done.

    Args:
        spark: any session.
        servers: where the topics are.
        directory: where Parquet files go.
    """
    produce_clicks(servers)
    print(f"1. {CLICKS:,} clicks are in topic clicks, as JSON")

    clicks = read_clicks(spark, servers)
    files = f"{directory}/clicks"
    clicks.write.partitionBy("page").parquet(files)
    pages = sorted(path.name for path in Path(files).glob("page=*"))
    print(f"2. They are in Parquet, in {len(pages)} folders: {', '.join(pages)}")

    write_counts(count_by_minute(spark.read.parquet(files)), servers)
    print("3. Counts by minute are in topic per-minute, of which these are the first:")
    schema = "offset bigint, key string, value string"
    read_topic(spark, servers, "per-minute", schema).show(4, truncate=False)


def produce_clicks(servers: str) -> None:
    """Put clicks into a topic, as some application would."""
    clicks = [
        {"user": n % 97, "page": ("home", "shop", "help")[n % 3], "ms": n * n % 1000}
        for n in range(CLICKS)
    ]
    rows = pa.table(
        {
            "value": [json.dumps(click).encode() for click in clicks],
            "timestamp_ns": [(START_S * 100 + n) * 10_000_000 for n in range(CLICKS)],
        }
    )
    with (
        LanceClient(servers) as client,
        Producer(client, "clicks", create_topic=True) as producer,
    ):
        producer.write(rows)


def read_topic(spark: SparkSession, servers: str, topic: str, schema: str) -> DataFrame:
    """Read columns of a topic; those that the schema does not name cost nothing."""
    reader = spark.read.format("lance").options(servers=servers, topic=topic)
    return reader.option("minPartitions", 2).schema(schema).load()


def read_clicks(spark: SparkSession, servers: str) -> DataFrame:
    """Read the clicks with a column for each field."""
    records = read_topic(spark, servers, "clicks", "timestamp timestamp, value string")
    click = F.from_json("value", "user bigint, page string, ms bigint")
    return records.select("timestamp", click.alias("click")).select(
        "timestamp", "click.*"
    )


def count_by_minute(clicks: DataFrame) -> DataFrame:
    """Count clicks, as rows that can be written: a key, a time, and JSON."""
    minute = F.date_trunc("minute", "timestamp").alias("minute")
    counts = clicks.groupBy(minute, "page").agg(
        F.count("*").alias("clicks"), F.max("ms").alias("slowest_ms")
    )
    return counts.orderBy("minute", "page").select(
        F.col("page").alias("key"),
        F.col("minute").alias("timestamp"),
        F.to_json(F.struct("clicks", "slowest_ms")).alias("value"),
    )


def write_counts(counts: DataFrame, servers: str) -> None:
    """Replace what the topic holds, in one step: doing it again doubles nothing."""
    writer = counts.write.format("lance").options(servers=servers, topic="per-minute")
    writer.mode("overwrite").save()


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
