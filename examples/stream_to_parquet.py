"""A topic is kept as Parquet files, by a query that is started now and then.

    topic readings -> columns -> Parquet by sensor

`Trigger.AvailableNow` reads what is there and ends, as a job of every hour would. The
next run goes on behind it: every record is in the files once. Spark's file sink sees to
that with a log of its own, so read the directory as a whole and not its single files.

It starts a broker and a local Spark of its own and removes both at the end:

    .venv/bin/python examples/stream_to_parquet.py
"""

from __future__ import annotations

import os
import sys
import tempfile

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer

READINGS = 20_000
SENSORS = ("attic", "cellar", "garden")
START_S = 1_700_000_000


def run(spark: SparkSession, servers: str, directory: str) -> None:
    """Do the whole of it, and say what is done.

    Args:
        spark: any session.
        servers: where the topic is.
        directory: where Parquet files and the query's checkpoint go.
    """
    for number in (1, 2):
        produce_readings(servers, first=(number - 1) * READINGS)
        query = start(spark, servers, directory)
        query.awaitTermination()
        batches = [batch.numInputRows for batch in query.recentProgress]
        print(
            f"Run {number}: batches of {', '.join(f'{n:,}' for n in batches)} records"
        )

    files = spark.read.parquet(f"{directory}/readings")
    files.groupBy("sensor").count().orderBy("sensor").show()
    rows, different = files.count(), files.select("offset").distinct().count()
    print(f"{rows:,} rows of {different:,} different records")


def produce_readings(servers: str, *, first: int) -> None:
    """Put readings into a topic, as some application would."""
    numbers = range(first, first + READINGS)
    rows = pa.table(
        {
            "key": [SENSORS[n % len(SENSORS)].encode() for n in numbers],
            "value": [b"%d" % (150 + n * n % 100) for n in numbers],
            "timestamp_ns": [(START_S + n) * 10**9 for n in numbers],
        }
    )
    with (
        LanceClient(servers) as client,
        Producer(client, "readings", create_topic=True) as producer,
    ):
        producer.write(rows)


def start(spark: SparkSession, servers: str, directory: str) -> StreamingQuery:
    """Start the query; it reads what is there, in batches of limited size, and ends."""
    readings = (
        spark.readStream.format("lance")
        .options(servers=servers, topic="readings", startingOffsets="earliest")
        .option("maxRecordsPerTrigger", 15_000)
        .schema("offset bigint, key string, value string, timestamp timestamp")
        .load()
    )
    columns = readings.selectExpr(
        "key AS sensor", "CAST(value AS BIGINT) / 10 AS degrees", "timestamp", "offset"
    )
    return (
        columns.writeStream.format("parquet")
        .partitionBy("sensor")
        .option("path", f"{directory}/readings")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )


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
