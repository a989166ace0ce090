"""Tests of the job in examples/testing_a_job.py: these are the example."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession
from testing_a_job import start

from lance_spark.testing import ScratchBroker, ScratchTopic


def pay(user: str, cents: int) -> str:
    """Make a payment as the topic has it."""
    return json.dumps({"user": user, "cents": cents})


def test_large_payments_become_alerts(
    lance_spark_session: SparkSession,
    lance_broker: ScratchBroker,
    lance_topic: ScratchTopic,
    tmp_path: Path,
) -> None:
    alerts = lance_broker.topic("alerts")
    lance_topic.fill([pay("ann", 100_000), pay("ben", 99_999), "no payment", None])
    query = start(
        lance_spark_session, lance_topic.options, alerts.options, str(tmp_path)
    )
    query.awaitTermination()
    alerts.assert_holds([{"key": "ann", "value": '{"user":"ann","cents":100000}'}])


def test_alerts_are_there_once_although_connections_end(
    lance_spark_session: SparkSession,
    lance_broker: ScratchBroker,
    lance_topic: ScratchTopic,
    tmp_path: Path,
) -> None:
    alerts = lance_broker.topic("alerts")
    users = [f"user {n}" for n in range(100)]
    lance_topic.fill([pay(user, 200_000) for user in users])
    # Answers of the broker are cut off, wherever in the job that may be.
    lance_broker.faults.cut_after(2_000, times=3)
    query = start(
        lance_spark_session, lance_topic.options, alerts.options, str(tmp_path)
    )
    query.awaitTermination()
    alerts.assert_holds([f'{{"user":"{user}","cents":200000}}' for user in users])
