"""The Spark part of the demo: that it works, and that it would notice if it did not."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from lance_spark.broker import EmbeddedBroker
from lance_spark.cli.demo_record import make_records
from lance_spark.client import LanceClient, Producer
from lance_spark.spark import demo

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
