"""The Spark part of the demo: that it works, and that it would notice if it did not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from lance_spark.broker import EmbeddedBroker
from lance_spark.cli.demo_record import make_records
from lance_spark.client import LanceClient, Producer
from lance_spark.spark import demo, demo_stream

pytestmark = pytest.mark.spark


@pytest.fixture
def filled(broker: EmbeddedBroker) -> EmbeddedBroker:
    """Put the demo's records into a topic."""
    with (
        LanceClient(broker.address) as client,
        Producer(client, "events", create_topic=True) as producer,
    ):
        producer.write(make_records(0, 5000))
    return broker


def test_topic_in_topic_out_and_back(
    spark: SparkSession, filled: EmbeddedBroker
) -> None:
    said: list[tuple[str, str]] = []
    demo.run(spark, filled.address, "events", lambda *line: said.append(line))
    assert [step for step, _ in said] == [*(2 * ["read"]), *(2 * ["write"]), "", ""]
    for _, text in said[:2]:
        assert text.startswith("5,000 records of 'events' in 4 tasks, ")
    # Every other keyed record of a thousand users, twice written and once there.
    assert said[3][1].startswith("200 users and their counts into 'users', sent again")
    assert '"events":5' in said[4][1]


def test_other_rows_than_were_written_are_noticed(
    spark: SparkSession, filled: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = demo._write

    def write_some(users: Any, servers: str) -> None:
        write(users.limit(10), servers)

    monkeypatch.setattr(demo, "_write", write_some)
    with pytest.raises(ValueError, match="'users' holds other rows"):
        demo.run(spark, filled.address, "events", lambda *line: None)


def test_a_stream_that_crashes(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    said: list[tuple[str, str]] = []
    shown: list[dict[str, Any]] = []
    demo_stream.run(
        *(spark, broker.address, tmp_path, lambda *line: said.append(line)),
        show=shown.append,
        records=5000,
    )
    assert [step for step, _ in said] == ["stream", "crash", "restart", "compare"]
    assert "5,000 records in, 5,000 out: each once" in said[-1][1]
    assert shown[0]["written"] == 0 and shown[0]["batch"] is None
    assert shown[-1]["written"] == shown[-1]["produced"] == 5000
    assert any(numbers["behind_bytes"] is not None for numbers in shown)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([0, 1, 3], "1 are lost, 0 are there more than once"),
        ([0, 1, 1, 2, 3], "0 are lost, 1 are there more than once"),
        ([0, 1, 1, 2], "1 are lost, 1 are there more than once"),
        ([0, 2, 1, 3], "not in order"),
    ],
)
def test_lost_and_doubled_records_are_noticed(rows: list[int], said: str) -> None:
    numbers = np.array([[number, number**2] for number in rows])
    with pytest.raises(ValueError, match=said):
        demo_stream.compare(numbers, 4)


def test_changed_records_are_noticed() -> None:
    with pytest.raises(ValueError, match="or changed"):
        demo_stream.compare(np.array([[0, 0], [1, 2]]), 2)
