"""Write the frozen checkpoints: how it was done, once, with release 0.1.0.

    PYTHONPATH=. .venv/bin/python tests/vectors/checkpoint-v1/make.py DIRECTORY

A released version's are never written again: whoever has to do so breaks somebody's
queries. A new format gets a directory of its own.

For each dialect: `broker` is the data directory of a broker, `checkpoint` that of a
query which has read some of it. The query was stopped in its last batch: that one is in
`offsets` and not in `commits`. Records came after it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer
from tests.spark.engine.session import run_session

TOPICS = ("events", "orders")


def append(broker: EmbeddedBroker, start: int, end: int, size: int) -> None:
    """Append records to all topics; each says what it is, with spaces up to a size."""
    checksum = "crc32" if broker.config.dialect == "plain" else "crc32c"
    with LanceClient(broker.address, checksum=checksum) as client:
        for topic in TOPICS:
            with Producer(client, topic, create_topic=True) as producer:
                for number in range(start, end):
                    value = f"{topic} {number}".encode().ljust(size)
                    producer.send(value, key=b"%d" % number)


def run_query(spark: SparkSession, broker: EmbeddedBroker, checkpoint: Path) -> None:
    """Read all that is there, in batches of six records."""
    checksum = "crc32" if broker.config.dialect == "plain" else "crc32c"
    reader = spark.readStream.format("lance").options(
        servers=broker.address,
        checksum=checksum,
        topicPattern="events|orders",
        startingOffsets="earliest",
        maxRecordsPerTrigger="6",
    )
    writer = reader.load().writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)


def forget_last_commit(checkpoint: Path) -> None:
    """Have the last batch not be finished."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink()


def make(spark: SparkSession, directory: Path, dialect: str, size: int = 0) -> None:
    """Write what one dialect has."""
    data, checkpoint = directory / "broker", directory / "checkpoint"
    with EmbeddedBroker(data_dir=str(data), dialect=dialect) as broker:
        append(broker, 0, 10, size)
        run_query(spark, broker, checkpoint)
        forget_last_commit(checkpoint)
        append(broker, 10, 15, size)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    with run_session(where / "spark") as session:
        for name in ("lwp", "plain"):
            make(session, where / name, name)
