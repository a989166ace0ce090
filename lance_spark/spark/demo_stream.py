"""The streaming part of `lance-spark demo`: a topic becomes another while it grows.

A producer appends at a steady pace, and a query follows it. The query is stopped in the
middle, and Spark's note that its last batch is done is taken away, as if all had died
right after that batch was written. What the query has written in the end is compared
with what was produced, without Spark.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from lance_spark.client import LanceClient, Producer, RecordReader
from lance_spark.columnar.decode import decode
from lance_spark.errors import TopicNotFound

Say = Callable[[str, str], None]
# Takes what is shown while it changes: names and numbers.
Show = Callable[[dict[str, Any]], None]

SOURCE = "clicks"
TARGET = "squares"
# What the target has of a number: the number itself, and what Spark has made of it.
_TRANSFORM = "concat(value, ' ', pow(CAST(value AS BIGINT), 2)::BIGINT) AS value"
_RECORDS = 160_000
_RECORDS_PER_S = 20_000
_BATCH_RECORDS = 1000
_USERS = 200
# Small enough that a backlog takes several batches, which is what one wants to see.
_TRIGGER_BYTES = "512k"
# The query is stopped when it has written so much of all records.
_CRASH_AT = 0.4
_LOOK_S = 0.1
_RATE_S = 2.0
# A busy machine takes a while to start processes.
_DEADLINE_S = 120.0


def run(
    spark: SparkSession,
    servers: str,
    directory: Path,
    say: Say,
    *,
    show: Show,
    records: int = _RECORDS,
) -> None:
    """Produce, transform, crash, go on, and compare.

    Args:
        spark: a session.
        servers: the broker's address.
        directory: where the query's checkpoint goes.
        say: tells a step and what came of it.
        show: shows how far it is.
        records: how many there are to be.

    Raises:
        ValueError: a record is lost, doubled or changed.
        TimeoutError: it does not come to an end.
    """
    with LanceClient(servers) as client:
        client.create_topic(SOURCE)
        say(
            "stream",
            f"{SOURCE!r} -> Spark -> {TARGET!r}, {records:,} records at "
            f"{_RECORDS_PER_S:,} a second",
        )
        with Feed(servers, records) as feed:
            live = Live(client, feed, show)
            query = start(spark, servers, directory)
            # The first records start Spark's Python processes, which takes seconds.
            live.follow(query, until=1)
            feed.go()
            live.follow(query, until=int(records * _CRASH_AT))
            batch = crash(query, directory)
            say(
                "crash",
                f"the query is stopped, and what Spark knows of batch {batch} is lost: "
                "did it get written?",
            )
            query = start(spark, servers, directory)
            say("restart", f"from its checkpoint, so that batch {batch} is run again")
            live.follow(query, until=records)
            query.stop()
            feed.check()
        numbers = read_numbers(client)
    compare(numbers, records)
    say(
        "compare",
        f"{records:,} records in, {len(numbers):,} out: each once, none lost, in order",
    )


def start(spark: SparkSession, servers: str, directory: Path) -> StreamingQuery:
    """Start the query, from its checkpoint if there is one."""
    rows = (
        spark.readStream.format("lance")
        .options(servers=servers, topic=SOURCE, startingOffsets="earliest")
        .options(maxBytesPerTrigger=_TRIGGER_BYTES, minPartitions=2)
        .schema("key binary, value string")
        .load()
    )
    return (
        rows.selectExpr("key", _TRANSFORM)
        .writeStream.format("lance")
        .options(servers=servers, topic=TARGET)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )


def crash(query: StreamingQuery, directory: Path) -> int:
    """Stop a query and make Spark forget that its last batch is done; say which."""
    query.stop()
    checkpoint = directory / "checkpoint"
    offsets = (checkpoint / "offsets").iterdir()
    last = max(int(path.name) for path in offsets if path.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    return last


class Feed:
    """Produces numbers from 0 on, in a thread of its own: some, then at a steady pace.

    Args:
        servers: the broker's address.
        records: how many numbers.
    """

    def __init__(self, servers: str, records: int) -> None:
        self.produced = 0
        self._servers = servers
        self.records = records
        self._error: Exception | None = None
        self._may_go = threading.Event()
        self._is_ended = False
        self._thread = threading.Thread(target=self._run, name="demo-feed", daemon=True)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ended = True
        self._may_go.set()
        self._thread.join()

    def go(self) -> None:
        """Produce the others, too, where it was only the first ones before."""
        self._may_go.set()

    def check(self) -> None:
        """Raise what the thread has met."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with (
                LanceClient(self._servers) as client,
                Producer(client, SOURCE) as producer,
            ):
                self._produce(producer)
        except Exception as error:
            self._error = error

    def _produce(self, producer: Producer) -> None:
        began_s = time.monotonic()
        for first in range(0, self.records, _BATCH_RECORDS):
            if first == _BATCH_RECORDS:
                self._may_go.wait(_DEADLINE_S)
                began_s = time.monotonic()
            time.sleep(max(0.0, began_s + first / _RECORDS_PER_S - time.monotonic()))
            if self._is_ended:
                return
            end = min(first + _BATCH_RECORDS, self.records)
            numbers = range(first, end)
            rows = {
                "key": [b"user %d" % (number % _USERS) for number in numbers],
                "value": [b"%d" % number for number in numbers],
            }
            producer.write(pa.table(rows))
            producer.flush()
            self.produced = end


class Live:
    """Shows how far a query is, over and over.

    Args:
        client: asks the broker what is written.
        feed: what produces.
        show: shows it.
    """

    def __init__(self, client: LanceClient, feed: Feed, show: Show) -> None:
        self._client = client
        self._feed = feed
        self._show = show
        self._looks: deque[tuple[float, int]] = deque()
        self._deadline_s = time.monotonic() + _DEADLINE_S

    def follow(self, query: StreamingQuery, *, until: int) -> None:
        """Show it until the target has so many records; all: until none is behind.

        Raises:
            TimeoutError: that takes too long.
            StreamingQueryException: the query fails.
        """
        self._looks.clear()
        while True:
            written = count_records(self._client, TARGET)
            self._feed.check()
            numbers = self._describe(query, written)
            self._show(numbers)
            # Spark tells of a batch a moment after it was written.
            is_behind = written == self._feed.records and numbers["behind_bytes"]
            if written >= until and not is_behind:
                return
            if not query.isActive:
                # Raises what the query has failed with.
                query.awaitTermination()
            if time.monotonic() > self._deadline_s:
                raise TimeoutError(
                    f"{written:,} of {until:,} records are written after "
                    f"{_DEADLINE_S:.0f} s"
                )
            time.sleep(_LOOK_S)

    def _describe(self, query: StreamingQuery, written: int) -> dict[str, Any]:
        now_s = time.monotonic()
        self._looks.append((now_s, written))
        while now_s - self._looks[0][0] > _RATE_S:
            self._looks.popleft()
        then_s, before = self._looks[0]
        rate = (written - before) / max(now_s - then_s, _LOOK_S)
        return {
            "produced": self._feed.produced,
            "written": written,
            "rate": round(rate),
            **read_progress(query),
        }


def read_progress(query: StreamingQuery) -> dict[str, Any]:
    """Say what Spark tells of the newest batch, and how far behind it is."""
    last = query.lastProgress
    if last is None:
        return {"batch": None, "behind_bytes": None}
    progress = json.loads(last.json)
    latest = progress["sources"][0]["latestOffset"] or {"topics": {}}
    lag = latest["topics"].get(SOURCE, {})
    return {"batch": progress["batchId"], "behind_bytes": lag.get("bytesBehind")}


def count_records(client: LanceClient, topic: str) -> int:
    """Count what a topic has; one that is not there has nothing."""
    try:
        return client.locate_end(topic).record
    except TopicNotFound:
        return 0


def read_numbers(client: LanceClient) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Read the target with the client; two columns, the number and its square."""
    texts = []
    reader = RecordReader(client, TARGET, 0)
    while (chunk := reader.next_chunk()) is not None:
        values = decode(chunk.data, columns=("value",)).batch.column("value")
        texts.append(b" ".join(values.to_pylist()))
    numbers = np.array(b" ".join(texts).split(), dtype=np.int64)
    return numbers.reshape(-1, 2)


def compare(numbers: np.ndarray[Any, np.dtype[np.int64]], records: int) -> None:
    """Check that each number is there once, in order, with its square.

    Raises:
        ValueError: it is not so.
    """
    seen, counts = np.unique(numbers[:, 0], return_counts=True)
    if len(seen) != records or len(numbers) != records:
        lost, doubled = records - len(seen), int((counts > 1).sum())
        raise ValueError(
            f"{records:,} records were produced and {len(numbers):,} are in "
            f"{TARGET!r}: {lost:,} are lost, {doubled:,} are there more than once"
        )
    expected = np.arange(records)
    if not np.array_equal(numbers, np.stack([expected, expected**2], axis=1)):
        raise ValueError(f"the records of {TARGET!r} are not in order, or changed")
