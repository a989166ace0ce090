"""What the tests of writing share: options, rows, what is stored, what is left over."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import ClientConfig, LanceClient
from lance_spark.spark.job import WriteJob, plan_job
from lance_spark.spark.options import WriteOptions, parse_write_options
from lance_spark.spark.pool import clear_pool
from lance_spark.spark.sink import TaskResult, commit_job, write_task
from lance_spark.wire.lwp import Record, decode_records
from tests.integration.kit import PATIENCE_S, read_bytes

T = TypeVar("T")

_KINDS = {
    "value": pa.binary(),
    "key": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.int64(),
    "type": pa.int16(),
    "topic": pa.string(),
}


def make_config(broker: EmbeddedBroker, **changes: Any) -> ClientConfig:
    """Make the settings of a client that does not wait long between tries."""
    config = ClientConfig(
        servers=broker.address,
        checksum="crc32" if broker.config.dialect == "plain" else "crc32c",
        retry_timeout_s=PATIENCE_S,
        backoff_base_s=0.001,
        backoff_max_s=0.01,
    )
    return replace(config, **changes)


def make_options(broker: EmbeddedBroker, **changes: Any) -> WriteOptions:
    """Make the options of a write: the defaults, apart from these."""
    options = parse_write_options({})
    return replace(options, **{"client": make_config(broker), **changes})


def make_job(
    broker: EmbeddedBroker, *, overwrite: bool = False, **changes: Any
) -> WriteJob:
    """Make a job as the driver does."""
    return travel(plan_job(make_options(broker, **changes), overwrite))


def hurry(job: WriteJob) -> WriteJob:
    """Have a job give up soon, for when the server is known to be gone."""
    config = replace(job.options.client, retry_timeout_s=0.05)
    return replace(job, options=replace(job.options, client=config))


def travel(value: T) -> T:
    """Do what Spark does to everything on its way to another process."""
    copy: T = pickle.loads(pickle.dumps(value))
    return copy


def rows(**columns: Iterable[Any]) -> pa.RecordBatch:
    """Make a batch, of the types that Spark would give."""
    made = {
        name: pa.array(list(column), _KINDS.get(name))
        for name, column in columns.items()
    }
    return pa.RecordBatch.from_pydict(made)


def values(*given: bytes) -> pa.RecordBatch:
    """Make a batch of values alone."""
    return rows(value=given)


def run_tasks(job: WriteJob, *tasks: Iterable[pa.RecordBatch]) -> list[TaskResult]:
    """Run each of these as a task of the job; they are partitions in this order."""
    return [travel(write_task(job, iter(task))) for task in tasks]


def run_job(job: WriteJob, *tasks: Iterable[pa.RecordBatch]) -> None:
    """Run the tasks and commit them."""
    commit_job(job, run_tasks(job, *tasks))


def read_records(broker: EmbeddedBroker, topic: str, start: int = 0) -> list[Record]:
    """Read what a topic holds."""
    with LanceClient(config=make_config(broker)) as client:
        return list(decode_records(read_bytes(client, topic, start)))


def read_values(broker: EmbeddedBroker, topic: str) -> list[bytes]:
    """Read the values of a topic."""
    return [bytes(record.value) for record in read_records(broker, topic)]


def list_topics(broker: EmbeddedBroker) -> list[str]:
    """List the topics that there are."""
    with LanceClient(config=make_config(broker)) as client:
        return [info.name for info in client.topics()]


def create_topics(broker: EmbeddedBroker, *topics: str) -> None:
    """Create topics."""
    with LanceClient(config=make_config(broker)) as client:
        for topic in topics:
            client.create_topic(topic)


def count_stages(broker: EmbeddedBroker) -> int:
    """Count the stages that a broker has."""
    store = broker.service.store
    return len(store.stages())


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """Check that the threads of writers end, which none does that is just dropped."""
    clear_pool()
    yield
    clear_pool()
    left = [thread.name for thread in threading.enumerate()]
    assert not [name for name in left if name.startswith("lance-producer")]
