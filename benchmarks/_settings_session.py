"""Time a few small queries in a Spark session with some settings, and print that.

    python -m benchmarks._settings_session SERVERS DIRECTORY QUICK SETTINGS

The settings are JSON, `QUICK` is 0 or 1. Printed is JSON, too: seconds by what was
measured. A session is a process of its own because some settings hold for its JVM.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks._stream_lane import (
    PATIENCE_S,
    RECORD_BYTES,
    TopicDrain,
    TopicFeed,
    make_rows,
)
from benchmarks.spark import MIB, run_session
from lance_spark.client import LanceClient, Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS = 1000
_VALUE = f"cast(repeat('v', {RECORD_BYTES - 5}) as binary) as value"


class Session:
    """Runs queries from topic to topic, and jobs."""

    def __init__(
        self, spark: SparkSession, client: LanceClient, directory: Path, *, quick: bool
    ) -> None:
        self._spark = spark
        self._client = client
        self._directory = directory
        self._quick = quick
        self._names = (f"settings-{os.getpid()}-{number}" for number in count())

    def measure(self) -> dict[str, float]:
        """Time everything; all but the first query are warm."""
        times = {"first query": self._run_query()}
        times["next query"] = self._repeat(self._run_query)
        times["micro-batch"] = self._run_batches()
        source, target = self._make_topic(_ROWS), self._make_topic(0)
        few = self._spark.range(0, _ROWS, 1, 1).selectExpr(_VALUE)
        size = 16 if self._quick else 64
        many = self._spark.range(0, size * MIB // RECORD_BYTES, 1, 1)
        rows = many.selectExpr(_VALUE)
        times["small read"] = self._repeat(lambda: self._read(source))
        times["small write"] = self._repeat(lambda: self._write(few, target))
        times["large write"] = self._repeat(lambda: self._write(rows, target))
        return times

    def _repeat(self, call: Callable[[], float]) -> float:
        call()
        return median(call() for _ in range(2 if self._quick else 5))

    def _make_topic(self, rows: int) -> str:
        topic = next(self._names)
        self._client.create_topic(topic)
        with Producer(self._client, topic) as producer:
            producer.write(make_rows(rows))
        return topic

    def _at(self, topic: str) -> dict[str, str]:
        return {"servers": self._client.config.servers, "topic": topic}

    def _run_query(self) -> float:
        """Time a query with `Trigger.AvailableNow`, from `load` to its end."""
        source, target = self._make_topic(_ROWS), self._make_topic(0)
        options = {**self._at(source), "startingOffsets": "earliest"}
        start_s = time.perf_counter()
        stream = self._spark.readStream.format("lance").options(**options).load()
        writer = stream.writeStream.format("lance").options(**self._at(target))
        writer = writer.option("checkpointLocation", str(self._directory / target))
        query = writer.trigger(availableNow=True).start()
        if not query.awaitTermination(PATIENCE_S):
            raise TimeoutError("the query does not end")
        return time.perf_counter() - start_s

    def _run_batches(self) -> float:
        """Time the micro-batches of a query; the first few do not count."""
        source, target = self._make_topic(0), next(self._names)
        drain = TopicDrain(self._client, target, self._at(target))
        with Producer(self._client, source, linger_s=0) as producer:
            feed = TopicFeed(producer, self._at(source))
            writer = feed.load(self._spark).writeStream.format("lance")
            place = str(self._directory / target)
            options = {**drain.options, "checkpointLocation": place}
            query = writer.options(**options).start()
            try:
                for _ in range(5 if self._quick else 15):
                    feed.add(_ROWS)
                    drain.wait_for(_ROWS)
                batches = [each for each in query.recentProgress if each.numInputRows]
            finally:
                query.stop()
        times_ms = [each.durationMs["triggerExecution"] for each in batches]
        return median(times_ms[3:]) / 1000

    def _read(self, topic: str) -> float:
        start_s = time.perf_counter()
        frame = self._spark.read.format("lance").options(**self._at(topic)).load()
        frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - start_s

    def _write(self, rows: DataFrame, topic: str) -> float:
        start_s = time.perf_counter()
        writer = rows.write.format("lance").mode("append")
        writer.options(**self._at(topic)).save()
        return time.perf_counter() - start_s


def main(servers: str, directory: str, quick: str, settings: str) -> None:
    """Measure one session."""
    # What a JVM prints must not be among the figures.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with (
        LanceClient(servers) as client,
        run_session(json.loads(settings)) as spark,
    ):
        session = Session(spark, client, Path(directory), quick=quick == "1")
        print(json.dumps(session.measure()), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
