"""Each protocol against LWP, on the same broker: its formats, its client, its broker.

    python -m benchmarks.protocols ROWS ROUNDS     print what was measured, as JSON

The measuring is done in a child, once as it is and once without the compiled kernel: no
process of the second one can import it, also not Spark's workers. All protocols take
turns, round by round, and the median counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.report import Report, format_rate, format_ratio
from lance_spark.client import LogClient, connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROTOCOLS = ("lance", "rustlog", "kimberlite", "fluvio", "tank")
# On average. Values of one size would flatter the Python twins of the kernel, which
# look for runs of them.
_VALUE_BYTES = 100
_SPREAD, _STEP = 101, 7919
# Found before any other module of that name, by every Python of the child.
_NO_KERNEL = "import sys\nsys.modules['lance_spark.kernel._kernel'] = None\n"

# Seconds, by what was measured and by protocol.
_Times = dict[str, dict[str, float]]


def run(report: Report) -> None:
    """Measure."""
    rows, rounds = (200_000, 3) if report.quick else (1_000_000, 5)
    compiled = _measure_apart(rows, rounds)
    plain = _measure_apart(rows, rounds, no_kernel=True)
    size = rows * _VALUE_BYTES

    def rates(name: str, what: str, times: _Times) -> list[str]:
        took_s = times[what][name]
        ratio = compiled[what]["lance"] / took_s
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
                *rates(name, f"{what} write", times),
                *rates(name, f"{what} read", times),
            ]
            for note, times in (("", compiled), (", no kernel", plain))
            for name in PROTOCOLS
        ]
        report.add_table(
            ["protocol", "write", "to `lance`", "read", "to `lance`"],
            lines,
            title.format(_VALUE_BYTES, text),
        )


def _measure_apart(rows: int, rounds: int, *, no_kernel: bool = False) -> _Times:
    with tempfile.TemporaryDirectory() as directory:
        environment = dict(os.environ)
        if no_kernel:
            Path(directory, "sitecustomize.py").write_text(_NO_KERNEL)
            paths = [directory, environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        command = [sys.executable, "-m", __name__, str(rows), str(rounds)]
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, check=True, text=True
        )
        found: _Times = json.loads(done.stdout.splitlines()[-1])
        return found


# In the child.


def measure(rows: int, rounds: int) -> _Times:
    """Write and read each way in turns; the first round does not count."""
    from benchmarks.spark import run_session

    sizes = (_VALUE_BYTES - _SPREAD // 2 + n * _STEP % _SPREAD for n in range(rows))
    values = pa.array((b"x" * size for size in sizes), pa.binary())
    table = pa.table({"value": values})
    times: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        broker, addresses = stack.enter_context(_broker(directory))
        clients = {
            name: stack.enter_context(connect(f"{name}://{addresses[name]}"))
            for name in PROTOCOLS
        }
        for number in range(rounds + 1):
            for name, client in clients.items():
                topic = f"client-{name}-{number}"
                client.append(topic, table.slice(0, 1), create=True)
                for verb, call in _client_calls(client, topic, table):
                    cpu_s, took_s = _read_cpu_s(broker), _time_s(call)
                    times[f"client {verb}"][name].append(took_s)
                    used_s = _read_cpu_s(broker) - cpu_s
                    times[f"broker {verb}"][name].append(used_s)
        spark = stack.enter_context(run_session())
        for number in range(rounds + 1):
            for name in PROTOCOLS:
                topic = f"spark-{name}-{number}"
                options = {"servers": addresses[name], "topic": topic}
                for verb, call in _spark_calls(spark, name, options, rows):
                    times[f"spark {verb}"][name].append(_time_s(call))
    return {
        what: {name: median(took[1:]) for name, took in by_name.items()}
        for what, by_name in times.items()
    }


_Calls = tuple[tuple[str, Callable[[], object]], ...]


def _client_calls(client: LogClient, topic: str, table: pa.Table) -> _Calls:
    return (
        ("write", lambda: client.append(topic, table, partition=0)),
        ("read", lambda: sum(map(len, client.read(topic, columns=["value"])))),
    )


def _spark_calls(
    spark: SparkSession, name: str, options: dict[str, str], rows: int
) -> _Calls:
    size = f"int({_VALUE_BYTES - _SPREAD // 2} + id * {_STEP} % {_SPREAD})"
    value = f"cast(repeat('x', {size}) as binary) as value"
    written = spark.range(0, rows, 1, 2).selectExpr(value).write.format(name)
    reader = spark.read.format(name).options(**options).schema("value binary")
    return (
        ("write", lambda: written.options(**options).mode("append").save()),
        (
            "read",
            lambda: reader.load().write.format("noop").mode("overwrite").save(),
        ),
    )


def _time_s(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _read_cpu_s(process: int) -> float:
    """Tell how much processor time another process has used."""
    text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _broker(directory: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Run a broker that serves all protocols; give its process and their addresses."""
    command = [sys.executable, "-m", "lance_spark", "broker", "--fsync", "none"]
    command += ["--listen", "127.0.0.1:0", "--data-dir", directory]
    for name in PROTOCOLS[1:]:
        command += [f"--{name}", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            first = child.stdout.readline().split()[4].rstrip(",")
            addresses = {PROTOCOLS[0]: first}
            while not addresses.keys() >= set(PROTOCOLS):
                name, _, address = child.stdout.readline().split()
                addresses[name] = address
            yield child.pid, addresses
        finally:
            child.terminate()


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:]))))
