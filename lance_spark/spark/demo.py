"""The Spark part of `lance-spark demo`: a topic in, a topic out, and back.

The command line knows no Spark, so it starts this as a process of its own:
`python -m lance_spark.spark.demo SERVERS TOPIC`. A line of it is a step, a tab and a
text. One of the step `part` says what the next ones show, one of the step `error` what
has failed, and one of the step `live` has a JSON object of numbers, which are those of
this moment. Streams are in `demo_stream`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lance_spark.spark import demo_stream
from lance_spark.spark.local import run_session

Say = Callable[[str, str], None]

TARGET = "users"
_PARTITIONS = 4


def run(spark: SparkSession, servers: str, topic: str, say: Say) -> None:
    """Read a topic, write what comes of it twice, and compare.

    Args:
        spark: a session.
        servers: the broker's address.
        topic: has records of all types.
        say: tells a step and what came of it.

    Raises:
        ValueError: Spark sees other rows than it should.
    """
    # The first query starts Spark's Python workers, which takes most of its time.
    for number in ("first", "then"):
        began_s = time.perf_counter()
        reader = _read(spark, servers, topic).option("minPartitions", _PARTITIONS)
        events = reader.load()
        parts, records = _count(events)
        seconds = time.perf_counter() - began_s
        rate = f"{number} {seconds:.1f} s, {records / seconds:,.0f} records/s"
        say("read", f"{records:,} records of {topic!r} in {parts} tasks, {rate}")

    users = (
        events.where("key is not null")
        .groupBy("key")
        .agg(F.count("*").alias("events"), F.max("offset").alias("last"))
        .select("key", F.to_json(F.struct("events", "last")).alias("value"))
        .localCheckpoint()
    )
    for said in ("exactly once", "sent again, and nothing doubled"):
        _write(users, servers)
        written = _read(spark, servers, TARGET).load()
        _compare(written, users)
        rows = f"{written.count():,} users and their counts into {TARGET!r}"
        say("write", f"{rows}, {said}")
    for row in written.orderBy("key").limit(2).collect():
        say("", f"{row.key.decode()}  {row.value.decode()}")


def _read(spark: SparkSession, servers: str, topic: str) -> Any:
    return spark.read.format("lance").option("servers", servers).option("topic", topic)


def _count(events: DataFrame) -> tuple[int, int]:
    """Count tasks and rows in one job."""
    by_task = events.groupBy(F.spark_partition_id()).count().collect()
    return len(by_task), sum(row["count"] for row in by_task)


def _write(users: DataFrame, servers: str) -> None:
    (
        users.write.format("lance")
        .option("servers", servers)
        .option("topic", TARGET)
        .option("txnAppId", "demo")
        .option("txnVersion", 1)
        .mode("append")
        .save()
    )


def _compare(written: DataFrame, users: DataFrame) -> None:
    there = written.select("key", F.col("value").cast("string"))
    if there.exceptAll(users).count() or users.exceptAll(there).count():
        raise ValueError(f"topic {TARGET!r} holds other rows than were written to it")


def main(arguments: list[str]) -> int:
    """Run in a session of our own; the exit code says whether it went well."""

    def say(step: str, text: str) -> None:
        sys.stdout.write(f"{step}\t{text}\n")
        sys.stdout.flush()

    def show(numbers: dict[str, Any]) -> None:
        say("live", json.dumps(numbers))

    servers, topic = arguments
    try:
        with tempfile.TemporaryDirectory(prefix="lance-demo-") as directory:
            _run_parts(servers, topic, Path(directory), say, show=show)
    except Exception as error:
        say("error", str(error).strip().splitlines()[-1])
        return 1
    return 0


def _run_parts(
    servers: str, topic: str, directory: Path, say: Say, *, show: demo_stream.Show
) -> None:
    say(
        "part",
        "Spark reads the topic in parallel, and writes another one exactly once.",
    )
    say("spark", "starts a JVM, and with the first query its Python workers")
    began_s = time.perf_counter()
    with run_session(directory / "spark") as spark:
        seconds = time.perf_counter() - began_s
        about = f"{spark.version}, two cores of this machine, up in {seconds:.0f} s"
        say("spark", about)
        run(spark, servers, topic, say)
        say(
            "part",
            "A streaming query is crashed between a write and Spark's note of it.",
        )
        demo_stream.run(spark, servers, directory, say, show=show)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
