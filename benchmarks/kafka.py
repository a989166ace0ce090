"""Spark with Kafka and with `lance`: the same rows, session and disk, in turns.

python -m benchmarks.kafka             measure; rewrites its table and picture
python -m benchmarks.kafka --quick     rough figures; the docs are left alone

It is no part of `make bench`, as it fetches Kafka and, where the installed PySpark has
no Kafka source yet, another PySpark; all of it stays in .build/kafka. Both brokers are
processes of their own on this machine, with their files below the temporary directory.
Each keeps its defaults: ours syncs before it acknowledges, Kafka's does not.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks._kafka_setup import BROKER_VERSION, Kafka, prepare, run_kafka
from benchmarks._kafka_side import (
    TUNED_SINK,
    TUNED_SOURCE,
    KafkaCluster,
    KafkaSide,
    LanceSide,
    Side,
)
from benchmarks._session import run_broker, run_session
from benchmarks._stream_lane import PATIENCE_S, run_to_end
from benchmarks._turns import MIB, Took, measure, time_call, touch_memory
from benchmarks.plot import draw_pictures
from benchmarks.report import (
    DOCS,
    Report,
    format_ms,
    format_rate,
    format_ratio,
    format_s,
    write_tables,
)
from lance_spark.client import LanceClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Topics = Mapping[Side, str]

SIDES = ("`lance`", "Kafka", "tuned Kafka")
TITLE = "Records per second, or the time of one"

_SMALL_ROWS = 1000
# Small things are over soon, so that more of them can be measured.
_SMALL_REPEATS = 4
# A stream has five million rows of 100 bytes where other things have 256 MiB.
_STREAM_ROW_BYTES = 256 * MIB / 5e6
_VALUE_BYTES = {"100 bytes": 100, "1 KB": 1000, "10 KB": 10_000}
# Ratios that differ from 1 by less say nothing.
_ALIKE = 0.05
# Of each query: the first micro-batches are slower, as processes start.
_WARM_BATCHES, _BATCHES = 5, 20
# Spark's own measure of a task.
_TASK_BYTES = 128 * MIB


@dataclass(frozen=True)
class Line:
    """One thing that was measured of all sides.

    Attributes:
        what: its name.
        took: by side.
        rows: how many there were, or None where the time is of interest and not a rate.
    """

    what: str
    took: Mapping[str, Took]
    rows: int | None = None

    def list_speeds(self) -> list[str]:
        """Write what each side has, and how many times as fast the first one is."""
        ours, *others = (self.took[side].wall_s for side in SIDES)
        speeds = [self._format(wall_s) for wall_s in (ours, *others)]
        return [self.what, *speeds, *(format_ratio(each / ours) for each in others)]

    def list_seconds(self) -> list[str]:
        """Write what each side took by the clock, and of processors."""
        took = [self.took[side] for side in SIDES]
        return [self.what, *(format_s(s) for x in took for s in (x.wall_s, x.cpu_s))]

    def _format(self, wall_s: float) -> str:
        if self.rows is None:
            return format_ms(wall_s)
        return format_rate(self.rows / wall_s)


def describe(lines: Sequence[Line], other: str) -> str:
    """Say in words where `lance` is ahead of another side, and where it is behind."""
    found: dict[str, list[str]] = {"ahead": [], "behind": [], "as fast": []}
    for line in lines:
        ratio = line.took[other].wall_s / line.took[SIDES[0]].wall_s
        where = "ahead" if ratio > 1 + _ALIKE else "behind"
        found["as fast" if abs(ratio - 1) <= _ALIKE else where].append(line.what)
    said = [
        f"{where} in {len(each)} of {len(lines)} ({'; '.join(each)})"
        for where, each in found.items()
        if each
    ]
    return f"- To {other}, {SIDES[0]} is {', '.join(said)}."


def add_tables(report: Report, lines: Sequence[Line]) -> None:
    """Write what was measured."""
    report.add_text("\n".join(describe(lines, side) for side in reversed(SIDES[1:])))
    ratios = [f"to {side}" for side in SIDES[1:]]
    report.add_table(
        ["", *SIDES, *ratios],
        [line.list_speeds() for line in lines],
        f"{TITLE}; ratios say how many times as fast `lance` is:",
    )
    heads = [head for side in SIDES for head in (side, "CPU")]
    report.add_table(
        ["", *heads],
        [line.list_seconds() for line in lines],
        "Seconds by the clock, and of processors: Spark, its workers and both brokers:",
    )


class Bench:
    """Measures all sides.

    Args:
        spark: the session.
        sides: by name.
        directory: for checkpoints.
        size: of what is read and written, in bytes of values.
        rounds: how often.
    """

    def __init__(
        self,
        spark: SparkSession,
        sides: Mapping[str, Side],
        directory: Path,
        *,
        size: int,
        rounds: int,
    ) -> None:
        self._spark = spark
        self._sides = sides
        self._directory = directory
        self._size = size
        self._rounds = rounds
        self._names = (f"bench-{number}" for number in count())

    def run(self) -> list[Line]:
        """Measure everything; small things come first, as they warm up the rest."""
        with self._fill(100, _SMALL_ROWS) as topics:
            small = [self._read(f"read of {_SMALL_ROWS} rows", topics)]
        small.append(self._write(f"write of {_SMALL_ROWS} rows", 100))
        small.append(self._run_lanes())
        with self._fill(100, rows := round(self._size / _STREAM_ROW_BYTES)) as topics:
            stream = self._catch_up(topics, rows)
        reads, writes = [], []
        for what, value_bytes in _VALUE_BYTES.items():
            rows = self._size // value_bytes
            with self._fill(value_bytes, rows) as topics:
                reads.append(self._read(f"read, all columns, {what}", topics, rows))
                if value_bytes == 100:
                    reads.append(self._read_values(what, topics, rows))
            writes.append(self._write(f"write, {what}", value_bytes, rows))
        return [*reads, *writes, stream, *small]

    # Batches.

    def _read(self, what: str, topics: Topics, rows: int | None = None) -> Line:
        def read(side: Side) -> Took:
            return time_call(lambda: self._discard(side.load(topics[side])))

        return self._compare(what, read, rows)

    def _read_values(self, what: str, topics: Topics, rows: int) -> Line:
        def read(side: Side) -> Took:
            return time_call(lambda: self._discard(side.load_values(topics[side])))

        return self._compare(f"read, `value` only, {what}", read, rows)

    def _write(self, what: str, value_bytes: int, rows: int | None = None) -> Line:
        frame = self._make_rows(value_bytes, rows or _SMALL_ROWS)

        def write(side: Side) -> Took:
            topic = next(self._names)
            side.create(topic)
            took = time_call(lambda: self._append(side, topic, frame))
            # What it takes to delete a topic is no part of it, and disks are finite.
            side.delete(topic)
            return took

        return self._compare(what, write, rows)

    # Streams.

    def _catch_up(self, topics: Topics, rows: int) -> Line:
        def catch_up(side: Side) -> Took:
            with self._make_directory() as checkpoint:
                stream = side.load_stream(topics[side]).writeStream.format("noop")
                stream = stream.option("checkpointLocation", checkpoint)
                return time_call(lambda: drain(stream.trigger(availableNow=True)))

        def drain(stream: DataStreamWriter) -> None:
            query = run_to_end(stream)
            assert sum(each["numInputRows"] for each in query.recentProgress) == rows

        what = f"stream of {format_rate(rows)} rows, `AvailableNow`"
        return self._compare(what, catch_up, rows)

    def _run_lanes(self) -> Line:
        what = f"micro-batch of {_SMALL_ROWS} rows, topic to topic"
        return self._compare(what, self._run_lane, repeats=1)

    def _run_lane(self, side: Side) -> Took:
        """Run a query from topic to topic; give the medians of its micro-batches."""
        source, target = next(self._names), next(self._names)
        side.create(source)
        side.create(target)
        stream = side.load_stream(source).select("key", "value").writeStream
        with side.open_feed(source) as add, self._make_directory() as checkpoint:
            options = {**side.make_sink(target), "checkpointLocation": checkpoint}
            query = stream.format(side.format).options(**options).start()
            try:
                cpus_s = []
                for _ in range(_WARM_BATCHES + _BATCHES):
                    add(_SMALL_ROWS)
                    with give_up_with(query.stop):
                        cpus_s.append(time_call(query.processAllAvailable).cpu_s)
                batches = [
                    each for each in query.recentProgress if each["numInputRows"]
                ]
            finally:
                query.stop()
        side.delete(source)
        side.delete(target)
        assert [each["numInputRows"] for each in batches] == [_SMALL_ROWS] * len(cpus_s)
        took_s = [each["durationMs"]["triggerExecution"] / 1000 for each in batches]
        return Took(median(took_s[_WARM_BATCHES:]), median(cpus_s[_WARM_BATCHES:]))

    # How.

    def _compare(
        self,
        what: str,
        take: Callable[[Side], Took],
        rows: int | None = None,
        repeats: int | None = None,
    ) -> Line:
        def take_turn(side: Side) -> Took:
            # What one side leaves in memory would be written when the next one syncs.
            os.sync()
            return take(side)

        print(f"{what} ...", file=sys.stderr)
        calls = {name: partial(take_turn, side) for name, side in self._sides.items()}
        repeats = repeats or (_SMALL_REPEATS if rows is None else 1)
        return Line(what, measure(calls, self._rounds * repeats), rows)

    @contextmanager
    def _fill(self, value_bytes: int, rows: int) -> Iterator[Topics]:
        """Fill a topic of each side, through its own sink."""
        topics = {side: next(self._names) for side in self._sides.values()}
        for side, topic in topics.items():
            side.create(topic)
            self._append(side, topic, self._make_rows(value_bytes, rows))
            assert side.load_values(topic).count() == rows
        yield topics
        for side, topic in topics.items():
            side.delete(topic)

    def _make_rows(self, value_bytes: int, rows: int) -> DataFrame:
        value = f"cast(repeat('v', {value_bytes}) as binary) as value"
        tasks = -(-rows * value_bytes // _TASK_BYTES)
        tasks = max(tasks, self._spark.sparkContext.defaultParallelism)
        return self._spark.range(0, rows, 1, tasks).selectExpr(value)

    def _append(self, side: Side, topic: str, frame: DataFrame) -> None:
        writer = frame.write.format(side.format).mode("append")
        self._save(writer.options(**side.make_sink(topic)))

    def _discard(self, frame: DataFrame) -> None:
        self._save(frame.write.format("noop").mode("overwrite"))

    def _save(self, writer: DataFrameWriter) -> None:
        with give_up_with(self._spark.sparkContext.cancelAllJobs):
            writer.save()

    @contextmanager
    def _make_directory(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory(dir=self._directory) as directory:
            yield directory


@contextmanager
def give_up_with(cancel: Callable[[], object]) -> Iterator[None]:
    """Cancel what hangs, which makes the call fail that waits for it."""
    timer = threading.Timer(PATIENCE_S, cancel)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def run_sides(kafka: Kafka, *, size: int, rounds: int, tasks: int) -> list[Line]:
    """Start both brokers and Spark; measure."""
    jars = ",".join(map(str, kafka.source_jars))
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (directory / "kafka").mkdir()
        kafka_address = stack.enter_context(run_kafka(kafka, directory / "kafka"))
        broker = stack.enter_context(run_broker(fsync="batch"))
        client = stack.enter_context(LanceClient(broker.address))
        spark = stack.enter_context(run_session(tasks, **{"spark.jars": jars}))
        cluster = KafkaCluster(spark, kafka_address, partitions=tasks)
        stack.enter_context(closing(cluster))
        sides = (
            LanceSide(spark, client, broker.address),
            KafkaSide(spark, cluster, {}, {}),
            KafkaSide(spark, cluster, TUNED_SOURCE, TUNED_SINK),
        )
        named = dict(zip(SIDES, sides, strict=True))
        return Bench(spark, named, directory, size=size, rounds=rounds).run()


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka")
    add = parser.add_argument
    add("--quick", action="store_true", help="print rough figures only")
    add("--rounds", type=int, default=5, help="of which the median counts")
    add("--tasks", type=int, default=1, help="that run at once in Spark")
    add("--size", type=int, help="MiB that are read and written at once")
    add("--ivy-settings", type=Path, help="for a mirror of Maven Central")
    options = parser.parse_args()
    if not options.quick:
        touch_memory()
    load = f"a load of {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    kafka = prepare(options.ivy_settings)
    report = Report(quick=options.quick)
    versions = f"PySpark {kafka.pyspark}, Kafka {BROKER_VERSION}"
    report.add_text(
        f"{versions}, tasks at once: {options.tasks}. It began with {load}."
    )
    size = (options.size or (64 if options.quick else 256)) * MIB
    lines = run_sides(kafka, size=size, rounds=options.rounds, tasks=options.tasks)
    add_tables(report, lines)
    print(report.text)
    if not options.quick:
        write_tables(DOCS, "kafka", report.text)
        draw_pictures()


if __name__ == "__main__":
    main()
