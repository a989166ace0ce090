"""What a topic got in some span of time is read again: by clock, not by offset.

    topic payments -> an hour of it, by when the broker got it -> counted anew

Say that a job was wrong for a while. The broker keeps for every record when it was
appended, and `startingTimestamp` and `endingTimestamp` cut by that: no record of the
span is missed, and the job needs no note of offsets. The timestamps that are inside of
records are something else: senders set them, late or wrong as they may be.

It starts a broker and a local Spark of its own and removes both at the end:

    .venv/bin/python examples/replay.py
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from datetime import datetime, timezone

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer

PAYMENTS = 2_000
# In place of hours, so that nobody has to wait for them.
PAUSE_S = 0.05


def run(spark: SparkSession, servers: str) -> None:
    """Do the whole of it, and say what is done.

    Args:
        spark: any session.
        servers: where the topic is.
    """
    produce(servers, "before")
    start = now()
    produce(servers, "during")
    end = now()
    produce(servers, "after")
    print(
        f"1. Topic payments has {3 * PAYMENTS:,} payments, from before, during, after"
    )

    span = read(spark, servers, startingTimestamp=start, endingTimestamp=end)
    print(f"2. What came between {start[11:23]} and {end[11:23]} is read again:")
    summarise(span).show()

    later = read(spark, servers, startingTimestamp=end)
    print(f"3. And what came from then on is {later.count():,} payments")


def now() -> str:
    """Say what time it is, as an option takes it, with nothing appended just now."""
    time.sleep(PAUSE_S)
    moment = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    time.sleep(PAUSE_S)
    return moment


def produce(servers: str, when: str) -> None:
    """Put payments into a topic, as some application would."""
    payments = [{"when": when, "cents": 100 + n * 7 % 900} for n in range(PAYMENTS)]
    rows = pa.table({"value": [json.dumps(one).encode() for one in payments]})
    with (
        LanceClient(servers) as client,
        Producer(client, "payments", create_topic=True) as producer,
    ):
        producer.write(rows)


def read(spark: SparkSession, servers: str, **span: str) -> DataFrame:
    """Read the payments of a span of time."""
    reader = spark.read.format("lance").options(servers=servers, topic="payments")
    payments = reader.options(**span).schema("offset long, value string").load()
    payment = F.from_json("value", "when string, cents bigint")
    return payments.select("offset", payment.alias("payment"))


def summarise(payments: DataFrame) -> DataFrame:
    """Count payments, and say from which byte to which they are."""
    return payments.groupBy("payment.when").agg(
        F.count("*").alias("payments"),
        (F.sum("payment.cents") / 100).alias("sum"),
        F.min("offset").alias("first offset"),
        F.max("offset").alias("last offset"),
    )


def main() -> None:
    """Run it with a broker and a Spark that are gone afterwards."""
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
            run(spark, broker.address)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
