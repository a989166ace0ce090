"""Streaming queries into topics: once, in every output mode, over restarts.

The source is a directory of text files, one for each micro-batch. Cases of Spark's
KafkaSinkSuite are here where they apply.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient
from tests.integration.kit import PATIENCE_S
from tests.spark.stream_troubled import TroubledStreamSource
from tests.spark.writing import (
    count_stages,
    list_topics,
    make_config,
    read_records,
    read_values,
)

# Some day in the past.
_FIRST_TIME_S = 1_700_000_000

Transform = Callable[[DataFrame], DataFrame]


class Stream:
    """A query that can be started again: files in, topics out.

    Args:
        spark: the session.
        broker: where rows go.
        directory: where its files and its checkpoint are.
        options: of the sink.
    """

    def __init__(
        self,
        spark: SparkSession,
        broker: EmbeddedBroker,
        directory: Path,
        **options: Any,
    ) -> None:
        checksum = "crc32" if broker.config.dialect == "plain" else "crc32c"
        there = {"servers": broker.address, "checksum": checksum}
        self.checkpoint = directory / "checkpoint"
        self.options = {**there, "checkpointLocation": str(self.checkpoint), **options}
        self.transform: Transform = lambda frame: frame
        self.mode = "append"
        self.format = "lance"
        self._spark = spark
        self._source = directory / "source"
        self._source.mkdir()
        self._files = 0

    def add(self, *lines: str) -> None:
        """Add what is read as one micro-batch."""
        path = self._source / f"{self._files:03}.txt"
        # Spark takes files in the order of their times, which could be the same.
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        os.utime(path, (_FIRST_TIME_S + self._files,) * 2)
        self._files += 1

    def run(self) -> StreamingQuery:
        """Start it, and wait until it has read all files."""
        reader = self._spark.readStream.option("maxFilesPerTrigger", 1)
        frame = self.transform(reader.text(str(self._source)))
        writer = frame.writeStream.format(self.format).outputMode(self.mode)
        query = writer.options(**self.options).trigger(availableNow=True).start()
        assert query.awaitTermination(int(PATIENCE_S))
        return query

    def refuse(self) -> str:
        """Start it, and give what the user is told."""
        with pytest.raises(StreamingQueryException) as told:
            self.run()
        return str(told.value)

    def forget_last_commit(self) -> int:
        """Have Spark believe that the last batch was not committed; say which it is."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink()
        return last


def _read_left(broker: EmbeddedBroker, topic: str) -> list[bytes]:
    with LanceClient(config=make_config(broker)) as client:
        start = client.bounds(client.topic(topic).id).start
    return sorted(bytes(r.value) for r in read_records(broker, topic, start))


def _count_words(frame: DataFrame) -> DataFrame:
    counts = frame.groupBy("value").count()
    return counts.selectExpr("concat(value, ' ', count) value")


def _delete(broker: EmbeddedBroker, topic: str) -> None:
    with LanceClient(config=make_config(broker)) as client:
        client.delete_topic(client.topic(topic).id)


@pytest.mark.parametrize("dialect", ["broker", "plain_broker"])
def test_a_batch_that_spark_forgot_is_written_once(
    spark: SparkSession,
    tmp_path: Path,
    dialect: str,
    request: pytest.FixtureRequest,
) -> None:
    """A plain server writes it twice, which shows that it is really replayed."""
    broker: EmbeddedBroker = request.getfixturevalue(dialect)
    stream = Stream(spark, broker, tmp_path, topic="a", queryName="appends")
    stream.transform = lambda frame: frame.repartition(3)
    for number in range(3):
        stream.add(*(f"{number}.{line}" for line in range(5)))
    query = stream.run()
    expected = [f"{n}.{line}".encode() for n in range(3) for line in range(5)]
    assert sorted(read_values(broker, "a")) == expected
    assert [progress.numInputRows for progress in query.recentProgress] == [5, 5, 5]
    assert stream.forget_last_commit() == 2
    stream.add("3.0")
    stream.run()
    expected.append(b"3.0")
    again = [] if dialect == "broker" else expected[10:15]
    assert Counter(read_values(broker, "a")) == Counter(expected + again)
    if dialect == "broker":
        assert count_stages(broker) == 0


def test_rows_are_routed(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Batches without rows, a replay, and a topic that is deleted meanwhile."""
    stream = Stream(spark, broker, tmp_path)
    stream.transform = lambda frame: frame.where("value <> 'x'").selectExpr(
        "split(value, ' ')[0] topic", "value"
    )
    stream.add("x")
    stream.run()
    assert list_topics(broker) == []
    stream.add("a 1", "b 1", "x", "c 1")
    stream.add("x")
    stream.add("b 2", "a 2")
    stream.run()
    assert stream.forget_last_commit() == 3
    stream.run()
    found = {topic: read_values(broker, topic) for topic in list_topics(broker)}
    assert found == {"a": [b"a 1", b"a 2"], "b": [b"b 1", b"b 2"], "c": [b"c 1"]}
    _delete(broker, "a")
    stream.add("a 3", "c 3")
    stream.run()
    assert read_values(broker, "a") == [b"a 3"]
    assert read_values(broker, "c") == [b"c 1", b"c 3"]
    assert count_stages(broker) == 0


def test_complete_mode_replaces(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    stream = Stream(spark, broker, tmp_path, topic="a")
    stream.mode, stream.transform = "complete", _count_words
    stream.add("one", "two", "two")
    stream.run()
    assert _read_left(broker, "a") == [b"one 1", b"two 2"]
    stream.add("two", "three")
    stream.run()
    left = [b"one 1", b"three 1", b"two 3"]
    assert _read_left(broker, "a") == left
    stream.forget_last_commit()
    stream.run()
    assert (_read_left(broker, "a"), count_stages(broker)) == (left, 0)


def test_complete_mode_needs_stages(
    spark: SparkSession, plain_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    stream = Stream(spark, plain_broker, tmp_path, topic="a")
    stream.mode, stream.transform = "complete", _count_words
    stream.add("one")
    said = stream.refuse()
    assert 'outputMode("complete") (use outputMode("append") here)' in said
    assert list_topics(plain_broker) == []


def test_update_mode_is_refused_by_spark(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """No sink in Python can have it; if that changes, so may this."""
    stream = Stream(spark, broker, tmp_path, topic="a")
    stream.mode, stream.transform = "update", _count_words
    stream.add("one")
    assert "lance does not support Update mode" in stream.refuse()
    assert (list_topics(broker), count_stages(broker)) == ([], 0)


def test_tasks_are_run_again(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Every task has written all its rows when it fails for the first time."""
    spark.dataSource.register(TroubledStreamSource)
    stream = Stream(spark, broker, tmp_path, topic="a")
    stream.format = "troubled-stream"
    lines = [str(number) for number in range(10)]
    stream.add(*lines)
    stream.run()
    assert sorted(read_values(broker, "a")) == [line.encode() for line in lines]
    assert broker.metrics.snapshot().traffic.records_in == 2 * len(lines)
    assert count_stages(broker) == 0


def test_what_the_user_is_told(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Mistakes end the query, and it goes on where it was when they are mended."""
    stream = Stream(spark, broker, tmp_path, topic="a", createTopic="false")
    stream.add("1")
    assert "createTopic=false, and there is no topic 'a'" in stream.refuse()
    del stream.options["createTopic"]
    stream.transform = lambda frame: frame.selectExpr("'k' key", "null value")
    assert "a key but no value" in stream.refuse()
    assert list_topics(broker) == []
    # Nobody could name the stages of the tasks that failed.
    assert count_stages(broker) > 0
    stream.transform = lambda frame: frame
    stream.run()
    assert (read_values(broker, "a"), count_stages(broker)) == ([b"1"], 0)
