"""`lance-spark bench`: how fast records go to a server and come back."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import click
import numpy as np
import pyarrow as pa

from lance_spark.broker import EmbeddedBroker
from lance_spark.cli.display import count, show_progress
from lance_spark.cli.options import (
    SIZE,
    batch_option,
    compression_option,
    connected,
    is_server_given,
    option,
    server_options,
)
from lance_spark.client import LanceClient, Producer, RecordReader
from lance_spark.client.config import ConnectionConfig
from lance_spark.errors import LanceError
from lance_spark.quantity import format_bytes, format_rate
from lance_spark.wire.lwp import RECORD_VALUE_BYTES_MAX

# About so much is written at once, and shown in the progress.
_WRITE_BYTES = 4 * 1024 * 1024


@click.command("bench")
@option("--records=1000000", click.IntRange(min=1), "How many records.")
@option("--size=100", SIZE, "Bytes of each.")
@batch_option
@compression_option
@server_options
def command(config: ConnectionConfig, **how: Any) -> None:
    """Send records to a server, read them back, and print both rates.

    Without --servers a broker is started inside this process, with its data in a
    temporary directory. A topic is made for it and deleted in the end.
    """
    if how["size"] > RECORD_VALUE_BYTES_MAX:
        raise click.UsageError(f"--size: a record has {RECORD_VALUE_BYTES_MAX} at most")
    with ExitStack() as stack:
        kind = config.servers
        if not is_server_given():
            kind = "a broker in this process"
            broker = stack.enter_context(EmbeddedBroker())
            config = replace(config, servers=broker.address)
        client = stack.enter_context(connected(config))
        records = count(how["records"], "record")
        print(f"{records} of {format_bytes(how['size'])}, {kind}", flush=True)
        topic = client.create_topic(f"lance-bench-{os.urandom(4).hex()}").name
        stack.callback(client.delete_topic, topic)
        _produce(client, topic, how)
        _consume(client, topic, how["records"])


def make_rows(rows: int, size: int) -> pa.RecordBatch:
    """Make records of random printable bytes, so that compression has some work."""
    data = np.random.default_rng(1).integers(32, 96, rows * size, np.uint8)
    ends = np.arange(rows + 1, dtype=np.int32) * size
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.record_batch({"value": pa.Array.from_buffers(pa.binary(), rows, buffers)})


def _produce(client: LanceClient, topic: str, how: dict[str, Any]) -> None:
    records = how["records"]
    step = min(records, max(1, _WRITE_BYTES // max(how["size"], 1)))
    rows = make_rows(step, how["size"])
    began_s = time.perf_counter()
    with (
        show_progress("producing") as update,
        Producer(
            *(client, topic),
            batch_bytes=how["batch_bytes"],
            compression=how["compression"],
        ) as producer,
    ):
        for start in range(0, records, step):
            producer.write(rows.slice(0, min(step, records - start)))
            done = producer.acked_records
            update(done, producer.acked_bytes, done / records)
        producer.flush()
        seconds = time.perf_counter() - began_s
    rate = format_rate(records, producer.acked_bytes, seconds)
    print(f"  produce  {rate}", flush=True)


def _consume(client: LanceClient, topic: str, records: int) -> None:
    read = size = 0
    began_s = time.perf_counter()
    reader = RecordReader(client, topic, 0)
    with show_progress("consuming") as update:
        while (chunk := reader.next_chunk()) is not None:
            read, size = read + chunk.records, size + len(chunk.data)
            update(read, size, read / records)
    seconds = time.perf_counter() - began_s
    reader.close()
    if read != records:
        raise LanceError(f"{records} records were acknowledged and {read} read back")
    print(f"  consume  {format_rate(read, size, seconds)}", flush=True)
