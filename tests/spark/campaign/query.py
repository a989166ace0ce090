"""The query that is killed: topic in, a transform, topic out.

    query.py SERVERS DIRECTORY DELIVERY

It starts all that a query needs, and waits for standard input to say `go`.
Says on standard output what becomes of it, one line of JSON for each thing. A query
that has failed is started again from its checkpoint, in the same JVM. When standard
input says `drain` it reads what is left and ends; when that is closed it just ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.engine.session import MASTER, make_settings

# Small pieces: a micro-batch is two tasks or three, and each sends several frames.
READ = {
    "startingOffsets": "earliest",
    "maxPartitionBytes": "64k",
    "fetchBytes": "32k",
}
LIMIT = {"maxBytesPerTrigger": "128k"}
WRITE = {"batchBytes": "8k"}
# The record, and what shows that it is whole.
COLUMNS = ("key", "timestamp", "concat(value, unhex(sha2(value, 256))) value")

FAILURES_MAX = 20
_LOOK_S = 0.2


class Order:
    """What standard input has said last."""

    def __init__(self) -> None:
        self.is_ended = False
        self.is_draining = False
        self.is_going = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self.is_draining = self.is_draining or line == "drain\n"
            self.is_going.set()
        self.is_ended = True
        self.is_going.set()

    @property
    def is_given(self) -> bool:
        """Whether the query has to stop what it does."""
        return self.is_draining or self.is_ended


class Query:
    """A streaming query from topic to topic, started as often as need be."""

    def __init__(
        self, spark: SparkSession, checkpoint: Path, *, servers: str, delivery: str
    ) -> None:
        self._spark = spark
        self._there = {"servers": servers}
        self._checkpoint = str(checkpoint)
        self._delivery = delivery
        self.source, self.target = "in", "out"

    def follow(self, order: Order) -> None:
        """Run it until something else is to be done."""
        query = self._start(LIMIT, {"processingTime": "0 seconds"})
        while not order.is_given and not query.awaitTermination(_LOOK_S):
            pass
        query.stop()

    def drain(self) -> None:
        """Run it until it has read all that is there."""
        self._start({}, {"availableNow": True}).awaitTermination()

    def _start(self, limit: dict[str, str], trigger: dict[str, Any]) -> StreamingQuery:
        reader = self._spark.readStream.format("lance").options(**self._there)
        reader = reader.options(**READ, **limit, topic=self.source)
        frame = reader.load().selectExpr(*COLUMNS)
        writer = frame.writeStream.format("lance").options(**self._there, **WRITE)
        writer = writer.options(topic=self.target, delivery=self._delivery)
        query = writer.option("checkpointLocation", self._checkpoint)
        started = query.trigger(**trigger).start()
        say(event="started", id=started.id)
        return started


def say(**what: Any) -> None:
    """Tell the campaign something."""
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


def run(query: Query, order: Order) -> None:
    """Run a query until it is drained, over all that happens to it."""
    for _ in range(FAILURES_MAX):
        try:
            while not order.is_given:
                query.follow(order)
            if order.is_draining:
                query.drain()
                say(event="drained")
            return
        except (PySparkException, Py4JJavaError) as error:
            say(event="failed", text=str(error))
    raise SystemExit("the query has failed too often")


def main(servers: str, directory: Path, delivery: str) -> None:
    """Run the query in a Spark of its own."""
    order = Order()
    builder = SparkSession.builder.master(MASTER).appName("lance-campaign")
    spark = builder.config(map=make_settings(directory)).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    there = {"servers": servers, "delivery": delivery}
    if not order.is_going.is_set():
        # There is time to have every part of Spark load what it needs.
        first = Query(spark, directory / f"warm-{os.getpid()}", **there)
        first.source, first.target = "warm", "warmed"
        first.drain()
    order.is_going.wait()
    run(Query(spark, directory / "checkpoint", **there), order)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
