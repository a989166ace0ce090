"""The driver of jobs on a standalone cluster; prints what it has found as JSON.

    cluster_job.py MASTER SERVERS TOPIC DIRECTORY

Two jobs write the same rows: one in peace, and one in which an executor is killed in
the middle of its write, as soon as the file `staged` says that the broker has rows of
both executors.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.engine.session import JAVA_OPTIONS

ROWS = 40_000
PARTITIONS = 4
# A task has 10 MB, and sends the first of them when it has about 4.
PADDING = "x" * 1000
PATIENCE_S = 60.0

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.sql.shuffle.partitions": "2",
    # Nothing runs before both executors are there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    # Small pieces, so that the first ones arrive early.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
}


def name_daemons(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Say who is the parent of the Python that works: one process per executor."""
    for batch in batches:
        parents = [str(os.getppid())] * batch.num_rows
        yield pa.record_batch({"value": batch["value"], "key": parents})


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


def main(master: str, servers: str, topic: str, directory: Path) -> dict[str, Any]:
    """Do both jobs."""
    builder = SparkSession.builder.master(master).appName("lance-cluster")
    spark = builder.config(map=_SETTINGS).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        rows = spark.range(0, ROWS, numPartitions=PARTITIONS)
        rows = rows.selectExpr(f"concat(id, ' {PADDING}') as value")
        write(rows.mapInArrow(name_daemons, "value string, key string"), servers, topic)
        killed = f"{topic}-killed"
        killer = rows.mapInArrow(make_killer(directory), "value string")
        write(killer, servers, killed)
        return sum_up(spark, servers, [topic, killed])
    finally:
        spark.stop()


if __name__ == "__main__":
    found = main(*sys.argv[1:4], Path(sys.argv[4]))
    sys.stdout.write(f"{json.dumps(found)}\n")
