"""Spark: reading and writing topics against the most that its Python API can do.

A broker runs in a process of its own with `fsync=none`, Spark in this one and in its
JVM, with one task at a time: a task keeps two cores busy as it is, its thread in the
JVM and its Python worker. Everything runs in turns, and the median counts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa

from benchmarks._session import run_broker, run_session
from benchmarks._stream_lane import run_to_end
from benchmarks._turns import MIB, Took, measure, time_call
from benchmarks.report import Report, format_ms, format_rate, format_ratio, format_s
from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.service import Service
from lance_spark.client import LanceClient, Producer
from lance_spark.model import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

GIB = 1024 * MIB

VALUES = {"100 bytes": 100, "1 KB": 1000, "10 KB": 10_000, "1 MB": 1_000_000}
SMALL_ROWS = 1000
_PARTITION_BYTES = 64 * MIB


def run(report: Report) -> None:
    """Measure."""
    with (
        run_broker() as broker,
        LanceClient(broker.address) as client,
        run_session() as spark,
        tempfile.TemporaryDirectory() as directory,
    ):
        bench = _Bench(spark, client, broker.address, directory, quick=report.quick)
        heads = ["`lance`", "ceiling", "CPU s", "CPU s, ceiling", "of the ceiling"]
        report.add_table(
            ["values", *heads],
            bench.compare_sizes(),
            "Bytes of values per second, and processor seconds, one task at a time:",
        )
        report.add_table(
            ["job", "`lance`", "trivial", "CPU s", "CPU s, trivial", "to trivial"],
            bench.compare_small_jobs(),
            f"Time of a job of {SMALL_ROWS} rows, in a session that has run others:",
        )
        report.add_table(
            ["rows", *bench.growth_sizes, "time", "CPU"],
            bench.compare_growth(),
            "How the time grows with ten times the rows:",
        )
        report.add_table(
            ["topic", "reader", "writer", "broker", "more than with the smallest"],
            compare_memory(quick=report.quick),
            "Most memory of a worker that reads or writes a topic in one partition:",
        )
        report.add_table(
            ["planning", "100 MiB", "100 GiB", "ratio"],
            bench.compare_plans(),
            "Time to plan a read, in Spark, of topics that are said to be so large:",
        )


@dataclass
class _Bench:
    spark: SparkSession
    client: LanceClient
    address: str
    directory: str
    quick: bool

    def __post_init__(self) -> None:
        from benchmarks._spark_source import CeilingSource, DiscardSource

        self.spark.dataSource.register(CeilingSource)
        self.spark.dataSource.register(DiscardSource)
        self._names = (f"bench-{number}" for number in count())
        # Even, so that each order comes as often as the other.
        self._rounds = 2 if self.quick else 6
        self._size = (32 if self.quick else 256) * MIB
        self._growth = (8 * MIB, 80 * MIB) if self.quick else (64 * MIB, 640 * MIB)

    @property
    def growth_sizes(self) -> list[str]:
        """What the sizes are called whose times are compared."""
        return [f"{size // MIB} MiB" for size in self._growth]

    def compare_sizes(self) -> list[list[str]]:
        """Compare with a source of ready-made batches, and a sink that discards."""
        found: dict[str, list[list[str]]] = {}
        for what, size in VALUES.items():
            rows = self._size // size
            topic = self._fill(size, rows)
            value = "value binary"
            took = measure(
                {
                    "read, all columns": self._read(topic),
                    "read, all columns, ceiling": self._read_ceiling(size, rows),
                    "read, `value` only": self._read(topic, value),
                    "read, `value` only, ceiling": self._read_ceiling(
                        size, rows, value
                    ),
                    "write": self._write(size, rows),
                    "write, ceiling": self._discard(size, rows),
                },
                self._rounds,
            )
            self.client.delete_topic(topic)
            for verb in [name for name in took if not name.endswith("ceiling")]:
                ours, most = took[verb], took[f"{verb}, ceiling"]
                rates = [format_rate(rows * size / x.wall_s, "B") for x in (ours, most)]
                cpus = [format_s(x.cpu_s) for x in (ours, most)]
                ratio = format_ratio(most.wall_s / ours.wall_s)
                row = [f"{verb}, {what}", *rates, *cpus, ratio]
                found.setdefault(verb, []).append(row)
        return [row for each in found.values() for row in each]

    def compare_small_jobs(self) -> list[list[str]]:
        """Compare jobs of few rows, whose time is that of Spark and of processes."""
        size = VALUES["100 bytes"]
        source, target = self._fill(size, SMALL_ROWS), next(self._names)
        self.client.create_topic(target)
        took = measure(
            {
                "read": self._read(source),
                "read, trivial": self._read_ceiling(size, SMALL_ROWS),
                "write": self._append(target, size, SMALL_ROWS),
                "write, trivial": self._discard(size, SMALL_ROWS),
            },
            self._rounds * 4,
        )
        for topic in (source, target):
            self.client.delete_topic(topic)
        return [
            [
                f"{verb} of {SMALL_ROWS} rows",
                *(format_ms(x.wall_s) for x in (ours, floor)),
                *(format_s(x.cpu_s) for x in (ours, floor)),
                format_ratio(ours.wall_s / floor.wall_s),
            ]
            for verb in ("read", "write")
            for ours, floor in [(took[verb], took[f"{verb}, trivial"])]
        ]

    def compare_growth(self) -> list[list[str]]:
        """Compare the time of many rows with that of a tenth of them."""
        size = VALUES["100 bytes"]
        calls: dict[str, Callable[[], Took]] = {}
        topics = []
        for name, total in zip(self.growth_sizes, self._growth, strict=True):
            topics.append(self._fill(size, total // size))
            calls[f"read {name}"] = self._read(topics[-1])
            calls[f"stream {name}"] = partial(self._catch_up, topics[-1])
            calls[f"write {name}"] = self._write(size, total // size)
        took = measure(calls, 3)
        for topic in topics:
            self.client.delete_topic(topic)
        lines = []
        for verb, what in (
            ("read", "read, all columns"),
            ("write", "write"),
            ("stream", "stream, `AvailableNow`"),
        ):
            few, many = (took[f"{verb} {name}"] for name in self.growth_sizes)
            grown = (many.wall_s / few.wall_s, many.cpu_s / few.cpu_s)
            times = [format_s(x.wall_s) + " s" for x in (few, many)]
            lines.append([what, *times, *(f"{each:.1f} x" for each in grown)])
        return lines

    def compare_plans(self) -> list[list[str]]:
        """Compare planning a large topic with planning a small one."""
        sizes = {"small": 100 * MIB, "large": 100 * GIB}
        rows = []
        with _claim(sizes) as address:
            for what, options in (
                ("by default", {}),
                (
                    "in 16 partitions",
                    {"minPartitions": "16", "maxPartitionBytes": "100g"},
                ),
            ):
                there = {"servers": address, **options}
                took = measure(
                    {
                        name: partial(self._plan, {**there, "topic": name})
                        for name in sizes
                    },
                    self._rounds * 3,
                )
                small_s, large_s = (took[name].wall_s for name in sizes)
                times = [format_ms(took_s) for took_s in (small_s, large_s)]
                rows.append([what, *times, format_ratio(large_s / small_s)])
        return rows

    # What is measured.

    def _read(self, topic: str, schema: str | None = None) -> Callable[[], Took]:
        return partial(self._load, "lance", self._at(topic), schema)

    def _read_ceiling(
        self, size: int, rows: int, schema: str | None = None
    ) -> Callable[[], Took]:
        partitions = -(-rows * size // _PARTITION_BYTES)
        options = {"rows": rows, "partitions": partitions, "size": size}
        shown = {name: str(value) for name, value in options.items()}
        return partial(self._load, "ceiling", shown, schema)

    def _load(self, source: str, options: dict[str, str], schema: str | None) -> Took:
        def load() -> None:
            reader = self.spark.read.format(source).options(**options)
            frame = (reader if schema is None else reader.schema(schema)).load()
            frame.write.format("noop").mode("overwrite").save()

        return time_call(load)

    def _write(self, size: int, rows: int) -> Callable[[], Took]:
        frame = self._make_rows(size, rows)

        def write() -> Took:
            name = next(self._names)
            writer = frame.write.format("lance").mode("append")
            took = time_call(writer.options(**self._at(name)).save)
            # What it takes to delete a topic is no part of it, and disks are finite.
            self.client.delete_topic(name)
            return took

        return write

    def _append(self, topic: str, size: int, rows: int) -> Callable[[], Took]:
        writer = self._make_rows(size, rows).write.format("lance").mode("append")
        return partial(self._save, writer.options(**self._at(topic)))

    def _discard(self, size: int, rows: int) -> Callable[[], Took]:
        writer = self._make_rows(size, rows).write.format("discard")
        return partial(self._save, writer.mode("append"))

    def _save(self, writer: DataFrameWriter) -> Took:
        return time_call(writer.save)

    def _catch_up(self, topic: str) -> Took:
        reader = self.spark.readStream.format("lance").options(**self._at(topic))
        stream = reader.option("startingOffsets", "earliest").load()
        writer = stream.writeStream.format("noop").trigger(availableNow=True)

        with tempfile.TemporaryDirectory(dir=self.directory) as checkpoint:
            writer = writer.option("checkpointLocation", checkpoint)
            return time_call(lambda: run_to_end(writer))

    def _plan(self, options: dict[str, str]) -> Took:
        def plan() -> None:
            frame: Any = self.spark.read.format("lance").options(**options).load()
            frame._jdf.queryExecution().executedPlan().execute().getNumPartitions()

        return time_call(plan)

    # How.

    def _at(self, topic: str) -> dict[str, str]:
        return {"servers": self.address, "topic": topic}

    def _make_rows(self, size: int, rows: int) -> DataFrame:
        value = f"cast(repeat('v', {size}) as binary) as value"
        partitions = -(-rows * size // _PARTITION_BYTES)
        return self.spark.range(0, rows, 1, partitions).selectExpr(value)

    def _fill(self, size: int, rows: int) -> str:
        topic = next(self._names)
        self.client.create_topic(topic)
        piece = pa.array([b"v" * size] * min(rows, 16 * MIB // size), pa.binary())
        table = pa.table({"value": piece})
        with Producer(self.client, topic) as producer:
            for done in range(0, rows, table.num_rows):
                producer.write(table.slice(0, rows - done))
        return topic


def compare_memory(*, quick: bool) -> list[list[str]]:
    """Compare the memory that a large topic takes with that of a small one."""
    from benchmarks._spark_worker import VALUE_BYTES, read_peak_bytes

    lines: list[list[str]] = []
    least: list[int] = []
    # Its own broker, as the most that a process has had stays.
    with run_broker() as broker, LanceClient(broker.address) as client:
        for size in (64 * MIB, 256 * MIB if quick else 4 * GIB):
            topic = client.create_topic(f"memory-{size}").name
            peaks = {}
            for verb in ("write", "read"):
                command = [sys.executable, "-m", "benchmarks._spark_worker", verb]
                command += [broker.address, topic, str(size // VALUE_BYTES)]
                done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
                peaks[verb] = int(done.stdout)
            client.delete_topic(topic)
            status = Path(f"/proc/{broker.pid}/status")
            now = [peaks["read"], peaks["write"], read_peak_bytes(status)]
            least = least or now
            more = max(peak - other for peak, other in zip(now, least, strict=True))
            shown = [f"{each // MIB} MiB" for each in (size, *now, more)]
            lines.append(shown)
    return lines


@contextmanager
def _claim(sizes: dict[str, int]) -> Iterator[str]:
    """Run a broker that says of empty topics that they are large; give its address."""
    with EmbeddedBroker(fsync="none") as broker, LanceClient(broker.address) as client:
        ends = {client.create_topic(name).id: size for name, size in sizes.items()}
        locate = Service.locate

        def pretend(service: Service, *arguments: Any) -> Location:
            found = locate(service, *arguments)
            _, topic, kind, _ = arguments
            return replace(found, offset=ends[topic]) if kind == "end" else found

        with mock.patch.object(Service, "locate", pretend):
            yield broker.address
