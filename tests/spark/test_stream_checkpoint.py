"""Checkpoints: what Spark forgets, and what earlier releases have written.

Spark notes where a batch ends before it runs, and that it is done after the sink has
committed it. A process that dies in between is what deleting from `commits` looks like.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer
from lance_spark.offset import StreamOffset
from lance_spark.wire.lwp import Record
from tests.integration.kit import PATIENCE_S, wait_for
from tests.spark.reading import fill, make_options
from tests.spark.writing import make_config, read_values

VECTORS = Path(__file__).parent.parent / "vectors"
# What release 0.1.0 has written, and 0.6, whose marks cover more.
FROZEN = ["checkpoint-v1/lwp", "checkpoint-v1/plain", "checkpoint-v1-marks/plain"]
# Where the frozen queries go on: what their last finished batch did not have.
RESUMED = {"events": 9, "orders": 9}


class Copy:
    """A query that copies a topic and can be started again.

    Args:
        spark: the session.
        broker: has both topics.
        checkpoint: a directory, which need not be there.
        read: options of the source.
    """

    def __init__(
        self,
        spark: SparkSession,
        broker: EmbeddedBroker,
        checkpoint: Path,
        **read: Any,
    ) -> None:
        self.checkpoint = checkpoint
        self.target = "out"
        self._spark = spark
        self._broker = broker
        self._read = make_options(broker, **read)

    def start(self, **trigger: Any) -> StreamingQuery:
        """Start it with a trigger."""
        reader = self._spark.readStream.format("lance").options(**self._read)
        write = make_options(
            self._broker, topic=self.target, checkpointLocation=self.checkpoint
        )
        writer = reader.load().select("value").writeStream.format("lance")
        return writer.options(**write).trigger(**trigger).start()

    def run(self) -> list[tuple[int, int]]:
        """Read all that is there; give number and rows of each batch."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(int(PATIENCE_S))
        return [(p.batchId, p.numInputRows) for p in query.recentProgress]

    def forget(self, batch: int) -> None:
        """Have Spark believe that this batch was planned and is not done."""
        remove_from(self.checkpoint / "offsets", batch + 1)
        remove_from(self.checkpoint / "commits", batch)

    @property
    def values(self) -> list[bytes]:
        """What the target holds."""
        return read_values(self._broker, self.target)


def remove_from(log: Path, batch: int) -> None:
    """Remove batches from a log of Spark's, starting with one."""
    for path in log.iterdir():
        name = path.name.removeprefix(".").removesuffix(".crc")
        if name.isdigit() and int(name) >= batch:
            path.unlink()


def values(start: int, end: int) -> list[bytes]:
    """Make values that differ."""
    return [b"value %d" % number for number in range(start, end)]


def records(start: int, end: int) -> list[Record]:
    """Make records that differ."""
    return [Record(1, value) for value in values(start, end)]


@contextlib.contextmanager
def appending(broker: EmbeddedBroker, topic: str, start: int) -> Iterator[None]:
    """Append a record after another, as fast as they are acknowledged."""
    stop = threading.Event()

    def append() -> None:
        with LanceClient(config=make_config(broker)) as client:
            number = start
            with Producer(client, topic, linger_s=0.0) as producer:
                while not stop.is_set():
                    producer.send(b"value %d" % number)
                    producer.flush(PATIENCE_S)
                    number += 1

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive(), f"it has not ended in {PATIENCE_S} s"


def test_a_batch_that_is_replayed_is_written_once(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """It has the rows that it had, also if there are more by now."""
    fill(broker, "in", records(0, 8))
    copy = Copy(
        spark,
        broker,
        tmp_path / "checkpoint",
        topic="in",
        startingOffsets="earliest",
        maxRecordsPerTrigger=3,
    )
    assert copy.run() == [(0, 3), (1, 3), (2, 2)]
    copy.forget(2)
    fill(broker, "in", records(8, 12))
    assert copy.run() == [(2, 2), (3, 3), (4, 1)]
    assert copy.values == values(0, 12)
    # Nobody has seen the rows of this batch in another topic.
    copy.forget(2)
    copy.target = "other"
    assert copy.run() == [(2, 2), (3, 3), (4, 1)]
    assert copy.values == values(6, 12)


def test_a_batch_that_is_replayed_on_a_plain_server(
    spark: SparkSession, plain_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """It is written twice there, which shows which rows it has."""
    fill(plain_broker, "in", records(0, 8))
    copy = Copy(
        spark,
        plain_broker,
        tmp_path / "checkpoint",
        topic="in",
        startingOffsets="earliest",
        maxRecordsPerTrigger=3,
    )
    assert copy.run() == [(0, 3), (1, 3), (2, 2)]
    copy.forget(2)
    fill(plain_broker, "in", records(8, 12))
    assert copy.run() == [(2, 2), (3, 3), (4, 1)]
    assert copy.values == values(0, 8) + values(6, 12)


def test_a_start_at_the_latest_is_kept(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """The first batch was never done, and the latest is another one by now.

    Records come all the time, so that a first batch which is not empty would have some.
    """
    fill(broker, "in", records(0, 5))
    copy = Copy(spark, broker, tmp_path / "checkpoint", topic="in")
    with appending(broker, "in", 5):
        query = copy.start(processingTime="0 seconds")
        wait_for(lambda: _has_rows(query), "a batch with rows", PATIENCE_S)
        query.stop()
    assert query.recentProgress[0].numInputRows == 0
    seen = copy.values
    copy.forget(0)
    fill(broker, "in", [Record(1, b"the last")])
    copy.target = "other"
    copy.run()
    everything = read_values(broker, "in")
    assert len(seen) and set(seen) <= set(copy.values)
    assert copy.values == everything[-len(copy.values) :]
    assert copy.values[0] not in values(0, 5)


def _has_rows(query: StreamingQuery) -> bool:
    error = query.exception()
    assert error is None, error
    return any(progress.numInputRows for progress in query.recentProgress)


# Checkpoints of earlier releases, which `make.py` beside them has written.


def _read_offsets(frozen: str) -> list[str]:
    log = VECTORS / frozen / "checkpoint" / "offsets"
    paths = sorted((p for p in log.iterdir() if p.name.isdigit()), key=lambda p: p.name)
    return [path.read_text(encoding="utf-8").splitlines()[2] for path in paths]


@pytest.mark.parametrize("frozen", FROZEN)
def test_offsets_of_format_1(frozen: str) -> None:
    """They are read, and written again as the same text, which Spark compares."""
    texts = _read_offsets(frozen)
    assert len(texts) == 4
    before = {"events": 0, "orders": 0}
    for text in texts:
        offset = StreamOffset.from_document(json.loads(text))
        assert json.dumps(offset.to_document()) == text
        places = dict(offset.topics)
        assert set(places) == set(before)
        assert all(place.offset >= before[t] for t, place in places.items())
        marks = [place.mark for place in places.values()]
        assert all((mark is None) == frozen.endswith("lwp") for mark in marks)
        before = {topic: place.offset for topic, place in places.items()}
    has_more = frozen == "checkpoint-v1-marks/plain"
    for mark in marks:
        assert has_more == (mark is not None and mark.end is not None)
        assert has_more == (mark is not None and mark.head_size is not None)


@pytest.mark.parametrize("frozen", FROZEN)
def test_a_query_goes_on_from_format_1(
    spark: SparkSession, tmp_path: Path, frozen: str
) -> None:
    """Its last batch was planned and is not done; records have come since."""
    dialect = Path(frozen).name
    shutil.copytree(VECTORS / frozen, tmp_path / dialect)
    data = str(tmp_path / dialect / "broker")
    with EmbeddedBroker(data_dir=data, dialect=dialect, fsync="none") as broker:
        checkpoint = tmp_path / dialect / "checkpoint"
        copy = Copy(spark, broker, checkpoint, topicPattern="events|orders")
        batches = copy.run()
        assert [number for number, _ in batches] == [3, 4]
        rest = [
            f"{topic} {number}".encode()
            for topic, first in RESUMED.items()
            for number in range(first, 15)
        ]
        assert sorted(value.rstrip() for value in copy.values) == sorted(rest)
