"""`metadata=topics`: what servers of both dialects say of their topics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.driver import TopicEntry
from lance_spark.client.lwp.driver import LwpDriver
from lance_spark.errors import OptionError, TopicNotFound
from lance_spark.model import Retention
from lance_spark.spark import reader
from lance_spark.spark.pool import clear_pool
from lance_spark.spark.schema import TOPICS_SCHEMA
from tests.spark.reading import (
    connect,
    drop_old,
    fill,
    log_of,
    make_records,
    make_schema,
    pick,
    read,
    run_broker,
)


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    yield
    clear_pool()


def read_topics(broker: EmbeddedBroker, **given: Any) -> list[dict[str, Any]]:
    return read(broker, TOPICS_SCHEMA, metadata="topics", **given)


def test_all_that_is_known_of_a_topic() -> None:
    with run_broker(segment_bytes=500) as broker, connect(broker) as client:
        end = fill(broker, "b", make_records(200), batch_bytes=250)[-1]["next_offset"]
        drop_old(broker, "b", 1000)
        start, _ = log_of(broker, "b")
        kept = client.create_topic("a", retention=Retention(3600, 5000))
        [first, second] = read_topics(broker)
        info = client.topic("b")
    assert start > 0
    assert first == {
        "id": kept.id,
        "name": "a",
        "log_start": 0,
        "log_end": 0,
        "records": 0,
        "created": datetime.fromtimestamp(kept.created_at_s, timezone.utc),
        "retention": {"max_age_s": 3600, "max_bytes": 5000},
    }
    assert second == {
        "id": info.id,
        "name": "b",
        "log_start": start,
        "log_end": end,
        # All are of one size.
        "records": (end - start) // 25,
        "created": datetime.fromtimestamp(info.created_at_s, timezone.utc),
        "retention": {"max_age_s": 0, "max_bytes": 1000},
    }


def test_limits_that_spark_has_no_number_for(broker: EmbeddedBroker) -> None:
    with connect(broker) as client:
        client.create_topic("a", retention=Retention(2**64 - 1, 2**63))
    [row] = read_topics(broker)
    most = 2**63 - 1
    assert row["retention"] == {"max_age_s": most, "max_bytes": most}


def test_a_plain_server_knows_less(plain_broker: EmbeddedBroker) -> None:
    end = fill(plain_broker, "a", make_records(3))[-1]["next_offset"]
    [row] = read_topics(plain_broker)
    assert pick([row], "name", "log_start", "log_end", "records", "retention") == [
        {
            "name": "a",
            "log_start": None,
            "log_end": end,
            "records": None,
            "retention": None,
        }
    ]
    assert row["id"] > 0
    assert row["created"].year >= 2024


def test_topics_that_options_choose(broker: EmbeddedBroker) -> None:
    for name in ("a", "ab", "b"):
        fill(broker, name)

    def names(**given: str) -> list[str]:
        return [row["name"] for row in read_topics(broker, **given)]

    assert names() == ["a", "ab", "b"]
    assert names(topic="b,a") == ["a", "b"]
    assert names(topicPattern="a.*") == ["a", "ab"]
    with pytest.raises(TopicNotFound):
        names(topic="a,x")


def test_no_topics(broker: EmbeddedBroker, plain_broker: EmbeddedBroker) -> None:
    assert read_topics(broker) == []
    assert read_topics(plain_broker) == []


def test_columns_in_any_order(broker: EmbeddedBroker) -> None:
    fill(broker, "a")
    schema = make_schema("name string, id long")
    assert read(broker, schema, metadata="topics") == [{"name": "a", "id": 1}]
    with pytest.raises(OptionError, match="there is no column offset"):
        read(broker, make_schema("offset long"), metadata="topics")


def test_names_of_columns_in_any_case(broker: EmbeddedBroker) -> None:
    fill(broker, "a")
    schema = make_schema("NAME string, id long, Log_End long")
    [row] = read(broker, schema, metadata="topics")
    assert (list(row), row["NAME"]) == (["NAME", "id", "Log_End"], "a")


def test_a_topic_that_goes_while_they_are_listed(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        fill(broker, name)
    describe = reader._describe

    def delete_first(driver: LwpDriver, entry: TopicEntry) -> Any:
        if entry.name == "b":
            driver.client.delete_topic("b")
        # As if the listing had told no bounds.
        return describe(driver, replace(entry, bounds=None))

    monkeypatch.setattr(reader, "_describe", delete_first)
    assert [row["name"] for row in read_topics(broker)] == ["a", "c"]
