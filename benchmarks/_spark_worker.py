"""Read or write a topic as a Python worker of Spark does; print the memory it took.

    python -m benchmarks._spark_worker read|write SERVERS TOPIC ROWS

What is read is written as the worker writes it to the JVM, into nothing; what is
written comes in batches as large as the JVM makes them.
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
from pyspark.sql.types import BinaryType, StructType

from benchmarks._spark_source import make_batch
from lance_spark.spark.schema import make_row_schema
from lance_spark.spark.source import LanceDataSource

VALUE_BYTES = 100
_JVM_ROWS = 10_000


def main(verb: str, servers: str, topic: str, rows: str) -> None:
    """Read or write all of a topic in one partition."""
    options = {"servers": servers, "topic": topic}
    done = {"read": read, "write": write}[verb](options, int(rows))
    assert done == int(rows), done
    print(read_peak_bytes(Path("/proc/self/status")))


def read(options: dict[str, str], rows: int) -> int:
    """Read a topic; give its rows."""
    planned = LanceDataSource({**options, "splitting": "none"}).reader(
        make_row_schema()
    )
    (partition,) = planned.partitions()
    reader: DataSourceReader = pickle.loads(pickle.dumps(planned))
    done = 0
    with pa.OSFile(os.devnull, "wb") as nowhere:
        schema = to_arrow_schema(make_row_schema(), timezone="UTC")
        with pa.ipc.new_stream(nowhere, schema) as stream:
            for batch in reader.read(partition):
                assert isinstance(batch, pa.RecordBatch)
                stream.write_batch(batch)
                done += batch.num_rows
    return done


def write(options: dict[str, str], rows: int) -> int:
    """Write a topic; give its rows."""
    schema = StructType().add("value", BinaryType())
    writer = LanceDataSource(options).writer(schema, False)
    batch = make_batch(("value",), VALUE_BYTES).slice(0, _JVM_ROWS)
    batches = (batch.slice(0, rows - done) for done in range(0, rows, _JVM_ROWS))
    message = pickle.loads(pickle.dumps(writer)).write(batches)
    writer.commit([message])
    records: int = message.result.records
    return records


def read_peak_bytes(status: Path) -> int:
    """Read the most memory that a process has had, its libraries included."""
    # Where there is /proc, as the other figure includes what the parent had in use.
    if status.exists():
        text = status.read_text(encoding="utf-8")
        return int(text.partition("VmHWM:")[2].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    main(*sys.argv[1:])
