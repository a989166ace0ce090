"""Each protocol against LWP, on the same broker: its formats, its client, its broker.

    python -m benchmarks.protocols ROWS        measure what standard input asks for

The measuring is done in two children with brokers of their own. In one of them no
process can import the compiled kernel, also not Spark's workers. All protocols take
turns, with the kernel and without, and the median counts.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks._child import Child
from benchmarks._figures import answer, open_answers, read_process_s
from benchmarks._session import run_broker, run_session
from benchmarks._turns import collect, time_call
from benchmarks.report import Report, format_rate, format_ratio
from lance_spark.client import LanceClient, LogClient, connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lance_spark.testing import BrokerProcess

PROTOCOLS = ("lance", "rustlog", "kimberlite", "fluvio", "tank")
# On average. Values of one size would flatter the Python twins of the kernel, which
# look for runs of them.
_VALUE_BYTES = 100
_SPREAD, _STEP = 101, 7919
# Found before any other module of that name, by every Python of the child.
_NO_KERNEL = "import sys\nsys.modules['lance_spark.kernel._kernel'] = None\n"

_KERNELS = ("", ", no kernel")

# Seconds, by what was measured.
_Seconds = dict[str, float]


def run(report: Report) -> None:
    """Measure."""
    rows, rounds = (200_000, 2) if report.quick else (1_000_000, 6)
    size = rows * _VALUE_BYTES
    times = _measure(rows, rounds)

    def rates(name: str, what: str) -> list[str]:
        took_s = times[name][what]
        ratio = times[PROTOCOLS[0]][what] / took_s
        return [format_rate(size / took_s, "B/s"), format_ratio(ratio)]

    title = "Values of {} bytes on average, {}. Rates are those of values:"
    for what, text in (
        ("spark", "through Spark, one task at a time"),
        ("client", "through `lance_spark.client.connect`, without Spark"),
        ("broker", "by the processor time of the broker alone, per second of it"),
    ):
        lines = [
            [
                f"`{name}`{note}",
                *rates(f"{name}{note}", f"{what} write"),
                *rates(f"{name}{note}", f"{what} read"),
            ]
            for note in _KERNELS
            for name in PROTOCOLS
        ]
        report.add_table(
            ["protocol", "write", "to `lance`", "read", "to `lance`"],
            lines,
            title.format(_VALUE_BYTES, text),
        )


def _measure(rows: int, rounds: int) -> dict[str, _Seconds]:
    """Measure each protocol with the kernel and without; give medians."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        Path(directory, "sitecustomize.py").write_text(_NO_KERNEL)
        paths = [directory, os.environ.get("PYTHONPATH", "")]
        without = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        calls: dict[str, Callable[[], _Seconds]] = {}
        for kernel, environment in zip(_KERNELS, ({}, without), strict=True):
            child = Child(["-m", __name__, str(rows)], environment=environment)
            stack.enter_context(child)
            for name in child.read():
                calls[f"{name}{kernel}"] = partial(child.ask, name)
        found = collect(calls, rounds)
    return {
        name: {what: median(each[what] for each in took) for what in took[0]}
        for name, took in found.items()
    }


# In the child.


class _Bench:
    """Measures one protocol at a time.

    Args:
        spark: a session.
        broker: serves all protocols.
        stack: closes the clients.
        rows: how many are written and read at once.
    """

    def __init__(
        self, spark: SparkSession, broker: BrokerProcess, stack: ExitStack, rows: int
    ) -> None:
        self._spark = spark
        self._broker = broker
        self._lance = stack.enter_context(LanceClient(broker.address))
        self._clients: dict[str, LogClient] = {
            name: stack.enter_context(connect(f"{name}://{broker.address_of(name)}"))
            for name in PROTOCOLS
        }
        self._rows = rows
        sizes = (_VALUE_BYTES - _SPREAD // 2 + n * _STEP % _SPREAD for n in range(rows))
        values = pa.array((b"x" * size for size in sizes), pa.binary())
        self._table = pa.table({"value": values})
        self._names = (f"bench-{number}" for number in count())

    def measure(self, name: str) -> _Seconds:
        """Write and read a topic in each way."""
        took: _Seconds = {}
        client, topic = self._clients[name], next(self._names)
        client.append(topic, self._table.slice(0, 1), create=True)
        for verb, call in _client_calls(client, topic, self._table).items():
            broker_s = read_process_s(self._broker.pid)
            took[f"client {verb}"] = time_call(call).wall_s
            took[f"broker {verb}"] = read_process_s(self._broker.pid) - broker_s
        options = {"servers": self._broker.address_of(name), "topic": next(self._names)}
        for verb, call in _spark_calls(self._spark, name, options, self._rows).items():
            took[f"spark {verb}"] = time_call(call).wall_s
        # The next one gets their pages, and the system need not find new ones.
        for each in self._lance.topics():
            self._lance.delete_topic(each.id)
        return took


_Calls = Mapping[str, Callable[[], object]]


def _client_calls(client: LogClient, topic: str, table: pa.Table) -> _Calls:
    return {
        "write": lambda: client.append(topic, table, partition=0),
        "read": lambda: sum(map(len, client.read(topic, columns=["value"]))),
    }


def _spark_calls(
    spark: SparkSession, name: str, options: dict[str, str], rows: int
) -> _Calls:
    size = f"int({_VALUE_BYTES - _SPREAD // 2} + id * {_STEP} % {_SPREAD})"
    value = f"cast(repeat('x', {size}) as binary) as value"
    written = spark.range(0, rows, 1, 2).selectExpr(value).write.format(name)
    reader = spark.read.format(name).options(**options).schema("value binary")
    return {
        "write": lambda: written.options(**options).mode("append").save(),
        "read": lambda: reader.load().write.format("noop").mode("overwrite").save(),
    }


def main(rows: str) -> None:
    """Answer for each protocol."""
    answers = open_answers()
    with ExitStack() as stack:
        others = dict.fromkeys(PROTOCOLS[1:], "127.0.0.1:0")
        broker = stack.enter_context(run_broker(**others))
        spark = stack.enter_context(run_session())
        bench = _Bench(spark, broker, stack, int(rows))
        answer(answers, {name: partial(bench.measure, name) for name in PROTOCOLS})


if __name__ == "__main__":
    main(*sys.argv[1:])
