"""Read a topic as a Python worker of Spark does, and print the most memory it took.

    python -m benchmarks._spark_worker SERVERS TOPIC

The batches are written as the worker writes them to the JVM, into nothing.
"""

from __future__ import annotations

import os
import pickle
import resource
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.pandas.types import to_arrow_schema

from lance_spark.spark.schema import make_row_schema
from lance_spark.spark.source import LanceDataSource


def main(servers: str, topic: str) -> None:
    """Read all of a topic in one partition."""
    options = {"servers": servers, "topic": topic, "splitting": "none"}
    planned = LanceDataSource(options).reader(make_row_schema())
    (partition,) = planned.partitions()
    reader: DataSourceReader = pickle.loads(pickle.dumps(planned))
    with pa.OSFile(os.devnull, "wb") as nowhere:
        schema = to_arrow_schema(make_row_schema(), timezone="UTC")
        with pa.ipc.new_stream(nowhere, schema) as stream:
            for batch in reader.read(partition):
                stream.write_batch(batch)
    print(_read_peak_bytes())


def _read_peak_bytes() -> int:
    # Where there is /proc, as the other figure includes what the parent had in use.
    status = Path("/proc/self/status")
    if status.exists():
        text = status.read_text(encoding="utf-8")
        return int(text.partition("VmHWM:")[2].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    main(*sys.argv[1:])
