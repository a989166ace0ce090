"""Writes to plain servers, which have no stages; and how it is decided how to write."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lance_spark.broker import EmbeddedBroker
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
    ROW_BYTES,
    ROWS,
    Trouble,
    TroubledSource,
)
from tests.spark.writing import read_values

AT_LEAST_ONCE = {"delivery": "at-least-once"}


@pytest.mark.parametrize("server", ["broker", "plain_broker"])
def test_the_server_decides_unless_the_user_does(
    spark: SparkSession, request: pytest.FixtureRequest, server: str
) -> None:
    """A task that has written all its rows fails and is tried again."""
    broker: EmbeddedBroker = request.getfixturevalue(server)
    spark.dataSource.register(TroubledSource)
    trouble = Trouble(what="raise", at_end=True)
    frame = make_numbers(spark, ROWS)
    save(frame, broker, format="troubled", topic="a", trouble=trouble)
    found = to_numbers(read_values(broker, "a"))
    if server == "broker":
        assert found == ALL
    else:
        assert Counter(found) == Counter(ALL + ALL[HALF:])


def test_what_a_plain_server_can_not_do(
    spark: SparkSession, plain_broker: EmbeddedBroker
) -> None:
    rows = make_numbers(spark, 10)
    said = refuse(rows, plain_broker, topic="a", mode="overwrite")
    assert 'Unsupported: mode("overwrite") (use mode("append") here)' in said
    check_untouched(plain_broker)


def test_acks_are_lost(spark: SparkSession, plain_broker: EmbeddedBroker) -> None:
    with Proxy(plain_broker.address, lose_acks) as proxy:
        options = {"topic": "a", "servers": proxy.address, "batchBytes": "1k"}
        frame = make_numbers(spark, ROWS, padding=100)
        save(frame, plain_broker, **options, **AT_LEAST_ONCE)
        assert proxy.cuts >= 4
    found = to_numbers(read_values(plain_broker, "a"))
    assert set(found) == set(ALL)
    assert len(found) > ROWS, "no ack was lost, and this proves nothing"


def test_the_broker_is_restarted(
    spark: SparkSession,
    plain_broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def restart() -> None:
        plain_broker.stop()
        plain_broker.start()

    spark.dataSource.register(TroubledSource)
    arrivals = Arrivals(plain_broker, monkeypatch, tmp_path / "ready")
    arrivals.enough, arrivals.first = HALF + 1, restart
    trouble = Trouble(what="wait", ready=str(arrivals.path))
    frame = make_numbers(spark, ROWS, padding=ROW_BYTES)
    with small_batches(spark, BATCH_ROWS), arrivals.watched():
        save(frame, plain_broker, format="troubled", topic="a", trouble=trouble)
    assert set(to_numbers(read_values(plain_broker, "a"))) == set(ALL)
