"""Exactly once, whatever happens to tasks, processes, connections and the broker.

The same happens to writes without stages, which shows that it really does happen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from lance_spark.broker import EmbeddedBroker
from tests.integration.kit import PATIENCE_S
from tests.integration.proxy import Proxy
from tests.spark.saving import (
    Arrivals,
    check_untouched,
    lose_acks,
    make_numbers,
    refuse,
    save,
    small_batches,
    to_numbers,
)
from tests.spark.troubled import (
    ALL,
    BATCH_ROWS,
    HALF,
    PASSED,
    ROW_BYTES,
    ROWS,
    Trouble,
    TroubledSource,
    TroubleError,
)
from tests.spark.writing import count_stages, list_topics, read_values

# Small frames, so that there are many acks.
SMALL: dict[str, Any] = {"batchBytes": "64k", "topic": "a"}

DELIVERIES = ["exactly-once", "at-least-once"]


@pytest.fixture
def troubled(spark: SparkSession) -> Iterator[SparkSession]:
    """Give a session that knows the source of `troubled`, and few rows at once."""
    spark.dataSource.register(TroubledSource)
    with small_batches(spark, BATCH_ROWS):
        yield spark


def _numbers(spark: SparkSession) -> DataFrame:
    return make_numbers(spark, ROWS, padding=ROW_BYTES)


def _read(broker: EmbeddedBroker, topic: str = "a") -> list[int]:
    return to_numbers(read_values(broker, topic))


@pytest.fixture
def arrivals(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Arrivals:
    """Count what arrives; a test says what is enough."""
    return Arrivals(broker, monkeypatch, tmp_path / "ready")


# Tasks.


@pytest.mark.parametrize(
    ("what", "delivery"),
    [
        ("raise", "exactly-once"),
        ("kill", "exactly-once"),
        ("kill", "at-least-once"),
    ],
)
def test_a_task_fails_that_has_written_all_its_rows(
    troubled: SparkSession, broker: EmbeddedBroker, what: str, delivery: str
) -> None:
    trouble = Trouble(what=what, at_end=True)
    options = {**SMALL, "delivery": delivery, "trouble": trouble}
    save(_numbers(troubled), broker, format="troubled", **options)
    found = _read(broker)
    if delivery == "exactly-once":
        assert found == ALL
        assert count_stages(broker) == 0
    else:
        assert Counter(found) == Counter(ALL + ALL[HALF:])


@pytest.mark.parametrize(
    ("where", "what", "delivery"),
    [
        ("in the writer", "raise", "exactly-once"),
        ("in the writer", "kill", "exactly-once"),
        ("in the writer", "kill", "at-least-once"),
        ("in the user's code", "raise", "exactly-once"),
        ("in the user's code", "raise", "at-least-once"),
    ],
)
def test_a_task_fails_in_the_middle(
    troubled: SparkSession,
    broker: EmbeddedBroker,
    arrivals: Arrivals,
    *,
    where: str,
    what: str,
    delivery: str,
) -> None:
    # More than the other partition has, so that some are of the one that fails.
    arrivals.enough = HALF + 1
    trouble = Trouble(what=what, ready=str(arrivals.path))
    frame, options = _numbers(troubled), {**SMALL, "delivery": delivery}
    if where == "in the writer":
        options |= {"format": "troubled", "trouble": str(trouble)}
    else:
        frame = frame.mapInArrow(trouble.pass_on, "value string")
    with arrivals.watched():
        save(frame, broker, **options)
    found = _read(broker)
    assert arrivals.records > ROWS
    if delivery == "exactly-once":
        assert found == ALL
        assert count_stages(broker) == 0
    else:
        assert set(found) == set(ALL)
        assert len(found) == arrivals.records


# Jobs.


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_job_fails_half_way(
    troubled: SparkSession, broker: EmbeddedBroker, arrivals: Arrivals, delivery: str
) -> None:
    arrivals.enough = HALF + 1
    trouble = Trouble(what="raise", ready=str(arrivals.path), always=True)
    options = {**SMALL, "delivery": delivery, "trouble": trouble}
    with arrivals.watched():
        said = refuse(_numbers(troubled), broker, format="troubled", **options)
    assert "as the test wants it" in said
    if delivery == "exactly-once":
        check_untouched(broker)
    else:
        # All of one partition, and what tries of the other one have left.
        found = Counter(_read(broker))
        assert [found[number] for number in ALL[:HALF]] == [1] * HALF
        assert found[HALF] >= 1


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_two_jobs_at_a_time(
    troubled: SparkSession, broker: EmbeddedBroker, arrivals: Arrivals, delivery: str
) -> None:
    # More than one job has sent when it waits, so that both are in the middle.
    arrivals.enough = 2 * HALF + PASSED * BATCH_ROWS + 1
    trouble = Trouble(what="wait", ready=str(arrivals.path))
    options = {**SMALL, "delivery": delivery, "trouble": trouble}

    def write() -> None:
        # Spark finds sources in Python only where a thread has a session of its own,
        # and this is what gives it one.
        troubled.createDataFrame([], "value string")
        save(_numbers(troubled), broker, format="troubled", **options)

    with arrivals.watched(), ThreadPoolExecutor() as pool:
        for job in [pool.submit(write) for _ in range(2)]:
            job.result(2 * PATIENCE_S)
    found = _read(broker)
    assert Counter(found) == Counter(ALL + ALL)
    # Each is whole and in one piece, or they are mixed.
    assert (found == ALL + ALL) == (delivery == "exactly-once")


# Connections, and the broker.


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_acks_are_lost(
    troubled: SparkSession, broker: EmbeddedBroker, delivery: str
) -> None:
    with Proxy(broker.address, lose_acks) as proxy:
        options = {**SMALL, "delivery": delivery, "servers": proxy.address}
        save(_numbers(troubled), broker, **options)
        assert proxy.cuts >= 4
    found = _read(broker)
    if delivery == "exactly-once":
        assert found == ALL
    else:
        assert set(found) == set(ALL)
        assert len(found) > ROWS


def test_the_broker_is_restarted(
    troubled: SparkSession, broker: EmbeddedBroker, arrivals: Arrivals
) -> None:
    def restart() -> None:
        broker.stop()
        broker.start()

    arrivals.enough, arrivals.first = HALF + 1, restart
    trouble = Trouble(what="wait", ready=str(arrivals.path))
    options = {**SMALL, "trouble": trouble}
    with arrivals.watched():
        save(_numbers(troubled), broker, format="troubled", **options)
    assert _read(broker) == ALL
    assert count_stages(broker) == 0


# Versions of the user's.


def test_a_version_is_written_once(spark: SparkSession, broker: EmbeddedBroker) -> None:
    def write(version: int, value: str) -> None:
        frame = spark.sql(f"select '{value}' value")
        save(frame, broker, topic="a", txnAppId="app", txnVersion=version)

    write(5, "first")
    write(5, "again")
    write(4, "lower")
    assert read_values(broker, "a") == [b"first"]
    write(6, "higher")
    assert read_values(broker, "a") == [b"first", b"higher"]
    assert count_stages(broker) == 0


def test_batches_of_a_query_that_is_run_again(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Two writes with one version, and one without that shows what they save from."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(2):
        (source / f"{number}.txt").write_text(f"{number}", encoding="utf-8")
    breaks = [True]

    def write(frame: DataFrame, batch: int) -> None:
        version: dict[str, Any] = {"txnAppId": "query", "txnVersion": batch}
        save(frame, broker, topic="a", **version)
        save(frame, broker, topic="without")
        if breaks:
            breaks.pop()
            raise TroubleError("between the writes")
        save(frame, broker, topic="b", **version)

    def run() -> None:
        stream = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
        there = tmp_path / "checkpoint"
        writer = stream.writeStream.foreachBatch(write).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(there)).start()
        assert query.awaitTermination(int(PATIENCE_S))

    with pytest.raises(StreamingQueryException, match="between the writes"):
        run()
    assert sorted(list_topics(broker)) == ["a", "without"]
    run()
    assert sorted(read_values(broker, "a")) == [b"0", b"1"]
    assert sorted(read_values(broker, "b")) == [b"0", b"1"]
    assert len(read_values(broker, "without")) == 3
