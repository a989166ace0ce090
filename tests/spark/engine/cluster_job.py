"""Jobs on a standalone cluster, of which one loses an executor.

Two jobs write the same rows: one in peace, and one in which an executor is killed in
the middle of its write, as soon as the file `staged` says that the broker has rows of
both executors.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.saving import small_batches

ROWS = 40_000
PARTITIONS = 4
# A task has 10 MB, and sends the first of them when it has about 4.
PADDING = "x" * 1000
PATIENCE_S = 60.0
# Small pieces, so that the first ones arrive early.
BATCH_ROWS = 500


def make_namer(directory: Path) -> Any:
    """Make a step that says who is the parent of the Python that works.

    That is one process per executor. The first batch of each task waits until two of
    them work: on a busy machine one might do everything before the other has begun.
    """

    def name_daemons(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parent = str(os.getppid())
        (directory / f"daemon-{parent}").touch()
        deadline = time.monotonic() + PATIENCE_S
        while len(list(directory.glob("daemon-*"))) < 2:
            if time.monotonic() > deadline:
                break  # The test finds one executor only.
            time.sleep(0.01)
        for batch in batches:
            parents = [parent] * batch.num_rows
            yield pa.record_batch({"value": batch["value"], "key": parents})

    return name_daemons


def make_killer(directory: Path) -> Any:
    """Make a step that lets rows pass and kills an executor once."""

    def kill_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 15:  # Of 20, so that there are enough to be sent.
                wait_for(directory / "staged")
                if is_first():
                    os.kill(find_parent(os.getppid()), signal.SIGKILL)
                    time.sleep(PATIENCE_S)  # Until the executor's end has reached us.
            yield batch

    def is_first() -> bool:
        try:
            (directory / "killed").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def wait_for(path: Path) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not path.exists():
            if time.monotonic() > deadline:
                path.with_name("late").touch()  # Spark would try again, and hide it.
                raise TimeoutError(f"no {path}")
            time.sleep(0.01)

    def find_parent(pid: int) -> int:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        lines = [line for line in status.splitlines() if line.startswith("PPid:")]
        return int(lines[0].split()[1])

    return kill_once


def write(frame: DataFrame, servers: str, topic: str) -> None:
    """Write rows in small frames."""
    writer = frame.write.format("lance").mode("append")
    options = {"servers": servers, "topic": topic, "batchBytes": "128k"}
    writer.options(**options).option("delivery", "exactly-once").save()


def sum_up(spark: SparkSession, servers: str, topics: list[str]) -> dict[str, Any]:
    """Read topics in several partitions and say what is in each of them."""
    reader = spark.read.format("lance").options(servers=servers, minPartitions="4")
    frame = reader.option("topic", ",".join(topics)).load()
    frame = frame.withColumn("partition", F.spark_partition_id())
    rows = frame.groupBy("topic").agg(
        F.count("*").alias("rows"),
        F.countDistinct("value").alias("values"),
        F.sum(F.split(F.col("value").cast("string"), " ")[0].cast("long")).alias("sum"),
        F.countDistinct("partition").alias("partitions"),
        F.countDistinct("key").alias("executors"),
    )
    return {row["topic"]: row.asDict() for row in rows.collect()}


def main(
    spark: SparkSession, servers: str, topic: str, directory: str, *others: str
) -> dict[str, Any]:
    """Do both jobs, and say what each has left; then copy to other formats."""
    killed = f"{topic}-killed"
    rows = spark.range(0, ROWS, numPartitions=PARTITIONS)
    rows = rows.selectExpr(f"concat(id, ' {PADDING}') as value")
    named = rows.mapInArrow(make_namer(Path(directory)), "value string, key string")
    killer = rows.mapInArrow(make_killer(Path(directory)), "value string")
    with small_batches(spark, BATCH_ROWS):
        write(named, servers, topic)
        write(killer, servers, killed)
    return {
        **sum_up(spark, servers, [topic, killed]),
        **{each: copy(rows, *each.split("=")) for each in others},
    }


def copy(rows: DataFrame, name: str, servers: str) -> dict[str, Any]:
    """Write rows in another format, and say what is read of them."""
    options = {"servers": servers, "topic": f"copied-{name}"}
    frame = rows.selectExpr("split(value, ' ')[0] AS value")
    writer = frame.write.format(name).mode("append").options(**options)
    if name != "kimberlite":
        writer = writer.option("partitions", "3")
    writer.save()
    found = frame.sparkSession.read.format(name).options(**options).load()
    columns = [name for name in ("value", "partition") if name in found.columns]
    summed = found.agg(*[F.countDistinct(name) for name in columns]).first()
    assert summed is not None
    return dict(zip((f"{name}s" for name in columns), summed, strict=True))
