"""One log by five protocols: written by TANK, summed by Spark, read by the others.

    TANK -> topic orders, 4 partitions -> Spark -> Fluvio -> topic totals
                                        totals -> LWP, RustLog and Kimberlite

One broker serves all of them from the same topics, each at an address of its own. A
protocol carries what it has a place for: TANK and Fluvio keys and times, RustLog and
Kimberlite values alone.

It starts a broker and a local Spark of its own and removes both at the end:

    .venv/bin/python examples/protocols.py
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, connect

ORDERS = 2_000
PARTITIONS = 4
COUNTRIES = ("at", "ch", "de", "fr")
READERS = ("lance", "rustlog", "kimberlite")
HERE = "127.0.0.1:0"


def run(spark: SparkSession, servers: Mapping[str, str]) -> None:
    """Do the whole of it, and say what is done.

    Args:
        spark: any session.
        servers: where the broker serves each protocol.
    """
    produce(servers["tank"])
    print(f"1. By TANK: {ORDERS:,} orders in {PARTITIONS} partitions of topic orders")

    orders = read(spark, servers["tank"])
    print("2. In Spark, by TANK:")
    orders.groupBy("partition").count().orderBy("partition").show()

    totals = summarise(orders)
    writer = totals.write.format("fluvio").mode("append")
    writer.options(servers=servers["fluvio"], topic="totals").save()
    print("3. By Fluvio: the totals into topic totals")

    print("4. By LWP, which is what the broker keeps them as:")
    with LanceClient(servers["lance"]) as client:
        print("   topics", ", ".join(info.name for info in client.topics()))
    values = {name: fetch(name, servers[name]) for name in READERS}
    for value in sorted(values["lance"]):
        print(f"   {value.decode()}")
    same = all(found == values["lance"] for found in values.values())
    print("5. By RustLog and Kimberlite:", "the same" if same else "they differ")


def fetch(protocol: str, server: str) -> list[bytes]:
    """Read the values of the totals by a protocol, without Spark."""
    with connect(f"{protocol}://{server}") as log:
        return [v for batch in log.read("totals") for v in batch["value"].to_pylist()]


def produce(server: str) -> None:
    """Write orders, whose key says where they come from."""
    with connect(f"tank://{server}") as client:
        for partition in range(PARTITIONS):
            numbers = range(partition, ORDERS, PARTITIONS)
            keys = [COUNTRIES[n // PARTITIONS % len(COUNTRIES)] for n in numbers]
            rows = pa.table({"key": keys, "value": [f"{n % 100 + 1}" for n in numbers]})
            client.append("orders", rows, partition, create=True, partitions=PARTITIONS)


def read(spark: SparkSession, server: str) -> DataFrame:
    """Read all partitions of the orders."""
    reader = spark.read.format("tank").options(servers=server, topic="orders")
    return reader.load().selectExpr(
        "partition",
        "CAST(key AS STRING) AS country",
        "CAST(CAST(value AS STRING) AS INT) AS price",
    )


def summarise(orders: DataFrame) -> DataFrame:
    """Add the orders of each country up, in one value of text."""
    summed = orders.groupBy("country").agg(
        F.count("*").alias("orders"), F.sum("price").alias("total")
    )
    text = "concat(country, ': ', orders, ' orders, ', total, ' in all') AS value"
    return summed.selectExpr(text)


def main() -> None:
    """Run it with a broker and a Spark that are gone afterwards."""
    # Spark's workers are to be this Python, whatever is first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedBroker(rustlog=HERE, kimberlite=HERE, fluvio=HERE, tank=HERE) as broker,
    ):
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
            run(spark, broker.addresses)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
