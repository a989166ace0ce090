"""Each protocol against LWP, on the same broker: append and read through `connect`.

The client is what Spark's tasks use: the ratios are those of the formats without Spark.
All protocols take turns, round by round, and the median counts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

import pyarrow as pa

from benchmarks.report import Report, format_rate, format_ratio
from lance_spark.client import LogClient, connect

_VALUE_BYTES = 100
_PROTOCOLS = ("lance", "rustlog", "tank")


def run(report: Report) -> None:
    """Measure."""
    rows, rounds = (100_000, 3) if report.quick else (1_000_000, 9)
    table = pa.table({"value": pa.array([b"x" * _VALUE_BYTES] * rows, pa.binary())})
    times: dict[str, list[list[float]]] = defaultdict(lambda: [[], []])
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        addresses = stack.enter_context(_broker(directory))
        clients = {
            name: stack.enter_context(connect(f"{name}://{addresses[name]}"))
            for name in _PROTOCOLS
        }
        for number in range(rounds):
            for name, client in clients.items():
                topic = f"{name}-{number}"
                client.append(topic, table.slice(0, 1), create=True)
                times[name][0].append(_time_s(client, topic, table))
                times[name][1].append(_time_s(client, topic))
    base = [median(found) for found in times["lance"]]
    size = rows * _VALUE_BYTES
    lines = []
    for name in _PROTOCOLS:
        append_s, read_s = (median(found) for found in times[name])
        lines.append(
            [
                f"`{name}`",
                *(
                    format_rate(size / append_s, "B/s"),
                    format_ratio(base[0] / append_s),
                ),
                *(format_rate(size / read_s, "B/s"), format_ratio(base[1] / read_s)),
            ]
        )
    report.add_table(
        ["protocol", "append", "to `lance`", "read", "to `lance`"],
        lines,
        f"Values of {_VALUE_BYTES} bytes, through `lance_spark.client.connect`:",
    )


def _time_s(client: LogClient, topic: str, table: pa.Table | None = None) -> float:
    """Append a table, or read all there is."""
    start = time.perf_counter()
    if table is not None:
        client.append(topic, table, partition=0)
    else:
        for _ in client.read(topic, columns=["value"]):
            pass
    return time.perf_counter() - start


@contextmanager
def _broker(directory: str) -> Iterator[dict[str, str]]:
    """Run a broker that serves all protocols; give their addresses."""
    command = [sys.executable, "-m", "lance_spark", "broker", "--fsync", "none"]
    command += ["--listen", "127.0.0.1:0", "--data-dir", directory]
    for name in _PROTOCOLS[1:]:
        command += [f"--{name}", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            first = child.stdout.readline().split()[4].rstrip(",")
            others = [child.stdout.readline().split()[-1] for _ in _PROTOCOLS[1:]]
            yield dict(zip(_PROTOCOLS, [first, *others], strict=True))
        finally:
            child.terminate()
