"""Streams on a cluster, of which a task is run twice; also by a client of Connect.

stream_job.py REMOTE SERVERS DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

TASKS = 4
PATIENCE_S = 60.0


def make_meeting(directory: Path) -> Any:
    """Make a step in which one task waits at its end for a copy of itself."""

    def meet(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != 1:
            return
        # Each executor has one process that is the parent of those which work.
        name = f"met-{context.attemptNumber()}-{os.getppid()}"
        (directory / name).touch()
        deadline = time.monotonic() + PATIENCE_S
        while len(list(directory.glob("met-*"))) < 2:
            if time.monotonic() > deadline:
                (directory / "late").touch()
                return
            time.sleep(0.01)

    return meet


def copy(frame: DataFrame, servers: str, directory: Path) -> StreamingQuery:
    """Copy what there is to topic `out`."""
    writer = frame.writeStream.format("lance").option("servers", servers)
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.option("topic", "out").trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(2 * int(PATIENCE_S)), "it does not end"
        return query
    finally:
        query.stop()


def load(spark: SparkSession, servers: str, **options: str) -> DataFrame:
    """Make a DataFrame of the values of topic `in`."""
    given = {"servers": servers, "topic": "in", "startingOffsets": "earliest"}
    reader = spark.readStream.format("lance").schema("value binary")
    return reader.options(**{**given, **options}).load()


def main(spark: SparkSession, servers: str, directory: str, task_bytes: str) -> int:
    """Copy topic `in` in one batch of several tasks; give the number of rows."""
    frame = load(spark, servers, maxPartitionBytes=task_bytes)
    frame = frame.mapInArrow(make_meeting(Path(directory)), "value binary")
    query = copy(frame, servers, Path(directory))
    return sum(each.numInputRows for each in query.recentProgress)


def run_client(remote: str, servers: str, directory: Path) -> dict[str, Any]:
    """Do what tests look at, through Connect."""
    spark = SparkSession.builder.remote(remote).getOrCreate()
    try:
        frame = load(spark, servers, maxRecordsPerTrigger="70")
        told = copy(frame, servers, directory).recentProgress
        # What there is now was read already.
        copy(load(spark, servers), servers, directory)
        try:
            copy(load(spark, servers, topic="gone"), servers, directory / "gone")
        except StreamingQueryException as error:
            missing = str(error)
        return {
            "rows": [each.numInputRows for each in told],
            "behind": [_find_lag(each.json) for each in told],
            "missing": missing,
        }
    finally:
        spark.stop()


def _find_lag(progress: str) -> int:
    [source] = json.loads(progress)["sources"]
    # Connect gives offsets as texts.
    lag: int = json.loads(source["latestOffset"])["topics"]["in"]["recordsBehind"]
    return lag


if __name__ == "__main__":
    found = run_client(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    sys.stdout.write(f"{json.dumps(found)}\n")
