"""What the tests of writes through Spark share: saving, and what was stored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lance_spark.broker import EmbeddedBroker
from tests.integration.kit import PATIENCE_S
from tests.integration.proxy import CLEAR, Fate, Flow
from tests.spark.troubled import mark_late
from tests.spark.writing import count_stages, list_topics

_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def save(
    frame: DataFrame,
    broker: EmbeddedBroker,
    *,
    mode: str | None = "append",
    format: str = "lance",
    **options: Any,
) -> None:
    """Write rows as a user does; no mode is Spark's own default."""
    checksum = "crc32" if broker.config.dialect == "plain" else "crc32c"
    writer = frame.write.format(format)
    if mode is not None:
        writer = writer.mode(mode)
    there = {"servers": broker.address, "checksum": checksum}
    writer.options(**{**there, **options}).save()


def refuse(frame: DataFrame, broker: EmbeddedBroker, **given: Any) -> str:
    """Try to write rows, and give what the user is told."""
    with pytest.raises(PySparkException) as told:
        save(frame, broker, **given)
    return str(told.value)


def check_untouched(broker: EmbeddedBroker, *topics: str) -> None:
    """Check that there are these topics alone, and nothing that waits for a commit."""
    assert sorted(list_topics(broker)) == sorted(topics)
    if broker.config.dialect != "plain":
        assert count_stages(broker) == 0


def make_numbers(
    spark: SparkSession, count: int, *, partitions: int = 2, padding: int = 0
) -> DataFrame:
    """Make rows that say which they are, in the order of their partitions."""
    rows = spark.range(0, count, numPartitions=partitions)
    return rows.selectExpr(f"concat(id, ' ', repeat('x', {padding})) value")


def to_numbers(values: list[bytes]) -> list[int]:
    """Say which of the rows of `make_numbers` these are."""
    return [int(value.split(b" ")[0]) for value in values]


@contextmanager
def small_batches(spark: SparkSession, rows: int) -> Iterator[None]:
    """Have Spark give few rows at once to a writer."""
    spark.conf.set(_BATCH_ROWS, rows)
    try:
        yield
    finally:
        spark.conf.unset(_BATCH_ROWS)


def lose_acks(number: int) -> Fate:
    """Say what happens to a connection: the first ones end in front of an ack.

    The first frame down is the answer to the greeting. Connection 0 is the driver's.
    """
    late = Flow(cut_frame=2 + number % 3, cut_share=0)
    return Fate(down=late) if 0 < number < 12 else CLEAR


class Arrivals:
    """Counts the records that a broker takes, and tells when there are enough.

    Args:
        broker: its own count goes on.
        patch: undoes it.
        path: the file that is made when there are enough, for tasks to wait for.
    """

    def __init__(
        self, broker: EmbeddedBroker, patch: pytest.MonkeyPatch, path: Path
    ) -> None:
        self.path = path
        self.records = 0
        self.enough = 1
        # Done before the file is made, in a thread that is not the broker's.
        self.first: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._reached = threading.Event()
        self._is_over = False
        self._appended = broker.metrics.appended
        patch.setattr(broker.metrics, "appended", self._note)

    def _note(self, topic_id: int | None, records: int, bytes: int) -> None:
        self._appended(topic_id, records, bytes)
        with self._lock:
            self.records += records
            if self.records >= self.enough:
                self._reached.set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch while something is written; check that enough has arrived."""
        thread = threading.Thread(target=self._act)
        thread.start()
        try:
            yield
        finally:
            self._is_over = True
            self._reached.set()
            thread.join(PATIENCE_S)
        assert self.path.exists(), f"{self.records} records are not {self.enough}"
        assert not mark_late(self.path).exists(), "a task has waited in vain"

    def _act(self) -> None:
        self._reached.wait(2 * PATIENCE_S)
        if not self._is_over:
            self.first()
            self.path.touch()
