"""The figures that `benchmarks.compare` takes of one tree, in a process of its own.

The process is started with the text of this file and with another tree's packages on
its path. So this file imports nothing of `benchmarks`, and uses only names that both
revisions have: `LanceClient`, `Producer`, `RecordReader`, `encode`, `decode`,
`BrokerProcess` and `run_session`.

It first prints the list of figures. Then it reads the name of a figure per line and
answers with two rates: per second, and per second of processor time. It ends when its
input does. Other benchmarks use the clocks of this file, and how it answers.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa

import lance_spark
from lance_spark.client import LanceClient, Producer, RecordReader
from lance_spark.testing import BrokerProcess

Rates = tuple[float, float]
Figures = Iterator[tuple[str, Callable[[], Rates]]]

# How much work one measurement is: long enough for a clock and short enough for the two
# trees to meet the same moment of a busy machine.
_BATCH_ROWS = 50_000
_BATCHES = 6
_SINGLE_APPENDS = 100
_SYNCED_APPENDS = 20
_SMALL_REQUESTS = 200
_REPEATS = 6
_BUFFER_BYTES = 4 * 1024 * 1024
_SPARK_ROWS = 1_500_000


class Stopwatch:
    """Measures from when it is made: the time that passes, and processor time.

    Processor time counts this process and all below it, brokers and JVM included. Other
    processes on the machine hardly change it, but it does not see waiting.
    """

    def __init__(self) -> None:
        # The time it takes to look at processes is no part of the measurement.
        self._cpu_s = read_cpu_s()
        self._start_s = time.perf_counter()

    def rate(self, done: float) -> Rates:
        """Give how much was done per second and per second of processor time."""
        took_s = time.perf_counter() - self._start_s
        return done / took_s, done / (read_cpu_s() - self._cpu_s)


def read_cpu_s() -> float:
    """Read the processor time of this process and of those below it.

    Processes that have ended are counted as soon as their parent knows of it, in steps
    of a hundredth of a second: Spark starts a Python process to plan a read.
    """
    parents: dict[int, int] = {}
    ended_s: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # It may have ended by now.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
            ticks = int(fields[13]) + int(fields[14])
            ended_s[int(stat.parent.name)] = ticks / os.sysconf("SC_CLK_TCK")
    family = {os.getpid()}
    while more := {c for c, p in parents.items() if p in family} - family:
        family |= more
    total_s = sum(ended_s.get(pid, 0.0) for pid in family)
    for pid in family:
        with suppress(OSError):
            total_s += read_process_s(pid)
    return total_s


def read_process_s(pid: int) -> float:
    """Read the processor time of one process, without those that it has started."""
    # What clock_getcpuclockid(3) makes of a process id, on Linux.
    return time.clock_gettime((~pid << 3) | 2)


def make_values(rows: int, size: int) -> pa.Array:
    """Make values of one size without a Python object for each of them."""
    data = np.random.default_rng(7).integers(0, 256, rows * size, np.uint8)
    offsets = np.arange(0, rows * size + 1, size, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def measure_broker(stack: ExitStack, directory: Path) -> Figures:
    """Measure a broker in a process of its own: batches, and requests one by one."""
    unsynced = BrokerProcess(directory / "unsynced", fsync="none")
    synced = BrokerProcess(directory / "synced")
    client = stack.enter_context(LanceClient(stack.enter_context(unsynced).address))
    durable = stack.enter_context(LanceClient(stack.enter_context(synced).address))
    batch = pa.record_batch({"value": make_values(_BATCH_ROWS, 100)})
    names = (f"append-{number}" for number in count())
    client.create_topic("read")
    with Producer(client, "read") as producer:
        for _ in range(_BATCHES):
            producer.write(batch)
    end = client.bounds("read").end

    def append_batches() -> Rates:
        topic = next(names)
        client.create_topic(topic)
        watch = Stopwatch()
        with Producer(client, topic) as producer:
            for _ in range(_BATCHES):
                producer.write(batch)
        rates = watch.rate(_BATCHES * _BATCH_ROWS)
        client.delete_topic(topic)
        return rates

    def fetch_batches() -> Rates:
        watch = Stopwatch()
        reader = RecordReader(client, "read", 0, end=end)
        records = 0
        while (chunk := reader.next_chunk()) is not None:
            records += chunk.records
        assert records == _BATCHES * _BATCH_ROWS
        return watch.rate(records)

    def append_one_by_one(to: LanceClient, times: int) -> Rates:
        to.ensure_topic("single")
        value = b"v" * 100
        with Producer(to, "single", linger_s=0) as producer:
            watch = Stopwatch()
            for _ in range(times):
                producer.send(value)
                producer.flush()
            return watch.rate(times)

    def locate() -> Rates:
        watch = Stopwatch()
        for _ in range(_SMALL_REQUESTS):
            client.locate_offset("read", 0)
        return watch.rate(_SMALL_REQUESTS)

    yield "append, batches of 100 B", append_batches
    yield "fetch, batches of 100 B", fetch_batches
    yield "append, one record", lambda: append_one_by_one(client, _SINGLE_APPENDS)
    yield (
        "append, one record, fsync",
        lambda: append_one_by_one(durable, _SYNCED_APPENDS),
    )
    yield "small request (locate)", locate


def measure_columnar(stack: ExitStack, directory: Path) -> Figures:
    """Measure records to Arrow and back, without a broker."""
    decode, encode = _find_codec("decode"), _find_codec("encode")
    keyed_rows = _BUFFER_BYTES // 120
    tables = {
        "100 B": {"value": make_values(_BUFFER_BYTES // 100, 95)},
        "100 B with keys": {
            "key": make_values(keyed_rows, 12),
            "value": make_values(keyed_rows, 100),
        },
        "10 KB": {"value": make_values(_BUFFER_BYTES // 10_000, 10_000)},
    }
    for name, columns in tables.items():
        table = pa.record_batch(columns)
        data = b"".join(bytes(payload.data) for payload in encode(table))

        def time_encode(table: pa.RecordBatch = table) -> Rates:
            watch = Stopwatch()
            for _ in range(_REPEATS):
                for _payload in encode(table):
                    pass
            return watch.rate(_REPEATS * table.num_rows)

        def time_decode(data: bytes = data, rows: int = table.num_rows) -> Rates:
            watch = Stopwatch()
            for _ in range(_REPEATS):
                assert decode(data).batch.num_rows == rows
            return watch.rate(_REPEATS * rows)

        yield f"encode, {name}", time_encode
        yield f"decode, {name}", time_decode


def _find_codec(name: str) -> Callable[..., Any]:
    # Revisions differ in whether the package or a module of it has the function.
    found = getattr(import_module("lance_spark.columnar"), name, None)
    if not callable(found):
        found = getattr(import_module(f"lance_spark.columnar.{name}"), name)
    function: Callable[..., Any] = found
    return function


def measure_spark(stack: ExitStack, directory: Path) -> Figures:
    """Measure a read and a write of one topic through a local Spark."""
    from lance_spark.spark.local import run_session

    broker = BrokerProcess(directory / "spark", fsync="none")
    address = stack.enter_context(broker).address
    client = stack.enter_context(LanceClient(address))
    settings = {"spark.master": "local[1]", "spark.driver.extraJavaOptions": ""}
    spark = stack.enter_context(run_session(directory / "session", settings=settings))
    names = (f"write-{number}" for number in count())
    value = "cast(repeat('v', 95) as binary) as value"
    rows = spark.range(0, _SPARK_ROWS, 1, 2).selectExpr(value)

    def write(topic: str) -> Rates:
        watch = Stopwatch()
        writer = rows.write.format("lance").mode("append")
        writer.options(servers=address, topic=topic).save()
        return watch.rate(_SPARK_ROWS)

    def write_and_delete() -> Rates:
        topic = next(names)
        rates = write(topic)
        client.delete_topic(topic)
        return rates

    def read() -> Rates:
        options = {"servers": address, "topic": "events"}
        watch = Stopwatch()
        frame = spark.read.format("lance").options(**options).load()
        frame.write.format("noop").mode("overwrite").save()
        return watch.rate(_SPARK_ROWS)

    write("events")
    yield "Spark read, 100 B", read
    yield "Spark write, 100 B", write_and_delete


PARTS = {"broker": measure_broker, "columnar": measure_columnar, "spark": measure_spark}


def open_answers() -> TextIO:
    """Keep standard output for answers: what a JVM prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def answer(answers: TextIO, figures: Mapping[str, Callable[[], object]]) -> None:
    """Say what there is to measure, then measure what is asked for."""
    print(json.dumps(list(figures)), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(figures[json.loads(line)]()), file=answers, flush=True)


def main() -> None:
    """Answer for the parts that the command line names."""
    home = Path(lance_spark.__file__).parent.parent
    # A tree that measures the other one's code would find a ratio of exactly one.
    assert home.resolve() == Path.cwd().resolve(), f"{home} is not {Path.cwd()}"
    answers = open_answers()
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="lance-compare-")
        directory = Path(stack.enter_context(temporary))
        figures = {
            name: measure
            for part in sys.argv[1:]
            for name, measure in PARTS[part](stack, directory)
        }
        for measure in figures.values():
            measure()  # The first call of each warms up, and does not count.
        answer(answers, figures)


if __name__ == "__main__":
    main()
