"""The queries that are killed, all in one Spark: topics in, topics out.

    query.py DIRECTORY HOPS

HOPS are those of `hop` as JSON, the first of them one to warm up with. It starts all
that queries need, and waits for standard input to say `go`.
Says on standard output what becomes of them, one line of JSON for each thing. A query
that has failed is started again from its checkpoint, in the same JVM. When standard
input says `drain` each reads what is left, in their order, and it ends; when that is
closed it just ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.campaign.hop import Hop
from tests.spark.engine.session import MASTER, make_settings

# What a query fails with.
FAILURES = (PySparkException, Py4JJavaError)
FAILURES_MAX = 20
_LOOK_S = 0.2


class Order:
    """What standard input has said last."""

    def __init__(self) -> None:
        self.is_draining = False
        self.is_going = threading.Event()
        # Queries that run are to stop.
        self.is_given = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            if line == "drain\n":
                self.is_draining = True
                self.is_given.set()
            self.is_going.set()
        self.is_given.set()
        self.is_going.set()


class Query:
    """A streaming query from topic to topic, started as often as need be."""

    def __init__(self, spark: SparkSession, checkpoint: Path, hop: Hop) -> None:
        self._spark = spark
        self._checkpoint = str(checkpoint)
        self._hop = hop
        self._running: StreamingQuery | None = None

    def follow(self) -> StreamingQuery:
        """Have it run; raises what it has failed for."""
        if self._running is not None and not self._running.isActive:
            ended, self._running = self._running, None
            ended.awaitTermination(_LOOK_S)
        self._running = self._running or self._start()
        return self._running

    def drain(self) -> None:
        """Have it read all that is there, and end."""
        running = self.follow()
        running.processAllAvailable()
        self.stop()

    def stop(self) -> None:
        """Have it end, where it is."""
        if self._running is not None:
            self._running.stop()

    def _start(self) -> StreamingQuery:
        hop = self._hop
        reader = self._spark.readStream.format(hop.formats[0]).options(**hop.read)
        writer = reader.load().selectExpr(*hop.columns).writeStream
        writer = writer.format(hop.formats[1]).options(**hop.write)
        writer = writer.option("checkpointLocation", self._checkpoint)
        started = writer.trigger(processingTime="0 seconds").start()
        say(event="started", id=started.id)
        return started


def say(**what: Any) -> None:
    """Tell the campaign something."""
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


class Trouble:
    """What queries have failed for so far."""

    def __init__(self) -> None:
        self._count = 0

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Tell of a failure, and go on if there were not too many."""
        try:
            yield
        except FAILURES as error:
            say(event="failed", text=str(error))
            self._count += 1
            if self._count > FAILURES_MAX:
                raise SystemExit("queries have failed too often") from error


def run(queries: list[Query], order: Order) -> None:
    """Run queries until they are drained, over all that happens to them."""
    trouble = Trouble()
    is_first = True
    while is_first or not order.is_given.is_set():
        is_first = False
        for query in queries:
            with trouble.telling():
                query.follow()
        order.is_given.wait(_LOOK_S)
    left = queries if order.is_draining else []
    while left:
        with trouble.telling():
            left[0].drain()
            left = left[1:]
    if order.is_draining:
        say(event="drained")


def main(directory: Path, hops: list[Hop]) -> None:
    """Run the queries in a Spark of their own."""
    order = Order()
    builder = SparkSession.builder.master(MASTER).appName("lance-campaign")
    spark = builder.config(map=make_settings(directory)).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    warm, *hops = hops
    if not order.is_going.is_set():
        # There is time to have every part of Spark load what it needs.
        Query(spark, directory / f"warm-{os.getpid()}", warm).drain()
    order.is_going.wait()
    run([Query(spark, directory / hop.name, hop) for hop in hops], order)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Hop(**given) for given in json.loads(sys.argv[2])])
