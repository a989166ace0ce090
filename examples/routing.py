"""One write fills many topics, and every row is there once, whatever fails.

Each order goes to the topic of its country. On the way one task fails after it has
written its rows, and a whole day is written a second time, as after a crash.

It starts a broker and a local Spark of its own and removes both at the end:

    .venv/bin/python examples/routing.py
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lance_spark.broker import EmbeddedBroker

COUNTRIES = ("at", "ch", "de", "fr")
ORDERS_PER_DAY = 8_000


def run(spark: SparkSession, servers: str) -> None:
    """Do the whole of it, and say what is done.

    Args:
        spark: a session that runs failed tasks again, such as that of `local[2,3]`.
        servers: where the topics are.
    """
    write_day(make_orders(spark, day=1), servers, day=1)
    show_topics(spark, servers, "Day 1, each order in the topic of its country:")

    schema = "topic string, key string, value string"
    second = make_orders(spark, day=2).mapInArrow(fail_once, schema)
    write_day(second, servers, day=2)
    show_topics(spark, servers, "Day 2, whose first task failed once and ran again:")

    write_day(make_orders(spark, day=2), servers, day=2)
    show_topics(spark, servers, "Day 2 once more, which changes nothing:")

    orders = read_orders(spark, servers)
    rows, different = orders.select(F.count("*"), F.countDistinct("value")).collect()[0]
    print(f"{rows:,} rows, {different:,} different orders")


def make_orders(spark: SparkSession, *, day: int) -> DataFrame:
    """Make the orders of a day: topic, key and value are what a write needs."""
    country = F.array(*map(F.lit, COUNTRIES))[F.col("id") % len(COUNTRIES)]
    order = F.struct(F.lit(day).alias("day"), F.col("id").alias("order"))
    return spark.range(ORDERS_PER_DAY, numPartitions=2).select(
        F.concat(F.lit("orders-"), country).alias("topic"),
        F.concat(F.lit("customer-"), F.col("id") % 500).alias("key"),
        F.to_json(order).alias("value"),
    )


def write_day(orders: DataFrame, servers: str, *, day: int) -> None:
    """Write the orders of a day, at most once for each day.

    The option `topic` is not set, so the column says where a row goes. In
    `foreachBatch` the version would be the id of the batch.
    """
    writer = orders.write.format("lance").option("servers", servers)
    writer.options(txnAppId="daily-orders", txnVersion=day).mode("append").save()


def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass all rows on, and then let the first attempt of the first task fail."""
    yield from batches
    task = TaskContext.get()
    if task is not None and task.partitionId() == 0 and task.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails, as it is meant to")


def read_orders(spark: SparkSession, servers: str) -> DataFrame:
    """Read the orders of all topics."""
    reader = spark.read.format("lance").option("servers", servers)
    reader = reader.option("topicPattern", "orders-.*")
    return reader.schema("value string").load()


def show_topics(spark: SparkSession, servers: str, what: str) -> None:
    """Show how many records each topic has."""
    print(what)
    reader = spark.read.format("lance").option("servers", servers)
    topics = reader.option("metadata", "topics").load()
    topics.select("name", "records").show()


def main() -> None:
    """Run it with a broker and a Spark that are gone afterwards."""
    # Spark's workers are to be this Python, whatever is first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory() as directory, EmbeddedBroker() as broker:
        spark = (
            # Two tasks at once, each of which may be tried three times.
            SparkSession.builder.master("local[2,3]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            # A JVM that starts quickly, and would be slow in the long run.
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
            .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
            .getOrCreate()
        )
        # Spark would show the failure that is part of this.
        spark.sparkContext.setLogLevel("OFF")
        try:
            run(spark, broker.address)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
