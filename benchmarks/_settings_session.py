"""What `benchmarks.settings` runs in a session: small queries and jobs.

    python -m benchmarks._settings_session SERVERS DIRECTORY QUICK SETTINGS

As a program it starts a session with settings, which are JSON, and measures everything
when it is asked to: some settings hold for a JVM and its Python processes. `QUICK` is 0
or 1.
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

from benchmarks._figures import answer, open_answers
from benchmarks._session import run_session
from benchmarks._stream_lane import (
    RECORD_BYTES,
    TopicDrain,
    TopicFeed,
    make_rows,
    run_to_end,
)
from benchmarks._turns import MIB
from lance_spark.client import LanceClient, Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRST, NEXT, BATCH = "first query", "next query", "micro-batch"
READ, WRITE = "read of 1000 rows", "write of 1000 rows"
LARGE_READ, LARGE_WRITE = "large read", "large write"

_ROWS = 1000
_VALUE = f"cast(repeat('v', {RECORD_BYTES - 5}) as binary) as value"
_WARM_BATCHES, _BATCHES = 3, 12
_REPEATS = 5


class Session:
    """Runs queries from topic to topic, and jobs; gives seconds by what was measured.

    Args:
        spark: the session.
        client: makes topics.
        directory: for checkpoints.
        quick: measure less.
    """

    def __init__(
        self, spark: SparkSession, client: LanceClient, directory: Path, *, quick: bool
    ) -> None:
        self._spark = spark
        self._client = client
        self._directory = directory
        self._names = (f"settings-{os.getpid()}-{number}" for number in count())
        self._large_rows = (16 if quick else 128) * MIB // RECORD_BYTES

    def measure_new(self) -> dict[str, float]:
        """Time everything in a session that has run nothing yet."""
        first_s = self._run_query()
        self.measure()
        return {FIRST: first_s, **self.measure()}

    def measure(self) -> dict[str, float]:
        """Time everything once, each in a session that has run something before."""
        source, target = self._make_topic(_ROWS), self._make_topic(0)
        large, copy = self._make_topic(self._large_rows), self._make_topic(0)
        few, many = self._make_rows(_ROWS), self._make_rows(self._large_rows)
        times = {
            NEXT: self._run_query(),
            BATCH: self._run_batches(),
            READ: self._repeat(lambda: self._read(source)),
            WRITE: self._repeat(lambda: self._write(few, target)),
            LARGE_READ: self._read(large),
            LARGE_WRITE: self._write(many, copy),
        }
        for topic in self._client.topics():
            self._client.delete_topic(topic.id)
        return times

    def _repeat(self, call: Callable[[], float]) -> float:
        return median(call() for _ in range(_REPEATS))

    def _make_topic(self, rows: int) -> str:
        topic = next(self._names)
        self._client.create_topic(topic)
        with Producer(self._client, topic) as producer:
            producer.write(make_rows(rows))
        return topic

    def _make_rows(self, rows: int) -> DataFrame:
        return self._spark.range(0, rows, 1, 1).selectExpr(_VALUE)

    def _at(self, topic: str) -> dict[str, str]:
        return {"servers": self._client.config.servers, "topic": topic}

    def _run_query(self) -> float:
        """Time a query with `AvailableNow` from topic to topic, from `load` to its end.

        Its checkpoint is on the disk of the temporary directory.
        """
        source, target = self._make_topic(_ROWS), self._make_topic(0)
        options = {**self._at(source), "startingOffsets": "earliest"}
        start_s = time.perf_counter()
        stream = self._spark.readStream.format("lance").options(**options).load()
        writer = stream.writeStream.format("lance").options(**self._at(target))
        writer = writer.option("checkpointLocation", str(self._directory / target))
        run_to_end(writer.trigger(availableNow=True))
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
                for _ in range(_WARM_BATCHES + _BATCHES):
                    feed.add(_ROWS)
                    drain.wait_for(_ROWS)
                batches = [each for each in query.recentProgress if each.numInputRows]
            finally:
                query.stop()
        times_ms = [each.durationMs["triggerExecution"] for each in batches]
        return median(times_ms[_WARM_BATCHES:]) / 1000

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
    """Measure one session when it is asked to."""
    answers = open_answers()
    with LanceClient(servers) as client, run_session(**json.loads(settings)) as spark:
        session = Session(spark, client, Path(directory), quick=quick == "1")
        answer(answers, {"all": session.measure_new})


if __name__ == "__main__":
    main(*sys.argv[1:])
