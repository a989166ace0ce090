"""`lance-spark demo`: the broker's promises, shown on a million records.

A broker runs as a process of its own. It is killed while a producer sends to it and a
consumer follows, and is started again; what it has acknowledged must be there. Then
everything is read back and compared, Spark reads a topic and writes another, and the
data directory is checked.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import click
import numpy as np
import pyarrow as pa
from crc32c import crc32c

from lance_spark.cli.demo_broker import BrokerProcess
from lance_spark.cli.demo_compare import Comparison
from lance_spark.cli.demo_follower import Follower, Seen
from lance_spark.cli.demo_record import CYCLE, make_records
from lance_spark.cli.demo_spark import has_spark, run_spark
from lance_spark.cli.show.segment import name_type
from lance_spark.cli.text import count, format_bytes, format_rate
from lance_spark.client import LanceClient, Producer, RecordReader, StageWriter
from lance_spark.columnar.decode import decode
from lance_spark.columnar.layout import validate
from lance_spark.errors import LanceError
from lance_spark.store import check_store
from lance_spark.wire.lwp import StageContent

TOPIC = "events"
STAGED = ("orders", "payments")
_STAGED_RECORDS = 1000
_JOB = ("demo", 1)
_COLUMNS = ("type", "key", "value", "timestamp_ns")
_BATCH_RECORDS_MAX = 10_000
# What is sent without a pause just before the kill, so that it hits something.
_HURRY_RECORDS_MAX = 100_000
# A broker that is just being started again is soon there.
_BACKOFF_S_MAX = 0.2


@click.command("demo")
@click.option(
    "--records",
    type=click.IntRange(min=100),
    default=1_000_000,
    show_default=True,
    help="How many records to send.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Keep the data here; must not exist or be empty.",
)
@click.option(
    "--spark/--no-spark",
    "with_spark",
    default=None,
    help="Read and write with Spark too.  [default: if it is installed]",
)
def command(records: int, directory: Path | None, with_spark: bool | None) -> None:
    """Kill a broker under load, start it again, and show that nothing is lost."""
    if with_spark is None:
        with_spark = has_spark()
    with _ended_by_sigterm(), _place(directory) as path:
        kinds = f"{count(records, 'record')} of {len(CYCLE)} types"
        print(f"{kinds}, data in {path}", flush=True)
        with BrokerProcess(path) as broker:
            _run(broker, records, with_spark)
            _say("part", "The broker is stopped, and all of its files are verified.")
            asked = f"asked by signal {signal.SIGTERM:d}"
            _say("stop", f"{asked}, the broker says: {broker.stop()}")
        _check(path)
    kept = "" if directory is None else f"; look around: lance-spark check {path}"
    print(f"all of it as promised{kept}")


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Clean up after SIGTERM as after Ctrl-C."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    usual = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, usual)


@contextmanager
def _place(directory: Path | None) -> Iterator[Path]:
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="lance-demo-") as temporary:
            yield Path(temporary)
        return
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise LanceError(f"{directory}: must not exist or be an empty directory")
    yield directory


def _say(step: str, text: str) -> None:
    """Tell a step and what came of it; the step `part` says what the next ones show."""
    print(text if step == "part" else f"  {step:8} {text}", flush=True)


def _run(broker: BrokerProcess, records: int, with_spark: bool) -> None:
    _say("part", "A broker is killed under load. What it acknowledged has to be there.")
    broker.start()
    _say("broker", f"process {broker.pid} serves {broker.address}")
    with LanceClient(broker.address, backoff_max_s=_BACKOFF_S_MAX) as client:
        client.create_topic(TOPIC)
        with Follower(client, TOPIC) as follower:
            sent = _produce(broker, client, records)
            followed = follower.finish(client.bounds(TOPIC).end)
        read = f"{followed.records:,} records"
        _say("follow", f"a consumer read {read} meanwhile, right through the crash")
        _commit_twice(client, sent.stages)
        _read_back(client, records, sent.acknowledged, followed)
    if with_spark:
        run_spark(broker.address, TOPIC, _say)


class Sent(NamedTuple):
    """What the producer left.

    Args:
        acknowledged: how many records were before the crash.
        stages: what was staged then, and is still to be committed.
    """

    acknowledged: int
    stages: Sequence[StageContent]


def _produce(broker: BrokerProcess, client: LanceClient, records: int) -> Sent:
    """Send all records, with a crash half-way."""
    half = records // 2
    hurry = half + min(records // 4, _HURRY_RECORDS_MAX)
    with Producer(client, TOPIC) as producer:
        began_s = time.perf_counter()
        _write(producer, 0, half, records)
        producer.flush()
        rate = format_rate(half, producer.acked_bytes, time.perf_counter() - began_s)
        _say("produce", f"{half:,} records acknowledged, {rate}")
        stages = _stage(client)
        # Made before, so that they are sent faster than they can be acknowledged.
        for batch in list(_batches(half, hurry, records)):
            producer.write(batch)
        acknowledged, size = producer.acked_records, producer.acked_bytes
        _crash(broker, producer)
        began_s = time.perf_counter()
        _write(producer, hurry, records, records)
        producer.flush()
        seconds = time.perf_counter() - began_s
        rest, size = records - acknowledged, producer.acked_bytes - size
        rate = format_rate(rest, size, seconds)
        _say("produce", f"the other {rest:,} records, {rate}")
        again = count(producer.retried_batches, "batch")
        _say("", f"the producer came back by itself and sent {again} again")
    return Sent(acknowledged, stages)


def _crash(broker: BrokerProcess, producer: Producer) -> None:
    """Kill the broker and start it again."""
    broker.kill()
    _say(
        "crash",
        f"broker killed by signal {signal.SIGKILL:d}: "
        f"{producer.acked_records:,} records acknowledged, "
        f"{producer.pending_records:,} on their way",
    )
    broker.start()
    ready = f"ready in {1000 * broker.start_s:.0f} ms"
    _say("restart", f"process {broker.pid} at the same address, {ready}")
    for note in broker.notes[:2] or ["nothing was torn"]:
        _say("", note)


def _write(producer: Producer, start: int, end: int, total: int) -> None:
    for batch in _batches(start, end, total):
        producer.write(batch)


def _batches(start: int, end: int, total: int) -> Iterator[pa.RecordBatch]:
    step = max(1, min(_BATCH_RECORDS_MAX, total // 40))
    for first in range(start, end, step):
        yield make_records(first, min(first + step, end))


def _stage(client: LanceClient) -> list[StageContent]:
    """Write to two topics what nobody can see before it is committed."""
    stages = []
    for name in STAGED:
        with StageWriter(client, name, *_JOB) as writer:
            writer.write(make_records(0, _STAGED_RECORDS))
            stages.append(writer.finish())
    names = " and ".join(STAGED)
    _say("stage", f"{_STAGED_RECORDS:,} records for {names} each, not committed yet")
    return stages


def _commit_twice(client: LanceClient, stages: Sequence[StageContent]) -> None:
    """Commit to two topics at once, and once more as after a lost answer."""
    first = client.commit_stages(*_JOB, stages)
    again = client.commit_stages(*_JOB, stages)
    ends = [client.locate_end(name).record for name in STAGED]
    if ends != [_STAGED_RECORDS] * len(STAGED) or again.topics != first.topics:
        raise LanceError(f"a commit of {_STAGED_RECORDS} records each left {ends}")
    said = [answer.status.name.lower() for answer in (first, again)]
    _say(
        "commit",
        f"what was staged before the crash: {said[0]}; sent again: {said[1]}, "
        "not doubled",
    )


def _read_back(
    client: LanceClient, records: int, acknowledged: int, followed: Seen
) -> None:
    """Read everything as Arrow and compare it with what was written."""
    stored = client.locate_end(TOPIC).record
    comparison = Comparison(records, stored=stored, acknowledged=acknowledged)
    counts = np.zeros(256, np.int64)
    seen, seconds = Seen(), 0.0
    reader = RecordReader(client, TOPIC, 0)
    began_s = time.perf_counter()
    while (chunk := reader.next_chunk()) is not None:
        rows = decode(chunk.data, columns=_COLUMNS).batch
        # Only reading is measured; what follows is the demo's own doubt.
        seconds += time.perf_counter() - began_s
        comparison.feed(rows)
        counts += np.bincount(rows.column("type").to_numpy(), minlength=256)
        crc = crc32c(chunk.data, seen.crc)
        seen = Seen(seen.records + rows.num_rows, chunk.end, crc)
        began_s = time.perf_counter()
    comparison.finish()
    if seen != followed:
        raise LanceError(
            f"read back: {seen}, but the consumer that followed: {followed}"
        )
    rate = format_rate(seen.records, seen.end, seconds)
    _say("read", f"{seen.records:,} records as Arrow, {rate}")
    names = [f"{name_type(kind)} {counts[kind]:,}" for kind in CYCLE]
    _say("", ", ".join(names[:5]))
    _say("", ", ".join(names[5:]))
    _say("compare", "every record is there and in order, as the consumer saw them")
    _say("", _explain_doubled(comparison.doubled))


def _explain_doubled(doubled: int) -> str:
    if not doubled:
        return "none is there twice"
    return f"{count(doubled, 'record')} twice: stored, but the crash took the answer"


def _check(path: Path) -> None:
    verified = 0

    def add(size: int) -> None:
        nonlocal verified
        verified += size

    findings = check_store(path, framing=validate, progress=add)
    if findings:
        raise LanceError(f"the checker found: {findings[0]}")
    _say("check", f"{format_bytes(verified)} verified, nothing found")
