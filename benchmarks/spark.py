"""Spark: reading and writing topics against the most that its Python API can do.

A broker runs in a process of its own with `fsync=none`, Spark in this one and in its
JVM, with one task at a time: a task keeps two cores busy as it is, its thread in the
JVM and its Python worker. Everything runs in turns, and the median counts.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa

import lance_spark
from benchmarks.report import Report, format_rate, format_ratio
from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.service import Service
from lance_spark.client import LanceClient, Producer
from lance_spark.model import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

MIB = 1024 * 1024
GIB = 1024 * MIB

_SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_PARTITION_BYTES = 64 * MIB
RECORD_BYTES = 100
_SMALL_ROWS = 1000


def run(report: Report) -> None:
    """Measure."""
    with (
        run_broker() as address,
        LanceClient(address) as client,
        run_session() as spark,
    ):
        bench = _Bench(spark, client, address, quick=report.quick)
        report.add_table(
            ["records of 100 bytes", "records/s", "against, records/s", "ratio"],
            [*bench.compare_reads(), bench.compare_writes()],
            "One task at a time:",
        )
        report.add_table(
            ["job", "median", "against", "to the floor"],
            bench.compare_small_jobs(),
            "Time of a job of 1000 records, in a session that has run others:",
        )
        report.add_table(
            ["planning", "100 MiB", "100 GiB", "ratio"],
            bench.compare_plans(),
            "Time to plan a read, in Spark, of topics that are said to be so large:",
        )
        report.add_table(
            ["topic", "peak of the worker", "more than the smallest"],
            bench.compare_memory(),
            "Memory of a worker that reads a topic in one partition:",
        )


@dataclass
class _Bench:
    spark: SparkSession
    client: LanceClient
    address: str
    quick: bool

    def __post_init__(self) -> None:
        from benchmarks._spark_source import TOPIC, CeilingSource, DiscardSource

        self.spark.dataSource.register(CeilingSource)
        self.spark.dataSource.register(DiscardSource)
        self._topic = TOPIC
        self._value = b"v" * (RECORD_BYTES - 5)
        self._names = (f"bench-{number}" for number in count())
        self._rounds = 3 if self.quick else 9
        self._size = (64 if self.quick else 512) * MIB
        self._rows = self._size // RECORD_BYTES
        self._partitions = -(-self._size // _PARTITION_BYTES)

    def compare_reads(self) -> list[list[str]]:
        """Compare reading a topic with reading batches that are there already."""
        self._fill(self._topic, self._size)
        columns = "value binary"
        all_s, all_ceiling_s, value_s, value_ceiling_s = self._measure(
            partial(self._read, self._load_topic()),
            partial(self._read, self._load_ceiling()),
            partial(self._read, self._load_topic(columns)),
            partial(self._read, self._load_ceiling(columns)),
        )
        self.client.delete_topic(self._topic)
        ready = "against ready-made batches"
        return [
            self._row(f"read, all columns, {ready}", all_s, all_ceiling_s),
            self._row(f"read, `value` only, {ready}", value_s, value_ceiling_s),
            self._row("read, `value` only, against all columns", value_s, all_s),
        ]

    def compare_writes(self) -> list[str]:
        """Compare writing to a topic with a writer that discards its rows."""
        rows = self._make_rows(self._rows, self._partitions)
        took_s, ceiling_s = self._measure(
            partial(self._write, rows),
            partial(self._save, rows.write.format("discard").mode("append")),
        )
        return self._row("write, against a writer that discards", took_s, ceiling_s)

    def compare_small_jobs(self) -> list[list[str]]:
        """Compare jobs of few rows, whose time is that of Spark and of processes."""
        rounds = self._rounds * 3
        source, target = next(self._names), next(self._names)
        self._fill(source, _SMALL_ROWS * RECORD_BYTES)
        self.client.create_topic(target)
        ceiling = {"rows": str(_SMALL_ROWS), "partitions": "1"}
        read_s, read_floor_s = self._measure(
            partial(self._read, partial(self._load, "lance", self._at(source), None)),
            partial(self._read, partial(self._load, "ceiling", ceiling, None)),
            rounds=rounds,
        )
        rows = self._make_rows(_SMALL_ROWS, 1)
        writer = rows.write.format("lance").mode("append").options(**self._at(target))
        write_s, write_floor_s = self._measure(
            partial(self._save, writer),
            partial(self._save, rows.write.format("discard").mode("append")),
            rounds=rounds,
        )
        for topic in (source, target):
            self.client.delete_topic(topic)
        return [
            [
                what,
                *(f"{each * 1000:.0f} ms" for each in (took_s, floor_s)),
                format_ratio(took_s / floor_s),
            ]
            for what, took_s, floor_s in (
                ("read, against ready-made batches", read_s, read_floor_s),
                ("write, against a writer that discards", write_s, write_floor_s),
            )
        ]

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
                small_s, large_s = self._measure(
                    partial(self._plan, {**there, "topic": "small"}),
                    partial(self._plan, {**there, "topic": "large"}),
                    rounds=self._rounds * 3,
                )
                times = [f"{took_s * 1000:.0f} ms" for took_s in (small_s, large_s)]
                rows.append([what, *times, format_ratio(large_s / small_s)])
        return rows

    def compare_memory(self) -> list[list[str]]:
        """Compare the memory that a large topic takes with that of a small one."""
        rows: list[list[str]] = []
        least = 0
        for size in (64 * MIB, 256 * MIB if self.quick else 4 * GIB):
            name = next(self._names)
            self._fill(name, size)
            command = [sys.executable, "-m", "benchmarks._spark_worker"]
            done = subprocess.run(
                [*command, self.address, name], capture_output=True, check=True
            )
            self.client.delete_topic(name)
            peak = int(done.stdout)
            least = least or peak
            more = (peak - least) // MIB
            rows.append([f"{size // MIB} MiB", f"{peak // MIB} MiB", f"{more} MiB"])
        return rows

    # What is measured.

    def _read(self, frame: Callable[[], DataFrame]) -> float:
        return self._save(frame().write.format("noop").mode("overwrite"))

    def _write(self, rows: DataFrame) -> float:
        name = next(self._names)
        writer = rows.write.format("lance").mode("append")
        took_s = self._save(writer.options(**self._at(name)))
        # What it takes to delete a topic is no part of it, and disks are finite.
        self.client.delete_topic(name)
        return took_s

    def _plan(self, options: dict[str, str]) -> float:
        start = time.perf_counter()
        frame: Any = self.spark.read.format("lance").options(**options).load()
        frame._jdf.queryExecution().executedPlan().execute().getNumPartitions()
        return time.perf_counter() - start

    def _save(self, writer: DataFrameWriter) -> float:
        start = time.perf_counter()
        writer.save()
        return time.perf_counter() - start

    # How.

    def _at(self, topic: str) -> dict[str, str]:
        return {"servers": self.address, "topic": topic}

    def _make_rows(self, rows: int, partitions: int) -> DataFrame:
        literal = f"cast(repeat('v', {len(self._value)}) as binary) as value"
        return self.spark.range(0, rows, 1, partitions).selectExpr(literal)

    def _load_topic(self, schema: str | None = None) -> Callable[[], DataFrame]:
        return partial(self._load, "lance", self._at(self._topic), schema)

    def _load_ceiling(self, schema: str | None = None) -> Callable[[], DataFrame]:
        options = {"rows": str(self._rows), "partitions": str(self._partitions)}
        return partial(self._load, "ceiling", options, schema)

    def _load(
        self, source: str, options: dict[str, str], schema: str | None
    ) -> DataFrame:
        reader = self.spark.read.format(source).options(**options)
        return (reader if schema is None else reader.schema(schema)).load()

    def _fill(self, topic: str, size: int) -> None:
        self.client.create_topic(topic)
        piece = pa.table({"value": pa.array([self._value] * 200_000, pa.binary())})
        rows = size // (len(self._value) + 5)
        with Producer(self.client, topic) as producer:
            for done in range(0, rows, piece.num_rows):
                producer.write(piece.slice(0, rows - done))

    def _measure(
        self, *calls: Callable[[], float], rounds: int | None = None
    ) -> list[float]:
        """Make calls in turns; the median of each counts, after one that does not."""
        took: list[list[float]] = [[] for _ in calls]
        for _ in range((rounds or self._rounds) + 1):
            for times, call in zip(took, calls, strict=True):
                times.append(call())
        return [median(times[1:]) for times in took]

    def _row(self, what: str, took_s: float, other_s: float) -> list[str]:
        rates = [format_rate(self._rows / each) for each in (took_s, other_s)]
        return [what, *rates, format_ratio(other_s / took_s)]


@contextmanager
def run_session(settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Run a local Spark, one task at a time, with some settings besides the usual."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    # As an installed package has it, also where Python is told to write none.
    compileall.compile_dir(Path(lance_spark.__file__).parent, quiet=1)
    builder = SparkSession.builder.master("local[1]").appName("lance-bench")
    session = builder.config(map={**_SETTINGS, **(settings or {})}).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def run_broker() -> Iterator[str]:
    """Run a broker in a child; give its address."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "lance_spark", "broker", "--fsync", "none"]
        command += ["--listen", "127.0.0.1:0", "--data-dir", directory]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            try:
                assert child.stdout is not None
                yield child.stdout.readline().split()[4].rstrip(",")
            finally:
                child.terminate()


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
