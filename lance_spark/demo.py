"""What `lance-spark demo` runs: the promises of broker, client and Spark, shown.

A broker is killed while a producer sends to it and a consumer follows. What it has
acknowledged must be there afterwards. Then Spark reads the topic and writes another,
and a streaming query crashes between its write and Spark's note of it. At the end one
topic is written by one protocol and read by the four others.

This is a program like one of yours: it uses the client, the testing kit and Spark by
their public names only. Read it from the end.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lance_spark.client import (
    Consumer,
    LanceClient,
    Producer,
    StageContent,
    StageWriter,
    connect,
)
from lance_spark.errors import LanceError
from lance_spark.quantity import format_rate
from lance_spark.store import check_store
from lance_spark.testing import BrokerProcess
from lance_spark.wire.lwp import validate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Numbers = NDArray[np.int64]

TOPIC, STAGED = "events", ("orders", "payments")
SOURCE, TARGET, USERS = "clicks", "squares", "users"
SHARED, WRITER, READERS = "visits", "fluvio", ("lance", "rustlog", "kimberlite", "tank")
_JOB = ("demo", 1)
_STAGED_RECORDS = _SHARED_RECORDS = 1000
_BATCH_RECORDS = 10_000
_COLUMNS = ("key", "value", "timestamp_ns")
_DIGITS = 12
_STREAM_RECORDS, _FIRST_RECORDS = 160_000, 1000
_HEADS = ("produced", "written", "records/s", "lag", "batch")
_STREAM_RECORDS_PER_S = 20_000
# How often a line says how far the streaming query is.
_LOOK_S = 1.5
# The streaming query is crashed when it has written so much of all records.
_CRASH_AT = 0.4
# A busy machine takes a while to start processes.
_DEADLINE_S = 180.0


def tell(step: str, text: str) -> None:
    """Print a step and what came of it."""
    print(f"  {step:8} {text}", flush=True)


def took(records: int, size: int, began_s: float) -> str:
    """Write how long something took and how much that is per second."""
    return format_rate(records, size, time.perf_counter() - began_s)


# Records: a function of their numbers, so that every reader can check them.


def make_records(numbers: Numbers) -> pa.RecordBatch:
    """Make records: every other one has a key, and every third one a timestamp."""
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), _DIGITS, "0")
    text = " GET /items HTTP/1.1, a line of a log"
    keys = pc.binary_join_element_wise("user-", pc.utf8_slice_codeunits(digits, -2), "")
    stamps = pa.array(1_700_000_000_000_000_000 + numbers * 1_000_003)
    return pa.record_batch(
        {
            "key": _only(numbers % 2 == 0, keys.cast(pa.binary())),
            "value": pc.binary_join_element_wise(digits, text, "").cast(pa.binary()),
            "timestamp_ns": _only(numbers % 3 == 0, stamps),
        }
    )


def _only(valid: NDArray[np.bool_], column: pa.Array) -> pa.Array:
    return pc.if_else(pa.array(valid), column, pa.scalar(None, column.type))


def read_numbers(client: LanceClient, topic: str) -> Numbers:
    """Read a topic to its end; check each record, and give their numbers in order.

    Raises:
        LanceError: a record is not what was written.
    """
    found = [np.zeros(0, np.int64)]
    with Consumer(client, topic) as consumer:
        for rows in consumer.batches(_COLUMNS):
            heads = pc.binary_slice(rows.column("value"), 0, _DIGITS).cast(pa.string())
            numbers = heads.cast(pa.int64()).to_numpy()
            if not rows.equals(make_records(numbers)):
                between = f"{numbers[0]} to {numbers[-1]}"
                raise LanceError(f"one of the records {between} was changed")
            found.append(numbers)
    return np.concatenate(found)


def compare(numbers: Numbers, records: int, *, acknowledged: int) -> int:
    """Check that the records [0, records) are there, in order; count those twice.

    After a crash a producer sends again what had no answer. Some of that may have been
    stored, so that the records [0, a) are followed by [b, records) with b below a.

    Raises:
        LanceError: one is missing, out of order, or twice though it had an answer.
    """
    found, first, times = np.unique(numbers, return_index=True, return_counts=True)
    missing = records - len(found)
    if missing or (records and found[-1] != records - 1):
        raise LanceError(f"{records:,} records were acknowledged, {missing:,} are lost")
    if (np.diff(first) < 0).any():
        raise LanceError("the records are not in the order in which they were sent")
    again = found[times > 1]
    if len(again) and again[0] < acknowledged:
        raise LanceError(f"record {again[0]} was acknowledged, and was stored twice")
    return len(numbers) - records


# The broker.


def crash_broker(broker: BrokerProcess, records: int) -> None:
    """Send records, kill the broker half-way, and look at what is there afterwards."""
    print("A broker is killed under load. What it acknowledged has to be there.")
    tell("broker", f"process {broker.pid} serves {broker.address}")
    is_sent = threading.Event()
    with (
        # A broker that is just being started again is soon there.
        LanceClient(broker.address, backoff_max_s=0.2) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        client.create_topic(TOPIC)
        follower = pool.submit(_follow, client, is_sent)
        try:
            stages, acknowledged = _produce(broker, client, records)
        finally:
            is_sent.set()
        followed = follower.result(_DEADLINE_S)
        tell("follow", f"a consumer read {followed:,} records, right through the crash")
        _commit_twice(client, stages)
        began_s = time.perf_counter()
        numbers = read_numbers(client, TOPIC)
        pace = took(len(numbers), client.bounds(TOPIC).end, began_s)
        tell("read", f"{len(numbers):,} records as Arrow, each compared, {pace}")
    if len(numbers) != followed:
        raise LanceError(f"{len(numbers)} records are there, {followed} were followed")
    doubled = compare(numbers, records, acknowledged=acknowledged)
    tell("compare", "every record is there and in order, as the consumer saw them")
    why = "stored, but the crash took the answer"
    tell("", f"{doubled:,} records twice: {why}" if doubled else "none is there twice")


def _follow(client: LanceClient, is_sent: threading.Event) -> int:
    """Read a topic as it grows, through the crash of its server; count the records."""
    records = 0
    with Consumer(client, TOPIC) as consumer:
        while True:
            # Asked before the fetch, which then has all that was sent.
            is_last = is_sent.is_set()
            found = consumer.poll_blocking(0.0 if is_last else 0.1)
            records += len(found)
            if is_last and found.is_empty:
                return records


def _produce(
    broker: BrokerProcess, client: LanceClient, records: int
) -> tuple[list[StageContent], int]:
    """Send all records, with a crash half-way.

    Returns:
        What was staged before the crash, and how many records had an answer then.
    """
    step = min(_BATCH_RECORDS, max(1, records // 40))
    starts = range(0, records, step)
    half = len(starts) // 2

    def make(start: int) -> pa.RecordBatch:
        return make_records(np.arange(start, min(start + step, records)))

    with Producer(client, TOPIC) as producer:
        began_s = time.perf_counter()
        for start in starts[:half]:
            producer.write(make(start))
        producer.flush()
        done, size = producer.acked_records, producer.acked_bytes
        tell("produce", f"{done:,} records acknowledged, {took(done, size, began_s)}")
        stages = _stage(client)
        # Made before, so that they are sent faster than they can be acknowledged.
        for rows in [make(start) for start in starts[half : half + 10]]:
            producer.write(rows)
        acknowledged, size = producer.acked_records, producer.acked_bytes
        _kill_and_restart(broker, producer)
        began_s = time.perf_counter()
        for start in starts[half + 10 :]:
            producer.write(make(start))
        producer.flush()
        rest, size = records - acknowledged, producer.acked_bytes - size
        tell("produce", f"the other {rest:,} records, {took(rest, size, began_s)}")
        again = producer.retried_batches
        tell("", f"the producer came back by itself and sent {again} batches again")
    return stages, acknowledged


def _kill_and_restart(broker: BrokerProcess, producer: Producer) -> None:
    broker.kill()
    done, left = producer.acked_records, producer.pending_records
    killed = f"broker killed by signal {signal.SIGKILL:d}"
    tell("crash", f"{killed}: {done:,} records acknowledged, {left:,} on their way")
    noted, began_s = len(broker.said), time.perf_counter()
    broker.start()
    ready = f"ready in {1000 * (time.perf_counter() - began_s):.0f} ms"
    tell("restart", f"process {broker.pid} at the same address, {ready}")
    for line in broker.said[noted:].splitlines()[:2] or ["nothing was torn"]:
        tell("", line.removeprefix("lance-spark: warning: "))


def _stage(client: LanceClient) -> list[StageContent]:
    """Write to two topics what no reader can see before it is committed."""
    stages = []
    for name in STAGED:
        with StageWriter(client, name, *_JOB) as writer:
            writer.write(make_records(np.arange(_STAGED_RECORDS)))
            stages.append(writer.finish())
    names = " and ".join(STAGED)
    tell("stage", f"{_STAGED_RECORDS:,} records for {names} each, not committed yet")
    return stages


def _commit_twice(client: LanceClient, stages: list[StageContent]) -> None:
    """Commit to two topics at once, and once more as after a lost answer."""
    first = client.commit_stages(*_JOB, stages).status.name.lower()
    again = client.commit_stages(*_JOB, stages).status.name.lower()
    for name in STAGED:
        found = read_numbers(client, name)
        compare(found, _STAGED_RECORDS, acknowledged=_STAGED_RECORDS)
    tell("commit", f"what was staged before: {first}; sent again: {again}, not doubled")


# Spark, in batches.


@contextmanager
def start_spark(directory: Path) -> Iterator[SparkSession]:
    """Start a local Spark, of which only this program prints something."""
    from lance_spark.spark.local import run_session

    tell("spark", "starts a JVM, and with the first query its Python workers")
    began_s = time.perf_counter()
    with ExitStack() as stack:
        # The JVM keeps the standard error that it is started with.
        usual = os.dup(2)
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        try:
            spark = stack.enter_context(run_session(directory / "spark"))
        finally:
            os.dup2(usual, 2)
            os.close(usual)
        seconds = time.perf_counter() - began_s
        cores = "two cores of this machine"
        tell("spark", f"{spark.version}, {cores}, up in {seconds:.0f} s")
        yield spark


def run_batches(spark: SparkSession, servers: str) -> None:
    """Read a topic, write what comes of it twice, and compare."""
    from pyspark.sql import functions as F

    def read(topic: str) -> DataFrame:
        options = {"servers": servers, "topic": topic, "minPartitions": "4"}
        return spark.read.format("lance").options(**options).load()

    # The first query starts Spark's Python workers, which takes most of its time.
    for number in ("first", "then"):
        began_s = time.perf_counter()
        by_task = read(TOPIC).groupBy(F.spark_partition_id()).count().collect()
        records, seconds = sum(row[1] for row in by_task), time.perf_counter() - began_s
        rows = f"{records:,} records of {TOPIC!r} in {len(by_task)} tasks"
        pace = f"{number} {seconds:.1f} s, {records / seconds:,.0f} records/s"
        tell("read", f"{rows}, {pace}")
    users = (
        read(TOPIC)
        .where("key is not null")
        .groupBy("key")
        .agg(F.count("*").alias("events"), F.max("offset").alias("last"))
        .select("key", F.to_json(F.struct("events", "last")).alias("value"))
        .localCheckpoint()
    )
    job = {"txnAppId": "demo", "txnVersion": "1"}
    for outcome in ("exactly once", "sent again, and nothing doubled"):
        writer = users.write.format("lance").options(servers=servers, topic=USERS)
        writer.options(**job).mode("append").save()
        written = read(USERS).select("key", F.col("value").cast("string"))
        if written.exceptAll(users).count() or users.exceptAll(written).count():
            raise LanceError(f"topic {USERS!r} holds other rows than were written")
        rows = f"{written.count():,} users and their counts into {USERS!r}"
        tell("write", f"{rows}, {outcome}")


# Spark, as a stream.


class Feed:
    """Produces numbers whenever it is asked: a few, and after `start` those then due.

    Args:
        producer: takes them.
        records: how many there are.
    """

    def __init__(self, producer: Producer, records: int) -> None:
        self.records = records
        self.produced = 0
        self._producer = producer
        self._began_s: float | None = None

    def start(self) -> None:
        """Go on at a steady pace."""
        self._began_s = time.monotonic()

    def produce(self) -> None:
        """Send what is due."""
        seconds = 0.0 if self._began_s is None else time.monotonic() - self._began_s
        due = _FIRST_RECORDS + int(seconds * _STREAM_RECORDS_PER_S)
        numbers = range(self.produced, min(due, self.records))
        if numbers:
            keys = [b"user %d" % (number % 200) for number in numbers]
            values = [b"%d" % number for number in numbers]
            self._producer.write(pa.table({"key": keys, "value": values}))
            self._producer.flush()
            self.produced = numbers.stop


def follow(
    client: LanceClient, feed: Feed, query: StreamingQuery, *, until: int
) -> None:
    """Print how far a query is now and then, until the target has so many records.

    Raises:
        LanceError: that takes too long.
        StreamingQueryException: the query fails.
    """
    tell("live", "".join(f"{head:>12}" for head in _HEADS))
    began_s = printed_s = time.monotonic()
    before = client.locate_end(TARGET).record
    while True:
        feed.produce()
        now_s, written = time.monotonic(), client.locate_end(TARGET).record
        behind, batch = read_progress(query)
        # Spark tells of a batch a moment after it was written.
        is_done = written >= until and not (until == feed.records and behind)
        if is_done or now_s - printed_s > _LOOK_S:
            speed = (written - before) / max(now_s - printed_s, 0.1)
            lag = "-" if behind is None else f"{behind / 1000:,.1f} kB"
            cells = (f"{feed.produced:,}", f"{written:,}", f"{speed:,.0f}", lag, batch)
            tell("", "".join(f"{cell:>12}" for cell in cells))
            printed_s, before = now_s, written
        if is_done:
            return
        if not query.isActive:
            query.awaitTermination()  # Raises what the query has failed with.
        if now_s - began_s > _DEADLINE_S:
            raise LanceError(f"{written:,} of {until:,} records, then nothing more")
        time.sleep(0.1)


def read_progress(query: StreamingQuery) -> tuple[int | None, str]:
    """Give how many bytes Spark's newest batch left behind it, and its number."""
    last = query.lastProgress
    if last is None:
        return None, "-"
    progress = json.loads(last.json)
    latest = progress["sources"][0]["latestOffset"] or {"topics": {}}
    behind = latest["topics"].get(SOURCE, {}).get("bytesBehind")
    return behind, str(progress["batchId"])


def run_stream(
    spark: SparkSession, servers: str, directory: Path, records: int = _STREAM_RECORDS
) -> None:
    """Follow a growing topic with a query, crash it, go on, and compare."""
    checkpoint = directory / "checkpoint"

    def start() -> StreamingQuery:
        stream = spark.readStream.format("lance").schema("key binary, value string")
        stream = stream.options(servers=servers, topic=SOURCE, minPartitions=2)
        stream = stream.options(startingOffsets="earliest", maxBytesPerTrigger="512k")
        square = "concat(value, ' ', pow(CAST(value AS BIGINT), 2)::BIGINT) AS value"
        query = stream.load().selectExpr("key", square).writeStream.format("lance")
        query = query.options(servers=servers, topic=TARGET)
        return query.option("checkpointLocation", str(checkpoint)).start()

    with (
        LanceClient(servers) as client,
        Producer(client, SOURCE, create_topic=True) as producer,
    ):
        pace = f"{records:,} records at {_STREAM_RECORDS_PER_S:,} a second"
        tell("stream", f"{SOURCE!r} -> Spark -> {TARGET!r}, {pace}")
        for topic in (SOURCE, TARGET):
            client.ensure_topic(topic)  # Both are asked before they are written to.
        feed, query = Feed(producer, records), start()
        # The first records start Spark's Python processes, which takes seconds.
        follow(client, feed, query, until=1)
        feed.start()
        follow(client, feed, query, until=int(records * _CRASH_AT))
        batch = forget_last_batch(query, checkpoint)
        lost = f"what Spark knows of batch {batch} is lost"
        tell("crash", f"the query is stopped, and {lost}: did it get written?")
        query = start()
        tell("restart", f"from its checkpoint, so that batch {batch} is run again")
        follow(client, feed, query, until=records)
        query.stop()
        out = check_squares(client, records)
    tell("compare", f"{records:,} records in, {out:,} out: each once, and in order")


def forget_last_batch(query: StreamingQuery, checkpoint: Path) -> int:
    """Stop a query, and take away Spark's note that its last batch is done."""
    query.stop()
    names = [path.name for path in (checkpoint / "offsets").iterdir()]
    last = max(int(name) for name in names if name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    return last


def check_squares(client: LanceClient, records: int) -> int:
    """Check with the client that each number is there once, with its square.

    Raises:
        LanceError: one is missing, doubled, changed or out of order.
    """
    with Consumer(client, TARGET) as consumer:
        batches = list(consumer.batches(("value",)))
    values = [value for rows in batches for value in rows["value"].to_pylist()]
    found = np.array(b" ".join(values).split(), np.int64).reshape(-1, 2)
    compare(found[:, 0], records, acknowledged=records)
    if (found[:, 0] ** 2 != found[:, 1]).any():
        raise LanceError(f"the records of {TARGET!r} were changed")
    return len(found)


# One log, five protocols.


def share_log(broker: BrokerProcess) -> None:
    """Write a topic by one protocol, and read it by each of the others.

    Raises:
        LanceError: one of them reads something else than was written.
    """
    print(f"One log, five protocols: written by {WRITER}, read by the other four.")
    rows = make_records(np.arange(_SHARED_RECORDS))
    with connect(f"{WRITER}://{broker.address_of(WRITER)}") as client:
        client.append(SHARED, rows, create=True)
        (bounds,) = client.bounds(SHARED).values()
        where = f"{SHARED!r} at positions {bounds.start} to {bounds.end - 1}"
        tell("write", f"{WRITER:10} {rows.num_rows:,} records to {where}")
    for name in READERS:
        with connect(f"{name}://{broker.address_of(name)}") as client:
            found = pa.Table.from_batches(client.read(SHARED))
            carried = [column for column in found.column_names if column in _COLUMNS]
            if found.select(carried) != pa.Table.from_batches([rows]).select(carried):
                raise LanceError(f"{name} does not read what {WRITER} has written")
            positions = found["offset"].to_pylist()
            where = f"at positions {positions[0]:,} to {positions[-1]:,}"
            tell("read", f"{name:10} {' and '.join(carried)} of all, {where}")


# All of it.


def run(directory: Path, records: int, *, with_spark: bool) -> None:
    """Show everything, with the data in a directory.

    Raises:
        LanceError: a promise was not kept.
    """
    data = directory / "data"
    print(f"{records:,} records, data in {data}", flush=True)
    listeners = {n: "127.0.0.1:0" for n in (WRITER, *READERS) if n != "lance"}
    with BrokerProcess(data, **listeners) as broker:
        crash_broker(broker, records)
        if with_spark:
            print("Spark reads the topic in parallel, and writes another exactly once.")
            with start_spark(directory) as spark:
                run_batches(spark, broker.address)
                print("A stream crashes between a write and Spark's note of it.")
                run_stream(spark, broker.address, directory)
        share_log(broker)
        print("The broker is stopped, and all of its files are verified.")
        tell(
            "stop", f"asked by signal {signal.SIGTERM:d}, it ends with {broker.stop()}"
        )
    sizes: list[int] = []
    findings = check_store(data, framing=validate, progress=sizes.append)
    if findings:
        raise LanceError(f"the checker found: {findings[0]}")
    tell("check", f"{sum(sizes) / 1e6:.1f} MB verified, nothing found")
