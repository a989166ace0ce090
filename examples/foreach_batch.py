"""One streaming query writes into two topics from a function of its own, exactly once.

    topic orders -> foreachBatch -> topic large-orders
                                 -> topic totals

Spark runs a batch again if it can't know that it was done, and then the function writes
again. `txnAppId` and `txnVersion` name a write, by the job and by the number of the
batch: the broker does not take it twice. Here the function fails between its two
writes, and the query is started again, as after a crash.

It starts a broker and a local Spark of its own and removes both at the end:

    .venv/bin/python examples/foreach_batch.py
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer

ORDERS = 6_000
ORDERS_PER_BATCH = 2_000
# The batch that fails the first time: the last of three.
BAD_BATCH = 2

WriteBatch = Callable[[DataFrame, int], None]


def run(spark: SparkSession, servers: str, directory: str) -> None:
    """Do the whole of it, and say what is done.

    Args:
        spark: any session.
        servers: where the topics are.
        directory: where the query's checkpoint goes.
    """
    produce_orders(servers)
    print(f"1. {ORDERS:,} orders are in topic orders")

    failing = make_write(servers, fails_in=BAD_BATCH)
    try:
        start(spark, servers, directory, failing).awaitTermination()
    except StreamingQueryException:
        print(f"2. The query has failed in batch {BAD_BATCH}, between its two writes:")
    show_topics(servers)

    start(spark, servers, directory, make_write(servers)).awaitTermination()
    print(f"3. Started again, it has run batch {BAD_BATCH} again, and nothing doubled:")
    show_topics(servers)


def produce_orders(servers: str) -> None:
    """Put orders into a topic, as some application would."""
    orders = [{"order": n, "country": ("at", "fr")[n % 2]} for n in range(ORDERS)]
    rows = [{**order, "amount": order["order"] % 100} for order in orders]
    values = [json.dumps(row).encode() for row in rows]
    with (
        LanceClient(servers) as client,
        Producer(client, "orders", create_topic=True) as producer,
    ):
        producer.write(pa.table({"value": values}))


def make_write(servers: str, *, fails_in: int | None = None) -> WriteBatch:
    """Make the function that writes a batch into both topics.

    Args:
        servers: where the topics are.
        fails_in: number of the batch in which it fails after the first write.
    """

    def write_batch(batch: DataFrame, number: int) -> None:
        # A query with a new checkpoint counts from 0 again and needs another name.
        once = {"servers": servers, "txnAppId": "order-job", "txnVersion": str(number)}
        order = F.from_json("value", "order bigint, country string, amount bigint")
        orders = batch.select(order.alias("order"), "value")
        large = orders.where("order.amount >= 90").select("value")
        append(large, topic="large-orders", **once)
        if number == fails_in:
            raise RuntimeError("the first attempt fails, as it is meant to")
        totals = orders.groupBy(F.col("order.country").alias("key"))
        totals = totals.agg(F.sum("order.amount").cast("string").alias("value"))
        append(totals, topic="totals", **once)

    return write_batch


def append(rows: DataFrame, **options: str) -> None:
    """Append rows to a topic."""
    rows.write.format("lance").options(**options).mode("append").save()


def start(
    spark: SparkSession, servers: str, directory: str, write_batch: WriteBatch
) -> StreamingQuery:
    """Start the query; it reads what is there, in batches, and ends."""
    orders = (
        spark.readStream.format("lance")
        .options(servers=servers, topic="orders", startingOffsets="earliest")
        .option("maxRecordsPerTrigger", ORDERS_PER_BATCH)
        .schema("value string")
        .load()
    )
    return (
        orders.writeStream.foreachBatch(write_batch)
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )


def show_topics(servers: str) -> None:
    """Say how many records each topic has."""
    with LanceClient(servers) as client:
        for topic in client.topics():
            print(f"   {topic.name:<12} {topic.details['record_count']:>6,} records")


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
        # Spark would show the failure that is part of this.
        spark.sparkContext.setLogLevel("OFF")
        try:
            run(spark, broker.address, directory)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
