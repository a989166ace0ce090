"""Do what each Python process of a query does, and print what that takes.

    python -m tests.spark.roles DIRECTORY ROUNDS FORMAT=SERVERS …

Spark's own processes have pyspark and pyarrow when they meet a source. So each role is
played in a child of a process that has just these, `ROUNDS` times for each format. What
one role pickles for another is a file of the directory. The topics `in-FORMAT` have
1000 records.

Printed is JSON: by format and role, such as `tank plan_batch`, the modules that it has
imported, and the processor time of each round in seconds. `pyarrow` is the import of
pyarrow by Python alone.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Roles:
    """The roles, in the order in which a query plays them.

    Args:
        format: which one reads and writes.
        servers: where the broker is.
        directory: where they leave files for each other.
    """

    def __init__(self, format: str, servers: str, directory: Path) -> None:
        self._format = format
        self._servers = servers
        self._directory = directory

    def create(self) -> None:
        """Check the options and say the schema: `load()` of any read."""
        self._make_source("in").schema()

    def pickle_stream_reader(self) -> None:
        """Pickle a reader for the tasks of a stream."""
        source = self._make_source("in")
        pickle.dumps(source.streamReader(source.schema()).read)

    def plan_stream(self) -> None:
        """Plan a micro-batch of `Trigger.AvailableNow`."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        source = self._make_source("in", startingOffsets="earliest")
        reader = source.streamReader(source.schema())
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        reader.getDefaultReadLimit()
        end = reader.latestOffset(start, ReadAllAvailable())
        reader.reportLatestOffset()
        (partition,) = reader.partitions(start, end)
        self._save("stream", (reader, partition))
        reader.stop()

    def read_stream(self) -> None:
        """Read the rows of a micro-batch in a task."""
        reader, partition = self._load("stream")
        assert sum(batch.num_rows for batch in reader.read(partition)) == 1000

    def plan_batch(self) -> None:
        """Plan a batch read."""
        source = self._make_source("in")
        reader = source.reader(source.schema())
        (partition,) = reader.partitions()
        self._save("batch", (reader, partition))

    def read_batch(self) -> None:
        """Read the rows of a batch read in a task."""
        reader, partition = self._load("batch")
        assert sum(batch.num_rows for batch in reader.read(partition)) == 1000

    def plan_write(self) -> None:
        """Make a writer for the tasks of a write."""
        from pyspark.sql.types import BinaryType, StructField, StructType

        schema = StructType([StructField("value", BinaryType())])
        writer = self._make_source("out").writer(schema, overwrite=False)
        self._save("writer", writer)

    def write(self) -> None:
        """Write rows in a task."""
        import pyarrow as pa

        # As Spark's worker gets them: `pa.array` would import pandas.
        offsets = memoryview(bytearray(4 * 1001)).cast("i")
        for row in range(1001):
            offsets[row] = row
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"v" * 1000)]
        values = pa.Array.from_buffers(pa.binary(), 1000, buffers)
        writer = self._load("writer")
        message = writer.write(iter([pa.record_batch({"value": values})]))
        self._save("message", (writer, message))

    def commit(self) -> None:
        """Commit what the tasks have written."""
        writer, message = self._load("message")
        writer.commit([message])

    def _make_source(self, topic: str, **options: str) -> Any:
        from lance_spark.spark.source import SOURCES

        (source,) = [each for each in SOURCES if each.protocol == self._format]
        topic = f"{topic}-{self._format}"
        return source({"servers": self._servers, "topic": topic, **options})

    def _save(self, name: str, value: object) -> None:
        (self._directory / name).write_bytes(pickle.dumps(value))

    def _load(self, name: str) -> Any:
        return pickle.loads((self._directory / name).read_bytes())


ROLES = (
    *("create", "pickle_stream_reader", "plan_stream", "read_stream"),
    *("plan_batch", "read_batch", "plan_write", "write", "commit"),
)


def play(role: Callable[[], object]) -> tuple[list[str], float]:
    """Play a role in a child; give the modules it has imported, and what it took."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        before, start_s = {*sys.modules}, time.process_time()
        role()
        took_s = time.process_time() - start_s
        answer = json.dumps([sorted({*sys.modules} - before), took_s])
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read().decode()
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"{role} failed")
    modules, took_s = json.loads(answer)
    return modules, took_s


def main(directory: str, rounds: str, *formats: str) -> None:
    """Play all roles."""
    turns = range(int(rounds))
    found = {"pyarrow": [play(lambda: __import__("pyarrow")) for _ in turns]}
    # What Spark's processes have loaded before they meet a source.
    import pyspark.sql.streaming.python_streaming_source_runner
    import pyspark.sql.worker.write_into_data_source
    import pyspark.worker  # noqa: F401

    for format, _, servers in (each.partition("=") for each in formats):
        roles = Roles(format, servers, Path(directory))
        for _ in turns:
            for name in ROLES:
                played = found.setdefault(f"{format} {name}", [])
                played.append(play(getattr(roles, name)))
    answer = {
        name: [each[-1][0], [took_s for _, took_s in each]]
        for name, each in found.items()
    }
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
